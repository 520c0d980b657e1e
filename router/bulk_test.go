package router_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// fill adds n timers of service mail with the ids <prefix>0, <prefix>1 and so on.
func (f *fixture) fill(prefix string, n int, attributes string) {
	f.t.Helper()
	for i := range n {
		if code, text := f.answer("add", add(fmt.Sprint(prefix, i), attributes), new(schemas.AddReply)); code != "" {
			f.t.Fatal(code, text)
		}
	}
}

// pages sends a bulk request, a JSON object without cursor, until there is no cursor, and returns the
// sum of the counts and the ids of the timers in the answers.
func (f *fixture) pages(verb, request string) (sum schemas.BulkCounts, ids []string) {
	f.t.Helper()
	cursor := ""
	for n := 0; ; n++ {
		var page schemas.BulkReply
		body := fmt.Sprintf(`{%s,"cursor":%q}`, request, cursor)
		if code, text := f.answer(verb, []byte(body), &page); code != "" {
			f.t.Fatalf("%s %s: %s %s", verb, body, code, text)
		}
		sum.Add(page.BulkCounts)
		for _, info := range page.Timers {
			ids = append(ids, info.ID)
		}
		if cursor = page.Cursor; cursor == "" {
			slices.Sort(ids)
			return sum, ids
		}
		if n > 1000 {
			f.t.Fatalf("%s does not end", verb)
		}
	}
}

func (f *fixture) states(ids ...string) string {
	f.t.Helper()
	var all []string
	for _, id := range ids {
		all = append(all, f.op("get", id, "").State.String())
	}
	return strings.Join(all, " ")
}

// TestBulkCancel: a cancel by filter changes the timers that the filter selects, page by page, and no
// others. A dry run changes nothing and selects the same; a repetition selects nothing.
func TestBulkCancel(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	f.fill("a", 7, `"timerafter":"1h","timersvc":"mail","timergroup":"g"`)
	f.fill("b", 2, `"timerafter":"1h","timersvc":"mail","timergroup":"other"`)
	f.fill("c", 1, `"timerafter":"1h","timersvc":"chat","timergroup":"g"`)
	f.op("schedule.pause", "a1", "")
	const filter = `"service":"mail","group":"g","by":"anna","limit":2`
	want := []string{"a0", "a1", "a2", "a3", "a4", "a5", "a6"}
	dry, ids := f.pages("bulk.cancel", filter+`,"dry_run":true`)
	if dry.Matched != 7 || dry.Done != 0 || dry.Refused != 0 || !slices.Equal(ids, want) {
		t.Errorf("the dry run has %+v of %s", dry, ids)
	}
	if got := f.states("a0", "a1"); got != "pending paused" {
		t.Errorf("after the dry run: %s", got)
	}
	if sum, ids := f.pages("bulk.cancel", `"service":"mail","group":"g","state":["paused"]`); sum.Done != 1 || !slices.Equal(ids, []string{"a1"}) {
		t.Errorf("the paused ones: %+v of %s", sum, ids)
	}
	sum, ids := f.pages("bulk.cancel", filter)
	if sum.Matched != 6 || sum.Done != 6 || sum.Refused != 0 || !slices.Equal(ids, slices.Delete(slices.Clone(want), 1, 2)) {
		t.Errorf("the cancel has %+v of %s", sum, ids)
	}
	if got := f.states("a0", "a6", "b0", "b1", "c0"); got != "cancelled cancelled pending pending pending" {
		t.Errorf("after the cancel: %s", got)
	}
	if h := f.op("get", "a3", "").History; len(h) != 1 || h[0].Op != "cancel" || h[0].By != "anna" {
		t.Errorf("the history is %+v", h)
	}
	if sum, _ := f.pages("bulk.cancel", filter); sum.Matched != 0 || sum.Done != 0 {
		t.Errorf("the repetition has %+v", sum)
	}
}

// TestBulkReschedule: a reschedule by filter gives all timers one due time, also if it takes several
// pages and counts from now, and ends although the moved timers are at the end of the list again. It
// selects no schedules.
func TestBulkReschedule(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	f.fill("a", 9, `"timerafter":"1h","timersvc":"mail","timergroup":"g"`)
	f.fill("s", 1, `"timerevery":"1h","timersvc":"mail","timergroup":"g"`)
	before := f.op("get", "s0", "").Schedule.Next
	const filter = `"service":"mail","limit":2,"after":"3h"`
	if dry, _ := f.pages("bulk.reschedule", filter+`,"dry_run":true`); dry.Matched != 9 || dry.Done != 0 {
		t.Errorf("the dry run has %+v", dry)
	}
	sum, _ := f.pages("bulk.reschedule", filter)
	if sum.Matched != 9 || sum.Done != 9 || sum.Refused != 0 {
		t.Errorf("the reschedule has %+v", sum)
	}
	dues := map[time.Time]int{}
	for i := range 9 {
		dues[f.op("get", fmt.Sprint("a", i), "").Due]++
	}
	if len(dues) != 1 {
		t.Errorf("the timers have the due times %v, want one", dues)
	}
	for due := range dues {
		if left := time.Until(due); left < time.Hour+time.Minute {
			t.Errorf("the timers are due in %s, want 3h", left)
		}
	}
	if after := f.op("get", "s0", "").Schedule.Next; !after.Equal(before) {
		t.Errorf("the schedule was moved from %s to %s", before, after)
	}
	const at = `"service":"mail","at":"2031-01-01T00:00:00Z"`
	if sum, _ := f.pages("bulk.reschedule", at); sum.Done != 9 {
		t.Errorf("the reschedule to a time has %+v", sum)
	}
	if sum, _ := f.pages("bulk.reschedule", at); sum.Matched != 0 {
		t.Errorf("its repetition has %+v", sum)
	}
}

// TestBulkRequests: a bulk request that selects everything, or what cannot be changed, is refused.
func TestBulkRequests(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	for _, c := range []struct{ verb, body, want string }{
		{"bulk.cancel", `{}`, "by service or group"},
		{"bulk.cancel", `{"state":["pending"]}`, "by service or group"},
		{"bulk.cancel", `{"service":"mail","state":["success"]}`, "state success cannot be selected"},
		{"bulk.cancel", `{"service":"a.b"}`, "must be 1 to"},
		{"bulk.cancel", `{"service":"mail","limit":201}`, "it must be 1 to 200"},
		{"bulk.cancel", `{"service":"mail","cursor":"x"}`, "was not returned by list"},
		{"bulk.cancel", `{"service":"mail","dryrun":true}`, "unknown field"},
		{"bulk.reschedule", `{"service":"mail"}`, "either at or after"},
		{"bulk.reschedule", `{"service":"mail","after":"1h","state":["retrying"]}`, "state retrying cannot be selected"},
		{"bulk.reschedule", `{"service":"mail","after":"1h","schedule":true}`, "update it"},
		{"bulk.reschedule", `{"service":"mail","after":"1h","cursor":"0.1"}`, "was not returned by bulk.reschedule"},
		{"bulk.reschedule", `{"service":"mail","after":"1h","cursor":"9223372036854775807/0.1"}`, "was not returned by bulk.reschedule"},
		{"bulk.reschedule", `{"service":"mail","after":"1h","cursor":"-9000000000000000/0.1"}`, "was not returned by bulk.reschedule"},
		{"bulk.replay", `{}`, "select the dead letters"},
		{"bulk.discard", `{"dry_run":true}`, "select the dead letters"},
		{"bulk.discard", `{"service":"mail","cursor":"17"}`, "was not returned by bulk.discard"},
		{"bulk.discard", `{"service":"mail","limit":-1}`, "it must be 1 to 200"},
		{"service.list", `{"limit":1001}`, "it must be 1 to 1000"},
	} {
		if code, text := f.answer(c.verb, []byte(c.body), nil); code != "bad_request" || !strings.Contains(text, c.want) {
			t.Errorf("%s %s: %s %q, want bad_request and %q", c.verb, c.body, code, text, c.want)
		}
	}
}

// TestBulkRaces: a timer that changes between the list and its own change is changed only if the
// filter still selects it; otherwise it is counted with the reason. An error of the store ends the page.
func TestBulkRaces(t *testing.T) {
	t.Parallel()
	var during func(*store.ListPage) // set before the request
	fault := &listed{}
	f := newFixture(t, store.Config{})
	fault.Store = f.store
	fault.after = func(p *store.ListPage) {
		if during != nil {
			during(p)
		}
	}
	f.r = f.startWith(router.Options{Store: fault, Time: f.clock, Log: zerolog.Nop()})
	f.fill("a", 3, `"timerafter":"1h","timersvc":"mail","timergroup":"g"`)
	change := func(id string, edit func(*schemas.Record)) {
		tm, err := f.store.Get(t.Context(), schemas.NewTimerID("/test", id))
		if err == nil {
			edit(&tm.Record)
			_, err = f.store.Update(t.Context(), store.Write{ID: tm.ID, Rev: tm.Rev, Record: &tm.Record})
		}
		if err != nil {
			t.Error(err)
		}
	}
	during = func(*store.ListPage) {
		change("a0", func(r *schemas.Record) { r.Group = "moved" })
		change("a1", func(r *schemas.Record) {
			r.State, r.FiredMs, r.Queued = schemas.StateDelivered, time.Now().UnixMilli(), false
		})
	}
	sum, ids := f.pages("bulk.cancel", `"group":"g"`)
	if sum.Matched != 3 || sum.Done != 1 || sum.Refused != 2 || !maps.Equal(sum.Reasons, map[schemas.Code]int{"conflict": 1, "already_fired": 1}) || !slices.Equal(ids, []string{"a2"}) {
		t.Errorf("got %+v of %s, want a2 cancelled and the others refused", sum, ids)
	}
	if got := f.states("a0", "a1", "a2"); got != "pending delivered cancelled" {
		t.Errorf("the states are %s", got)
	}
	during = nil
	fault.fail.Store(true)
	if code, text := f.answer("bulk.cancel", []byte(`{"group":"moved"}`), nil); code != "unavailable" || !strings.Contains(text, "repeat the request") {
		t.Errorf("with a store that does not answer: %s %q", code, text)
	}
	fault.fail.Store(false)
	if sum, _ := f.pages("bulk.cancel", `"group":"moved"`); sum.Done != 1 {
		t.Errorf("the repetition has %+v", sum)
	}
}

// listed is a store that calls after with each page of a list, and whose updates can fail.
type listed struct {
	*store.Store
	after func(*store.ListPage)
	fail  atomic.Bool
}

func (l *listed) List(ctx context.Context, q store.ListQuery) (store.ListPage, error) {
	page, err := l.Store.List(ctx, q)
	l.after(&page)
	return page, err
}

func (l *listed) Update(ctx context.Context, w store.Write) (uint64, error) {
	if l.fail.Load() {
		return 0, schemas.Errorf(schemas.CodeUnavailable, "injected")
	}
	return l.Store.Update(ctx, w)
}

// TestBulkTenants: a bulk operation of a tenant changes its own timers and letters alone; that of
// Belfry's own account on a group changes those of the default tenant.
func TestBulkTenants(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	f.fill("a", 2, `"timerafter":"1h","timersvc":"mail","timergroup":"g"`)
	waittest.Until(t, "format 2", func() bool { return f.store.RecordFormat() == schemas.RecordFormat2 })
	acme := f.r.In(router.Scope{Tenant: "acme"})
	var theirs schemas.TimerID
	waittest.Until(t, "a timer of acme", func() bool {
		reply, err := acme.Add(t.Context(), nil, add("a0", `"timerafter":"1h","timersvc":"mail","timergroup":"g"`))
		theirs = reply.Timer
		return err == nil
	})
	letter := f.dead("d", 3, true)
	state := func() string {
		info, err := acme.Describe(t.Context(), schemas.TimerRef{Timer: theirs.String()})
		if err != nil {
			t.Fatal(err)
		}
		return info.State.String()
	}
	if sum, _ := f.pages("bulk.cancel", `"group":"g"`); sum.Done != 2 || state() != "pending" {
		t.Errorf("Belfry's own account cancels the group: %+v, and acme's timer is %s", sum, state())
	}
	f.fill("b", 1, `"timerafter":"1h","timersvc":"mail","timergroup":"g"`)
	reply, err := acme.BulkCancel(t.Context(), schemas.BulkRequest{Service: "mail"}, schemas.Caller{})
	if err != nil || reply.Done != 1 || state() != "cancelled" {
		t.Errorf("acme cancels its service: %+v, %v", reply, err)
	}
	if got := f.states("b0"); got != "pending" {
		t.Errorf("the timer of the default tenant is %s", got)
	}
	if _, err := acme.BulkCancel(t.Context(), schemas.BulkRequest{Service: "=mail"}, schemas.Caller{}); schemas.CodeOf(err) != schemas.CodeBadRequest {
		t.Errorf("acme names a service of another tenant: %v", err)
	}
	for _, q := range []schemas.BulkDeadRequest{{Service: "mail"}, {Sequence: 1}, {ErrorCode: "http"}, {TimerRef: schemas.TimerRef{Timer: letter.String()}}} {
		reply, err := acme.BulkDiscard(t.Context(), q, schemas.Caller{})
		if err != nil || reply.Matched != 0 {
			t.Errorf("acme discards %+v: %+v, %v", q, reply, err)
		}
	}
	if n := f.letters(); n != 1 {
		t.Errorf("%d letters are left, want 1", n)
	}
}

// TestBulkDiscard: a discard removes the letters that its filter selects, whatever their form, and
// nothing else; the record of the timer stays. The log says who did it, and the letters do not count
// as expired.
func TestBulkDiscard(t *testing.T) {
	t.Parallel()
	log := &logtest.Buffer{}
	f := newFixture(t, store.Config{})
	f.r = f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.New(log)})
	ids := []schemas.TimerID{f.dead("a", 3, true), f.dead("b", 3, false), f.dead("c", 3, true)}
	// A letter without a claim cannot be decoded; it is stored in several parts.
	damaged := store.Msg{Subject: schemas.SubjectDead("mail"), MsgID: "x.dead", Header: map[string][]string{schemas.HeaderErrorCode: {"http"}, "x": {"y"}}, Data: bytes.Repeat([]byte("x"), f.store.MaxMessage())}
	if _, err := f.store.PublishLetter(t.Context(), damaged); err != nil {
		t.Fatal(err)
	}
	discard := func(request string, want int) schemas.BulkDeadReply {
		t.Helper()
		var reply schemas.BulkDeadReply
		if code, text := f.answer("bulk.discard", []byte(request), &reply); code != "" || reply.Matched != want || len(reply.Dead) != want {
			t.Fatalf("%s: %s %s: %+v, want %d letters", request, code, text, reply, want)
		}
		return reply
	}
	discard(`{"service":"none"}`, 0)
	discard(`{"error_code":"timeout"}`, 0)
	discard(`{"sequence":99}`, 0)
	all := discard(`{"service":"mail","dry_run":true}`, 4)
	if all.Done != 0 || all.Dead[0].Timer != ids[0] || f.letters() != 4 {
		t.Errorf("the dry run has %+v", all)
	}
	last := all.Dead[3].Sequence
	discard(fmt.Sprintf(`{"sequence":%d}`, last-1), 0) // a part of the damaged letter
	if page := discard(`{"error_code":"http","dry_run":true,"limit":3}`, 3); page.Cursor == "" {
		t.Error("a page that is not the last has no cursor")
	}
	if reply := discard(fmt.Sprintf(`{"timer":%q,"by":"anna"}`, ids[0]), 1); reply.Done != 1 || reply.Dead[0].ID != "a" {
		t.Errorf("by timer: %+v", reply)
	}
	discard(fmt.Sprintf(`{"timer":%q}`, ids[0]), 0)
	discard(fmt.Sprintf(`{"sequence":%d,"timer":%q}`, all.Dead[1].Sequence, ids[2]), 0)
	discard(fmt.Sprintf(`{"sequence":%d,"timer":%q}`, all.Dead[1].Sequence, ids[1]), 1)
	if got := f.states("a"); got != "fail" {
		t.Errorf("the timer of a discarded letter is %s", got)
	}
	discard(fmt.Sprintf(`{"sequence":%d}`, last), 1)
	if st, err := f.js.Stream(t.Context(), schemas.StreamDead); err != nil || st.CachedInfo().State.Msgs != 1 {
		t.Errorf("the stream has %+v (%v), want the letter of c alone", st.CachedInfo().State, err)
	}
	totals, err := f.store.DeadCounts(t.Context())
	if err != nil || totals.DeadExpired != 0 || totals.Dead["mail"] != 1 {
		t.Errorf("the counts are %+v, %v", totals, err)
	}
	if lines := log.Lines(t, "dead letter discarded"); len(lines) != 3 || lines[0]["timer"] != ids[0].String() || lines[0]["by"] != "anna" || lines[0]["service"] != "mail" {
		t.Errorf("the log has %v", lines)
	}
}

// TestBulkReplay: a replay by filter replays each selected letter once, page by page, and passes by
// letters that cannot be replayed. A letter that comes later is not part of it.
func TestBulkReplay(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	f.dead("a", 3, true)
	damaged := store.Msg{Subject: schemas.SubjectDead("mail"), MsgID: "x.dead", Header: map[string][]string{schemas.HeaderErrorCode: {"http"}}}
	if _, _, err := f.store.Publish(t.Context(), damaged); err != nil {
		t.Fatal(err)
	}
	f.dead("b", 3, false)
	f.dead("c", 3, true)
	var sum schemas.BulkCounts
	var replayed []string
	cursor := ""
	for n := 0; n == 0 || cursor != ""; n++ {
		var page schemas.BulkDeadReply
		if code, text := f.answer("bulk.replay", fmt.Appendf(nil, `{"service":"mail","limit":1,"cursor":%q}`, cursor), &page); code != "" {
			t.Fatal(code, text)
		}
		if n == 0 {
			text, _, _ := strings.Cut(page.Cursor, "/")
			until, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			waittest.Until(t, "the time of the first page is over", func() bool { return time.Now().UnixMilli() > until+1 })
			f.dead("later", 3, true)
		}
		sum.Add(page.BulkCounts)
		for _, d := range page.Dead {
			replayed = append(replayed, d.ID)
		}
		cursor = page.Cursor
	}
	if sum.Matched != 4 || sum.Done != 3 || !maps.Equal(sum.Reasons, map[schemas.Code]int{schemas.CodeDamaged: 1}) || !slices.Equal(replayed, []string{"a", "b", "c"}) {
		t.Errorf("got %+v of %s", sum, replayed)
	}
	if got := f.states("a", "b", "c", "later"); got != "retrying retrying retrying fail" {
		t.Errorf("the states are %s", got)
	}
	if n := f.letters(); n != 2 {
		t.Errorf("%d letters are left, want the damaged and the later one", n)
	}
}

// TestServiceList: services with callbacks, or with messages in a stream, are listed by name, in
// pages, and for a tenant only its own.
func TestServiceList(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	f.dead("d", 3, true) // of service mail
	f.fill("c", 1, `"timerafter":"1h","timersvc":"calls","timercallback":"nats:x"`)
	f.fill("n", 1, `"timerafter":"1h","timersvc":"none"`)
	if _, _, err := f.store.Publish(t.Context(), store.Msg{Subject: schemas.SubjectFired("acme=mail"), MsgID: "1"}); err != nil {
		t.Fatal(err)
	}
	list := func(s *router.Service) (names []string, all []schemas.ServiceInfo) {
		t.Helper()
		for cursor := ""; ; {
			page, err := s.ServiceList(t.Context(), schemas.ServiceListRequest{Limit: 2, Cursor: cursor})
			if err != nil {
				t.Fatal(err)
			}
			for _, info := range page.Services {
				names, all = append(names, schemas.TenantService(info.Tenant, info.Service)), append(all, info)
			}
			if cursor = page.Cursor; cursor == "" {
				return names, all
			}
		}
	}
	names, all := list(f.r.Service)
	if !slices.Equal(names, []string{"acme=mail", "calls", "mail"}) || all[0].Fired != 1 || all[0].Callbacks || !all[1].Callbacks || all[2].Dead != 1 {
		t.Errorf("got %+v", all)
	}
	if names, _ := list(f.r.In(router.Scope{Tenant: "acme"})); !slices.Equal(names, []string{"acme=mail"}) {
		t.Errorf("acme sees %s", names)
	}
	if names, _ := list(f.r.In(router.Scope{})); !slices.Equal(names, []string{"calls", "mail"}) {
		t.Errorf("the default tenant sees %s", names)
	}
	if _, err := f.r.ServiceList(t.Context(), schemas.ServiceListRequest{Limit: -1}); schemas.CodeOf(err) != schemas.CodeBadRequest || errors.Is(err, schemas.ErrNotFound) {
		t.Error(err)
	}
}
