package schemas_test

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// random returns a value with every field set to a random value, so that a field without an
// encoding is noticed. Lists and optional parts are absent now and then.
func random(r *rand.Rand, v reflect.Value) {
	switch v.Interface().(type) {
	case schemas.Misfire:
		v.SetUint(r.Uint64N(3))
		return
	case schemas.Overlap:
		v.SetUint(r.Uint64N(4))
		return
	case schemas.Trigger:
		v.SetUint(r.Uint64N(3))
		return
	case schemas.TimerID:
		v.Set(reflect.ValueOf(schemas.NewTimerID("/random", string(rune('a'+r.IntN(26))))))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			random(r, v.Field(i))
		}
	case reflect.Pointer:
		if r.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			random(r, v.Elem())
		}
	case reflect.Slice:
		if n := r.IntN(5); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				random(r, v.Index(i))
			}
		}
	case reflect.String:
		v.SetString([]string{"", "x", "30 2 * * *", "é\x00", strings.Repeat("z", 256)}[r.IntN(5)])
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Int64:
		v.SetInt([]int64{0, 1, -1, added, math.MaxInt64, math.MinInt64, r.Int64()}[r.IntN(7)])
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint([]uint64{0, 1, 200, math.MaxUint64, r.Uint64()}[r.IntN(5)] & (1<<v.Type().Bits() - 1))
	default:
		panic("no random value of " + v.Type().String())
	}
}

// TestScheduleRoundTrip: every field of a schedule and of an origin is stored, whatever its
// value.
func TestScheduleRoundTrip(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for seed := range uint64(5000) {
		r := rand.New(rand.NewPCG(seed, 3))
		rec := schemas.Record{
			Definition: schemas.Definition{AddedMs: added, Service: "s", Source: "/s", EventID: "1", Type: "t", Body: schemas.Body{Mode: schemas.ModeStructured, Data: []byte("{}")}},
			RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, Run: 7, DueMs: added},
		}
		if r.IntN(3) > 0 {
			rec.Schedule = &schemas.Schedule{}
			random(r, reflect.ValueOf(rec.Schedule).Elem())
		}
		if r.IntN(3) > 0 {
			rec.Origin = &schemas.Origin{}
			random(r, reflect.ValueOf(rec.Origin).Elem())
		}
		for _, format := range []schemas.RecordFormat{schemas.RecordFormat1, schemas.RecordFormat2} {
			b := rec.AppendFormat(nil, format)
			back, err := schemas.DecodeRecord(b)
			if err != nil || !reflect.DeepEqual(back, rec) {
				t.Fatalf("seed %d, format %d: %v\ngot  %+v %+v\nwant %+v %+v", seed, format, err, back.Schedule, back.Origin, rec.Schedule, rec.Origin)
			}
		}
		nonZero(seen, "", reflect.ValueOf(rec.Schedule))
		nonZero(seen, "", reflect.ValueOf(rec.Origin))
	}
	for _, kind := range []reflect.Type{reflect.TypeFor[schemas.Schedule](), reflect.TypeFor[schemas.Origin](), reflect.TypeFor[schemas.LastRun](), reflect.TypeFor[schemas.WaitingRun](), reflect.TypeFor[schemas.ManualRun](), reflect.TypeFor[schemas.Backfill](), reflect.TypeFor[schemas.Span](), reflect.TypeFor[schemas.Expected](), reflect.TypeFor[schemas.Overdue](), reflect.TypeFor[schemas.Decision]()} {
		for _, f := range reflect.VisibleFields(kind) {
			if !f.Anonymous && !seen[kind.String()+"."+f.Name] {
				t.Errorf("no record had a value in %s.%s", kind, f.Name)
			}
		}
	}
}

// nonZero notes the fields that have a value.
func nonZero(seen map[string]bool, name string, v reflect.Value) {
	if v.IsZero() {
		return
	}
	seen[name] = true
	switch v.Kind() {
	case reflect.Pointer:
		nonZero(seen, name, v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			nonZero(seen, name, v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if of := v.Type().String(); !f.Anonymous {
				nonZero(seen, of+"."+f.Name, v.Field(i))
				continue
			}
			for j := range v.Field(i).NumField() {
				nonZero(seen, v.Type().String()+"."+f.Type.Field(j).Name, v.Field(i).Field(j))
			}
		}
	}
}

// largestSchedule is a schedule with the largest value in every field. Its times are those
// whose encoding is longest, up to the end of the calendar in 2200.
func largestSchedule() *schemas.Schedule {
	const last = int64(7_258_118_400_000)
	text := strings.Repeat("x", schemas.MaxRecurrenceText)
	all := schemas.MisfireSkip
	s := &schemas.Schedule{
		Recurrence: schemas.Recurrence{
			Cron: text, Zone: text, StartMs: last, EndMs: last, Limit: math.MaxUint32, JitterMs: last, DST: text, Days: text,
			ExcludeMode: "previous", Misfire: schemas.MisfireSkip, GraceMs: last, Overlap: schemas.OverlapReplace, ExpectMs: last,
		},
		Progress: schemas.Progress{
			AnchorMs: last, NextMs: last, NextDueMs: last, NextKey: last, DoneKey: last, Zones: "2199zz", PassedMs: last, Calendars: math.MaxUint64, ChangedMs: last, Fired: math.MaxUint32, Counted: math.MaxUint32, CountedMs: last,
			CaughtUp: math.MaxUint32, CatchUp: &all, PauseNote: strings.Repeat("p", schemas.MaxPauseNote), PausedUntilMs: last, ForgottenMs: last, KnownFromMs: last,
			Last:     schemas.LastRun{Run: math.MaxUint32, NominalMs: last, DueMs: last, ClaimedMs: last, Epoch: math.MaxUint64, Before: math.MaxUint64, Missed: math.MaxUint32, Trigger: schemas.TriggerBackfill},
			Waiting:  &schemas.WaitingRun{NominalMs: last, DueMs: last, Missed: math.MaxUint32},
			Backfill: &schemas.Backfill{NextMs: last, ToMs: last, EveryMs: last, DueMs: last, Allow: true, Fired: math.MaxUint32},
		},
	}
	// timerexclude has the names with commas between them.
	names := text[:schemas.MaxRecurrenceText-schemas.MaxExclude+1]
	for n := schemas.MaxExclude; n > 0; n-- {
		s.Exclude = append(s.Exclude, names[:len(names)/n])
		names = names[len(names)/n:]
	}
	// A span for each range, and for what was dropped and what waits.
	for range schemas.MaxDecisions + 2 {
		s.Backfill.Except = append(s.Backfill.Except, schemas.Span{FromMs: last})
	}
	for range schemas.MaxManual {
		s.AddManual(schemas.ManualRun{AtMs: last, Allow: true}, math.MaxUint64)
	}
	s.Alarm = s.Last
	for i := range schemas.MaxExpected {
		e := schemas.Expected{FromMs: 0, ToMs: 0, DeadlineMs: int64(schemas.MaxExpect / time.Millisecond), Count: math.MaxUint32, Run: math.MaxUint32, Kind: schemas.DecisionFired}
		if i == 0 {
			e.FromMs, e.ToMs, e.DeadlineMs = last, last, last+e.DeadlineMs
		} else {
			e.FromMs, e.ToMs, e.DeadlineMs = s.Expected[i-1].ToMs+e.DeadlineMs, s.Expected[i-1].ToMs+2*e.DeadlineMs, s.Expected[i-1].ToMs+3*e.DeadlineMs
		}
		s.Expected = append(s.Expected, e)
	}
	for range schemas.MaxOverdue {
		s.AddOverdue(schemas.Overdue{FromMs: last, ToMs: 0, DeadlineMs: last, AtMs: 0, Count: math.MaxUint32, Run: math.MaxUint32, State: schemas.StateFail, Kind: schemas.DecisionFired})
	}
	for i := range schemas.MaxDecisions {
		// The three encoded times are FromMs, ToMs-FromMs and AtMs-ToMs.
		s.Decisions = append(s.Decisions, schemas.Decision{Kind: schemas.DecisionKind(1 + i%14), FromMs: last, ToMs: 0, AtMs: last, Count: math.MaxUint32, Run: math.MaxUint32})
	}
	return s
}

// TestScheduleBytes: a schedule takes at most MaxScheduleBytes of its record, a typical one
// some hundred bytes. The record does not grow while runs fire.
func TestScheduleBytes(t *testing.T) {
	t.Parallel()
	if n := len(largestSchedule().Value()); n > schemas.MaxScheduleBytes || n < schemas.MaxScheduleBytes*3/4 {
		t.Errorf("the largest schedule has %d bytes, the limit is %d", n, schemas.MaxScheduleBytes)
	}
	const day = 86_400_000
	s := &schemas.Schedule{Recurrence: schemas.Recurrence{Cron: "30 2 * * *", Zone: "Europe/Berlin"}, Progress: schemas.Progress{AnchorMs: added, NextMs: added, NextDueMs: added}}
	for n := range int64(10_000) {
		at := added + n*day
		s.Decide(schemas.Decision{Kind: schemas.DecisionFired, FromMs: at, ToMs: at, Count: 1, Run: uint32(n + 1), AtMs: at + 5})
		s.Last = schemas.LastRun{Run: uint32(n + 1), NominalMs: at, DueMs: at, ClaimedMs: at + 5, Epoch: 12, Before: 1_000_000}
		s.NextMs, s.NextDueMs, s.Fired = at+day, at+day, uint32(n+1)
	}
	if n := len(s.Value()); n > 200 || len(s.Decisions) != 1 {
		t.Errorf("after 10,000 runs a schedule has %d bytes and %d ranges", n, len(s.Decisions))
	}
}

// TestDamagedSchedule: the value of a critical extension that is truncated, has further
// bytes, an unknown layout or an unknown policy makes the record unreadable, as one of a
// newer version. It is never a record without its schedule.
func TestDamagedSchedule(t *testing.T) {
	t.Parallel()
	refused := func(what string, kind uint32, value []byte) {
		t.Helper()
		rec := schemas.Record{
			RunState: schemas.RunState{State: schemas.StatePending, Run: 1},
			Ext:      []schemas.Extension{{Type: kind, Value: value}},
		}
		got, err := schemas.DecodeRecord(rec.Append(nil))
		if !errors.Is(err, schemas.ErrNewer) {
			t.Errorf("%s: %+v %+v, %v; want ErrNewer", what, got.Schedule, got.Origin, err)
		}
	}
	r := rand.New(rand.NewPCG(1, 4))
	origin := schemas.Origin{Schedule: schemas.NewTimerID("/s", "1"), Missed: 300, Trigger: schemas.TriggerManual, Waited: true}
	for range 50 {
		var s schemas.Schedule
		random(r, reflect.ValueOf(&s).Elem())
		whole := s.Value()
		for n := range whole {
			refused("truncated schedule", schemas.ExtSchedule, whole[:n])
		}
		refused("longer schedule", schemas.ExtSchedule, append(bytes.Clone(whole), 0))
		refused("layout of a schedule", schemas.ExtSchedule, append([]byte{2}, whole[1:]...))
	}
	whole := origin.Value()
	for n := range whole {
		refused("truncated origin", schemas.ExtOrigin, whole[:n])
	}
	refused("longer origin", schemas.ExtOrigin, append(bytes.Clone(whole), 0))
	refused("layout of an origin", schemas.ExtOrigin, append([]byte{2}, whole[1:]...))
	next := schemas.MisfireSkip + 1
	for what, s := range map[string]schemas.Schedule{
		"misfire":  {Recurrence: schemas.Recurrence{Misfire: next}},
		"overlap":  {Recurrence: schemas.Recurrence{Overlap: schemas.OverlapReplace + 1}},
		"catch-up": {Progress: schemas.Progress{CatchUp: &next}},
		"trigger":  {Progress: schemas.Progress{Last: schemas.LastRun{Trigger: schemas.TriggerBackfill + 1}}},
	} {
		refused("unknown "+what, schemas.ExtSchedule, s.Value())
	}
	origin.Trigger = schemas.TriggerBackfill + 1
	refused("unknown trigger of an origin", schemas.ExtOrigin, origin.Value())
	refused("origin without a schedule", schemas.ExtOrigin, (&schemas.Origin{}).Value())
	rec := schemas.Record{RunState: schemas.RunState{State: schemas.StatePending, Run: 1}, Schedule: largestSchedule()}
	b := rec.Append(nil)
	for n := range b {
		if _, err := schemas.DecodeRecord(b[:n]); !errors.Is(err, schemas.ErrDamaged) {
			t.Fatalf("a record of %d of %d bytes: %v, want ErrDamaged", n, len(b), err)
		}
	}
}

// TestOlderReader: a version that does not know the extensions refuses the records of
// schedules and runs as newer, because both types are critical.
func TestOlderReader(t *testing.T) {
	t.Parallel()
	for _, kind := range []uint32{schemas.ExtSchedule, schemas.ExtOrigin} {
		if !(schemas.Extension{Type: kind}).Critical() {
			t.Errorf("extension %d is not critical", kind)
		}
	}
	rec := schemas.Record{RunState: schemas.RunState{State: schemas.StatePending, Run: 1}, Schedule: largestSchedule()}
	if _, err := schemas.DecodeRecordUpTo(rec.AppendFormat(nil, schemas.RecordFormat1), schemas.RecordFormat1); !errors.Is(err, schemas.ErrNewer) {
		t.Errorf("a reader of format 1: %v, want ErrNewer", err)
	}
}

// TestExpect: Expect keeps the order of the deadlines and the bound of the list, counts each
// nominal time once, and never lets a run count for a nominal time that has none.
func TestExpect(t *testing.T) {
	t.Parallel()
	const now, later = int64(1000), int64(1_000_000)
	var p schemas.Progress
	add := func(nominal, deadline int64, run uint32) {
		p.Expect(schemas.Expected{FromMs: nominal, ToMs: nominal, DeadlineMs: deadline, Count: 1, Run: run, Kind: schemas.DecisionOverlap}, now)
	}
	for i := range int64(5) {
		add(i, now-10+i, 0) // overdue, without a run: they share one event
	}
	if len(p.Expected) != 1 || p.Expected[0] != (schemas.Expected{FromMs: 0, ToMs: 4, DeadlineMs: now - 6, Count: 5, Kind: schemas.DecisionOverlap}) {
		t.Fatalf("overdue times: %+v", p.Expected)
	}
	before := p
	for i := range int64(2 * schemas.MaxExpected) {
		add(10+i, later+2*schemas.MaxExpected-i, uint32(1+i)) // the order of the deadlines is not that of the adds
	}
	if before.Expected[0].Count != 5 {
		t.Error("Expect changed a copy of the record")
	}
	if len(p.Expected) != schemas.MaxExpected {
		t.Fatalf("%d entries, the limit is %d", len(p.Expected), schemas.MaxExpected)
	}
	count := uint32(0)
	for i, e := range p.Expected {
		if count += e.Count; i > 0 && e.DeadlineMs < p.Expected[i-1].DeadlineMs {
			t.Fatalf("not in the order of the deadlines: %+v", p.Expected)
		}
	}
	if count != 5+2*schemas.MaxExpected || p.Expected[0].Run != 0 {
		t.Errorf("%d nominal times, the first entry is %+v", count, p.Expected[0])
	}
}

// TestExpectedForMs: only the record of a run that succeeded before its deadline is kept for
// longer than the retention.
func TestExpectedForMs(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		origin *schemas.Origin
		state  schemas.State
		done   int64
		want   int64
	}{
		{nil, schemas.StateSuccess, 100, 0},
		{&schemas.Origin{}, schemas.StateSuccess, 100, 0},
		{&schemas.Origin{DeadlineMs: 500}, schemas.StateSuccess, 100, 400},
		{&schemas.Origin{DeadlineMs: 500}, schemas.StateSuccess, 700, 0},
		{&schemas.Origin{DeadlineMs: 500}, schemas.StateFail, 100, 0},
	} {
		rec := schemas.Record{Origin: x.origin, RunState: schemas.RunState{State: x.state, DoneMs: x.done}}
		if got := rec.ExpectedForMs(); got != x.want {
			t.Errorf("%+v %s done at %d: %d, want %d", x.origin, x.state, x.done, got, x.want)
		}
	}
}
