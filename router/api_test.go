package router_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// TestSlowListBlocksNothing uses all permits for lists. Further lists are refused with a
// clear error, while adds, gets and cancels continue.
func TestSlowListBlocksNothing(t *testing.T) {
	t.Parallel()
	var inside atomic.Int32
	free := make(chan struct{})
	f := setupFaulty(t, &faulty{list: func() {
		inside.Add(1)
		<-free
	}})
	release := sync.OnceFunc(func() { close(free) })
	defer release()
	const places = 8
	var wg sync.WaitGroup
	for range places {
		wg.Go(func() {
			if m, err := f.nc.Request(schemas.SubjectAPIPrefix+"list", nil, bound); err != nil || m.Header.Get(micro.ErrorCodeHeader) != "" {
				t.Errorf("got %v, %v", m, err)
			}
		})
	}
	waittest.Until(f.t, "all places are taken", func() bool { return inside.Load() == places })
	m, err := f.nc.Request(schemas.SubjectAPIPrefix+"list", nil, bound)
	if err != nil || m.Header.Get(micro.ErrorCodeHeader) != "unavailable" || !strings.Contains(m.Header.Get(micro.ErrorHeader), "limit") {
		t.Errorf("got %v, %v", m, err)
	}
	if code := f.request("add", add("1", `"timerafter":"1h"`), &schemas.AddReply{}); code != "" {
		t.Error(code)
	}
	for _, verb := range []string{"get", "cancel"} {
		if code := f.request(verb, []byte(`{"id":"1","source":"/test"}`), &schemas.TimerInfo{}); code != "" {
			t.Errorf("%s: %s", verb, code)
		}
	}
	release()
	wg.Wait()
}

// TestTenantLeavesPermits: a tenant whose requests do not end holds a quarter of the permits of
// their kind. The requests of others are still served, and permits come back.
func TestTenantLeavesPermits(t *testing.T) {
	t.Parallel()
	var lists atomic.Int32
	free := make(chan struct{})
	f := setupFaulty(t, &faulty{list: func() {
		if lists.Add(1) <= router.MaxSlowOperations/4 {
			<-free
		}
	}})
	release := sync.OnceFunc(func() { close(free) })
	defer release()
	acme, globex := f.r.In(router.Scope{Tenant: "acme"}), f.r.In(router.Scope{Tenant: "globex"})
	list := func(s *router.Service) error {
		_, err := s.List(t.Context(), schemas.ListRequest{})
		return err
	}
	var wg sync.WaitGroup
	for range router.MaxSlowOperations / 4 {
		wg.Go(func() {
			if err := list(acme); err != nil {
				t.Errorf("a list of acme within its share: %v", err)
			}
		})
	}
	waittest.Until(t, "the share of acme is taken", func() bool { return lists.Load() == router.MaxSlowOperations/4 })
	refused := func(what string, err error) {
		t.Helper()
		if schemas.CodeOf(err) != schemas.CodeUnavailable || !strings.Contains(err.Error(), "for tenant acme") {
			t.Errorf("%s over the share of acme: %v, want unavailable for the tenant", what, err)
		}
	}
	refused("a list", list(acme))
	for _, s := range []*router.Service{globex, f.r.Service} {
		if err := list(s); err != nil {
			t.Errorf("a list of another tenant: %v", err)
		}
	}
	release()
	wg.Wait()
	if err := list(acme); err != nil {
		t.Errorf("a list of acme after its others have ended: %v", err)
	}
}

// TestAddTimeout: the API answers before clients give up, even if the store does not
// answer.
func TestAddTimeout(t *testing.T) {
	t.Parallel()
	free := make(chan struct{})
	f := setupFaulty(t, &faulty{create: func(store.Write) error { <-free; return nil }})
	if code := f.request("add", add("1", `"timerafter":"1h"`), nil); code != "unavailable" {
		t.Errorf("%q", code)
	}
	if router.OperationTimeout > 4500*time.Millisecond {
		t.Errorf("answered after %s; clients wait 5s", router.OperationTimeout)
	}
	close(free)
	f.await("/test", "1") // as the error says, the add may have taken effect
}

func TestServiceInfo(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	m, err := f.nc.Request("$SRV.INFO."+schemas.APIService, nil, bound)
	if err != nil {
		t.Fatal(err)
	}
	var info micro.Info
	if err := json.Unmarshal(m.Data, &info); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for _, verb := range []string{
		"add", "get", "cancel", "reschedule", "list", "export", "dead.list", "dead.replay", "rejected.list", "order.list", "service.list",
		"bulk.cancel", "bulk.reschedule", "bulk.replay", "bulk.discard",
		"schedule.pause", "schedule.resume", "schedule.trigger", "schedule.backfill", "schedule.update", "schedule.delete", "schedule.preview", "schedule.runs", "schedule.why",
		"calendar.put", "calendar.get", "calendar.list", "calendar.delete",
		"flow.set", "flow.get", "flow.list", "flow.pause", "flow.resume", "flow.reset", "flow.delete",
	} {
		want[schemas.SubjectAPIPrefix+verb] = true
	}
	for _, e := range info.Endpoints {
		if !want[e.Subject] || e.QueueGroup == "" || e.Metadata["description"] == "" {
			t.Errorf("got %+v", e)
		}
		delete(want, e.Subject)
	}
	if len(want) > 0 || info.Description == "" {
		t.Errorf("missing: %v in %+v", want, info)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	f := newFixture(t, store.Config{})
	reg := prometheus.NewPedanticRegistry()
	f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.Nop(), Registerer: reg})
	for range 2 {
		if code := f.request("add", add("1", `"timerafter":"1h"`), &schemas.AddReply{}); code != "" {
			t.Fatal(code)
		}
	}
	if code := f.request("add", add("2", `"timerafter":"x"`), nil); code != "invalid_attribute" {
		t.Fatal(code)
	}
	if code := f.request("get", nil, nil); code != "bad_request" {
		t.Fatal(code)
	}
	want := map[string]float64{
		"belfry_adds_total/accepted": 1, "belfry_adds_total/duplicate": 1, "belfry_adds_total/rejected": 1, "belfry_adds_rejected_total/invalid_attribute": 1,
		"belfry_api_requests_total/ok/add": 2, "belfry_api_requests_total/invalid_attribute/add": 1, "belfry_api_requests_total/bad_request/get": 1,
		"belfry_add_batch_size": 2, "belfry_router_panics_total": 0, "belfry_api_replies_refused_total": 0,
	}
	// A request is counted after its answer is sent.
	var got map[string]float64
	defer func() { t.Log(got) }()
	waittest.Until(f.t, "all is counted", func() bool { got = metrictest.Series(t, reg); return maps.Equal(got, want) })
	// Registering the same metrics again is an error, not a panic.
	if _, err := router.New(router.Options{Store: f.store, Time: f.clock, Registerer: reg}); err == nil {
		t.Error("metrics were registered twice without an error")
	}
}

// final gives a write the TTL of a final record.
func final(w store.Write) store.Write {
	if w.Record.State.Final() {
		w.TTL = time.Hour
	}
	return w
}

func (f *fixture) dead(id string, attempt uint32, withRecord bool) schemas.TimerID {
	f.t.Helper()
	hdr := nats.Header{}
	data := add(id, `"timerafter":"1s","timersvc":"mail","timercallback":"nats:x","timermaxattempts":"3","data":{"a":1}`)
	nowMs := time.Now().UnixMilli()
	body, spec, err := schemas.ParseAdd(hdr, data, nowMs, schemas.Limits{})
	if err != nil {
		f.t.Fatal(err)
	}
	rec := schemas.Record{
		Definition: schemas.Definition{AddedMs: nowMs, Hash: spec.Hash, Service: spec.Service, Callback: spec.Callback, Source: spec.Source, EventID: spec.EventID, Type: spec.Type},
		RunState:   schemas.RunState{State: schemas.StateFail, Run: 1, Attempt: attempt, MaxAttempt: 3, DueMs: spec.DueMs, ScheduledMs: spec.DueMs, FiredMs: nowMs, DoneMs: nowMs},
	}
	if withRecord {
		if res := f.store.Create(f.t.Context(), []store.Write{final(store.Write{ID: spec.Timer, Record: &rec})}); res[0].Err != nil {
			f.t.Fatal(res[0].Err)
		}
	}
	m := store.Msg{Subject: schemas.SubjectDead("mail"), MsgID: spec.Timer.RetryMsgID(1, attempt) + ".dead"}
	m.Header, m.Data = body.DeadMessage(schemas.Fired{ScheduledMs: spec.DueMs, FiredMs: nowMs, Run: 1, Attempt: attempt}, "http", "no")
	claim := schemas.Claim{Timer: spec.Timer, Run: 1, Attempt: attempt, MaxAttempt: 3, AddedMs: nowMs, FiredMs: nowMs, Hash: spec.Hash}
	m.Header[schemas.HeaderClaim] = []string{claim.String()}
	m.Header[schemas.HeaderErrorCode] = []string{"http"}
	if _, _, err := f.store.Publish(f.t.Context(), m); err != nil {
		f.t.Fatal(err)
	}
	return spec.Timer
}

func (f *fixture) letters() int {
	f.t.Helper()
	var page schemas.DeadListReply
	if code := f.request("dead.list", []byte(`{"service":"mail"}`), &page); code != "" {
		f.t.Fatal(code)
	}
	return len(page.Dead)
}

func (f *fixture) update(id string, change func(*schemas.Record)) {
	f.t.Helper()
	tm := f.await("/test", id)
	change(&tm.Record)
	if _, err := f.store.Update(f.t.Context(), final(store.Write{ID: tm.ID, Rev: tm.Rev, Record: &tm.Record})); err != nil {
		f.t.Fatal(err)
	}
}

func TestReplay(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	f := setupFaulty(t, &faulty{deadDelete: func() error {
		if broken.Load() {
			return schemas.ErrUnavailable
		}
		return nil
	}})
	replayed := func(id string, attempts, most uint32) {
		t.Helper()
		tm := f.await("/test", id)
		r := tm.Record
		if r.State != schemas.StateRetrying || !r.Queued || r.Attempt != attempts || r.MaxAttempt != most || r.Replayed != attempts || r.DueMs > time.Now().UnixMilli()+1000 {
			t.Errorf("%s: %+v", id, r)
		}
		e, err := r.Body.Event()
		if err != nil || string(e.Data()) != `{"a":1}` {
			t.Errorf("%s: %v %v", id, e, err)
		}
	}
	var reply schemas.ReplayReply
	f.dead("kept", 3, true)
	f.dead("expired", 3, false)
	for _, id := range []string{"kept", "expired"} {
		if code := f.request("dead.replay", fmt.Appendf(nil, `{"id":%q,"source":"/test"}`, id), &reply); code != "" || reply.Replayed != 1 {
			t.Errorf("%s: %s %+v", id, code, reply)
		}
		replayed(id, 3, 6)
	}
	if n := f.letters(); n != 0 {
		t.Errorf("%d letters are left", n)
	}

	// A replay that was interrupted between record and dead letter, and is repeated,
	// replays once.
	id := f.dead("halfway", 3, true)
	broken.Store(true)
	req := fmt.Appendf(nil, `{"timer":%q}`, id)
	if code := f.request("dead.replay", req, nil); code != "unavailable" {
		t.Error(code)
	}
	before := f.await("/test", "halfway")
	broken.Store(false)
	if code := f.request("dead.replay", req, &reply); code != "" {
		t.Error(code)
	}
	if after := f.await("/test", "halfway"); after.Rev != before.Rev || f.letters() != 0 {
		t.Errorf("revision %d, then %d", before.Rev, after.Rev)
	}

	// The dead letter exists before the record is final: too early to replay.
	f.dead("early", 3, true)
	f.update("early", func(r *schemas.Record) { r.State, r.Attempt = schemas.StateDelivered, 2 })
	if code := f.request("dead.replay", []byte(`{"id":"early","source":"/test"}`), nil); code != "unavailable" || f.letters() != 1 {
		t.Errorf("%q, %d letters", code, f.letters())
	}
	f.update("early", func(r *schemas.Record) { r.State, r.Attempt = schemas.StateFail, 3 })

	// The timer's ID belongs to another timer by now, so the dead letter stays.
	f.dead("taken", 3, true)
	f.update("taken", func(r *schemas.Record) { r.Hash[0]++ })
	if code := f.request("dead.replay", []byte(`{"id":"taken","source":"/test"}`), nil); code != "conflict" || f.letters() != 2 {
		t.Errorf("%q, %d letters", code, f.letters())
	}

	// Replay a whole service in several steps, with a dead letter among them that cannot
	// be replayed.
	const n = 20
	for i := range n {
		f.dead(fmt.Sprint("many", i), 1, i%2 == 0)
	}
	total := 0
	for calls := 0; calls < n; calls++ {
		if code := f.request("dead.replay", []byte(`{"service":"mail","limit":7}`), &reply); code != "" {
			t.Fatal(code)
		}
		if total += reply.Replayed; !reply.More {
			break
		}
	}
	if total != n+1 || f.letters() != 1 { // and "early"
		t.Errorf("%d replayed, %d letters left", total, f.letters())
	}
	replayed("many3", 1, 4)
}

// TestUnknownFields: a request with an unknown field is refused, and the answer lists the fields. A
// misspelled filter would otherwise select everything. So is a field in the wrong case or twice, and a
// request with more than one object.
func TestUnknownFields(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	for _, x := range []struct{ verb, data, want string }{
		{"list", `{"states":["pending"]}`, `unknown field "states": this operation has the fields state, `},
		{"cancel", `{"id":"1","source":"/test","force":true}`, `unknown field "force"`},
		{"schedule.pause", `{"groups":"g"}`, `unknown field "groups"`},
		{"dead.list", `{"service":"s","limt":1}`, `unknown field "limt"`},
		{"list", `{"Limit":1}`, `unknown field "Limit"`},
		{"dead.replay", `{"service":"s","service":"t"}`, `field "service" twice`},
		{"calendar.list", `{"name":"c"}`, `no fields`},
		{"list", `{} {}`, "more data follows the object"},
		{"list", `{`, "not the JSON object expected"},
	} {
		if code, text := f.answer(x.verb, []byte(x.data), new(json.RawMessage)); code != "bad_request" || !strings.Contains(text, x.want) {
			t.Errorf("%s %s: %s %q, want bad_request and %q", x.verb, x.data, code, text, x.want)
		}
	}
	if code, text := f.answer("list", []byte("{\"limit\":1} \n"), new(schemas.ListReply)); code != "" {
		t.Errorf("a known field: %s %s", code, text)
	}
}
