package check

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/belfryio/belfry/schemas"
)

const (
	source = "/chaos"
	due    = int64(1_800_000_000_000)
)

func key(id string) string { return schemas.NewTimerID(source, id).MsgID(1) }

// story builds a history.
type story struct{ events []Event }

func (s *story) put(e Event) *story {
	e.AtNs = int64(len(s.events)+1) * 1000
	if e.Source == "" && e.Kind != Kill && e.Kind != Done && e.Kind != Answer && e.Kind != Unknown {
		e.Source = source
	}
	s.events = append(s.events, e)
	return s
}

func (s *story) add(call int64, id, via string) *story {
	return s.put(Event{Kind: Add, Call: call, ID: id, Via: via, DueMs: due, Data: "d-" + id, Callback: true})
}
func (s *story) cancel(call int64, id string) *story {
	return s.put(Event{Kind: Cancel, Call: call, ID: id, Via: "api"})
}
func (s *story) ok(call int64) *story { return s.put(Event{Kind: Answer, Call: call, OK: true}) }
func (s *story) no(call int64, c schemas.Code) *story {
	return s.put(Event{Kind: Answer, Call: call, Code: string(c)})
}
func (s *story) unknown(call int64) *story { return s.put(Event{Kind: Unknown, Call: call}) }
func (s *story) fired(id string) *story    { return s.firedAt(id, due*1_000_000) }
func (s *story) firedAt(id string, ns int64) *story {
	return s.put(Event{Kind: Fired, ID: id, TimeNs: ns, Key: key(id), Data: "d-" + id})
}
func (s *story) calledAt(id string, ms int64) *story {
	return s.put(Event{Kind: Called, ID: id, TimeNs: ms * 1_000_000, Key: key(id), Data: "d-" + id})
}
func (s *story) called(id string) *story {
	return s.put(Event{Kind: Called, ID: id, TimeNs: due*1_000_000 + 5, Key: key(id), Webhook: key(id), Data: "d-" + id})
}
func (s *story) move(call int64, id string, dueMs int64) *story {
	return s.put(Event{Kind: Reschedule, Call: call, ID: id, Via: "api", DueMs: dueMs})
}
func (s *story) firedAs(id string, dueMs, ms int64) *story {
	return s.put(Event{Kind: Fired, ID: id, TimeNs: ms * 1_000_000, DueMs: dueMs, Key: key(id), Data: "d-" + id})
}
func (s *story) done() *story { return s.put(Event{Kind: Done}) }

func TestSoundHistories(t *testing.T) {
	t.Parallel()
	sound := map[string]*story{
		"the plain life":                   new(story).add(1, "a", "api").ok(1).fired("a").called("a").done(),
		"seen before its acknowledgement":  new(story).add(1, "a", "publish").fired("a").called("a").ok(1),
		"called again":                     new(story).add(1, "a", "api").ok(1).fired("a").called("a").called("a"),
		"unanswered add that fired":        new(story).add(1, "a", "api").unknown(1).fired("a").called("a"),
		"unanswered add that did not":      new(story).add(1, "a", "api").unknown(1).done(),
		"add never answered at all":        new(story).add(1, "a", "api").done(),
		"unavailable is unknown":           new(story).add(1, "a", "api").no(1, schemas.CodeUnavailable).fired("a").called("a"),
		"repeated until acknowledged":      new(story).add(1, "a", "api").unknown(1).add(2, "a", "api").ok(2).fired("a").called("a"),
		"refused":                          new(story).add(1, "a", "api").no(1, schemas.CodeInvalidAttribute).done(),
		"cancelled":                        new(story).add(1, "a", "api").ok(1).cancel(2, "a").ok(2).done(),
		"cancelled too late":               new(story).add(1, "a", "api").ok(1).cancel(2, "a").no(2, schemas.CodeAlreadyFired).fired("a").called("a"),
		"unanswered cancel that worked":    new(story).add(1, "a", "api").ok(1).cancel(2, "a").unknown(2).done(),
		"unanswered cancel that did not":   new(story).add(1, "a", "api").ok(1).cancel(2, "a").unknown(2).fired("a").called("a"),
		"not found while on its way":       new(story).add(1, "a", "publish").ok(1).cancel(2, "a").no(2, schemas.CodeNotFound).fired("a").called("a"),
		"moved to later":                   new(story).add(1, "a", "api").ok(1).move(2, "a", due+500).ok(2).firedAs("a", due+500, due+500).calledAt("a", due+501),
		"moved to sooner":                  new(story).add(1, "a", "api").ok(1).move(2, "a", due-500).ok(2).firedAs("a", due-500, due-499).calledAt("a", due-498),
		"moved twice":                      new(story).add(1, "a", "api").ok(1).move(2, "a", due-500).ok(2).move(3, "a", due-800).ok(3).firedAs("a", due-800, due-800).calledAt("a", due-700),
		"a move that may have been":        new(story).add(1, "a", "api").ok(1).move(2, "a", due-500).unknown(2).firedAs("a", due-500, due-499).calledAt("a", due-498),
		"a move that may not have been":    new(story).add(1, "a", "api").ok(1).move(2, "a", due+500).unknown(2).firedAs("a", due, due).calledAt("a", due+1),
		"moved too late":                   new(story).add(1, "a", "api").ok(1).move(2, "a", due+500).no(2, schemas.CodeAlreadyFired).firedAs("a", due, due).calledAt("a", due+1),
		"kills are only for the reader":    new(story).add(1, "a", "api").ok(1).put(Event{Kind: Kill}).fired("a").called("a"),
		"fired in the very ms of its time": new(story).add(1, "a", "api").ok(1).firedAt("a", due*1_000_000).called("a"),
	}
	for name, s := range sound {
		if r := Check(s.events); len(r.Violations) > 0 {
			t.Errorf("%s: violations %v, want none", name, r.Violations)
		}
	}
}

func TestPlantedViolations(t *testing.T) {
	t.Parallel()
	planted := map[string]struct {
		rule Rule
		s    *story
	}{
		"lost":                              {Lost, new(story).add(1, "a", "publish").ok(1).done()},
		"lost, told apart from another":     {Lost, new(story).add(1, "a", "publish").ok(1).add(2, "b", "api").ok(2).fired("b").called("b")},
		"lost after a repeated add":         {Lost, new(story).add(1, "a", "api").unknown(1).add(2, "a", "api").ok(2)},
		"lost although a cancel found none": {Lost, new(story).add(1, "a", "publish").ok(1).cancel(2, "a").no(2, schemas.CodeNotFound)},
		"fired and not called":              {NotCalled, new(story).add(1, "a", "api").ok(1).fired("a")},
		"early by a nanosecond":             {Early, new(story).add(1, "a", "api").ok(1).firedAt("a", due*1_000_000-1).called("a")},
		"an unknown add is early, too":      {Early, new(story).add(1, "a", "api").unknown(1).firedAt("a", due*1_000_000-1).called("a")},
		"called early": {Early, new(story).add(1, "a", "api").ok(1).fired("a").
			put(Event{Kind: Called, ID: "a", TimeNs: due*1_000_000 - 1, Key: key("a"), Data: "d-a"})},
		"after an acknowledged cancel":  {AfterCancel, new(story).add(1, "a", "api").ok(1).cancel(2, "a").ok(2).fired("a").called("a")},
		"before an acknowledged cancel": {AfterCancel, new(story).add(1, "a", "api").ok(1).fired("a").called("a").cancel(2, "a").ok(2)},
		"told fired, never did":         {NotFired, new(story).add(1, "a", "api").ok(1).cancel(2, "a").no(2, schemas.CodeAlreadyFired)},
		"told both":                     {CancelledTwice, new(story).add(1, "a", "api").ok(1).cancel(2, "a").ok(2).cancel(3, "a").no(3, schemas.CodeAlreadyFired)},
		"forgotten":                     {Forgotten, new(story).add(1, "a", "api").ok(1).cancel(2, "a").no(2, schemas.CodeNotFound).fired("a").called("a")},
		"changed Msg-Id": {ChangedID, new(story).add(1, "a", "api").ok(1).called("a").
			put(Event{Kind: Fired, ID: "a", TimeNs: due * 1_000_000, Key: schemas.NewTimerID(source, "a").MsgID(2), Data: "d-a"})},
		"changed idempotency key": {ChangedID, new(story).add(1, "a", "api").ok(1).fired("a").called("a").
			put(Event{Kind: Called, ID: "a", TimeNs: due * 1_000_000, Key: key("b"), Data: "d-a"})},
		"changed webhook-id": {ChangedID, new(story).add(1, "a", "api").ok(1).fired("a").called("a").
			put(Event{Kind: Called, ID: "a", TimeNs: due * 1_000_000, Key: key("a"), Webhook: key("b"), Data: "d-a"})},
		"changed event id": {Invented, new(story).add(1, "a", "api").ok(1).fired("a").called("a").fired("b")},
		"changed data": {ChangedData, new(story).add(1, "a", "api").ok(1).called("a").
			put(Event{Kind: Fired, ID: "a", TimeNs: due * 1_000_000, Key: key("a"), Data: "other"})},
		"invented":                           {Invented, new(story).fired("a")},
		"refused and fired":                  {Refused, new(story).add(1, "a", "api").no(1, schemas.CodeInvalidAttribute).fired("a").called("a")},
		"fired after done":                   {AfterDone, new(story).add(1, "a", "api").unknown(1).done().fired("a").called("a")},
		"called after done":                  {AfterDone, new(story).add(1, "a", "api").ok(1).fired("a").called("a").done().called("a")},
		"fired twice":                        {FiredTwice, new(story).add(1, "a", "api").ok(1).fired("a").fired("a").called("a")},
		"moved, and fired at the old time":   {Early, new(story).add(1, "a", "api").ok(1).move(2, "a", due+500).ok(2).firedAs("a", due, due).calledAt("a", due+600)},
		"moved, and fired as due before":     {WrongDue, new(story).add(1, "a", "api").ok(1).move(2, "a", due-500).ok(2).firedAs("a", due, due).calledAt("a", due+1)},
		"moved, and called early":            {Early, new(story).add(1, "a", "api").ok(1).move(2, "a", due+500).ok(2).firedAs("a", due+500, due+500).calledAt("a", due+499)},
		"moved, and lost":                    {Lost, new(story).add(1, "a", "api").ok(1).move(2, "a", due+500).ok(2)},
		"told too late to move, never fired": {NotFired, new(story).add(1, "a", "api").ok(1).move(2, "a", due+500).no(2, schemas.CodeAlreadyFired)},
		"moved, and forgotten":               {Forgotten, new(story).add(1, "a", "api").ok(1).move(2, "a", due+500).no(2, schemas.CodeNotFound).fired("a").called("a")},
		"answered twice":                     {BadHistory, new(story).add(1, "a", "api").ok(1).ok(1).fired("a").called("a")},
	}
	for name, p := range planted {
		r := Check(p.s.events)
		found := false
		for _, v := range r.Violations {
			found = found || v.Rule == p.rule
		}
		if !found {
			t.Errorf("%s: %s was not found; found %v", name, p.rule, r.Violations)
		}
	}
}

func TestCounts(t *testing.T) {
	t.Parallel()
	s := new(story).add(1, "a", "api").ok(1).add(2, "b", "publish").unknown(2).add(3, "c", "api").no(3, schemas.CodeTooLarge).
		firedAt("a", due*1_000_000+7_000_000).called("a").called("a").put(Event{Kind: Kill})
	r := Check(s.events)
	if r.Added != 3 || r.Acknowledged != 1 || r.UnknownAdds != 1 || r.RefusedAdds != 1 || r.Fired != 1 || r.Called != 2 || r.CalledDuplicates != 1 || r.Kills != 1 {
		t.Errorf("wrong counts: %s", r)
	}
	if got := r.Percentile(50); got != 7 {
		t.Errorf("lateness is %d ms, want 7", got)
	}
}

func TestRecorderRoundTrip(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	r := NewRecorder(&b)
	call := r.Put(Event{Kind: Add, Source: source, ID: "a\n\"", DueMs: due})
	r.Put(Event{Kind: Answer, Call: call, OK: true})
	want, err := r.Events()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read %v, wrote %v", got, want)
	}
	if want[0].AtNs > want[1].AtNs || want[1].Call != want[0].Call || want[0].Call == 0 {
		t.Errorf("wrong order or call number: %v", want)
	}
}
