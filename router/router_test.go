package router_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cenats "github.com/cloudevents/sdk-go/protocol/nats/v2"
	cejs "github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2"
	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/belfryio/belfry/internal/clustertime"
	"github.com/belfryio/belfry/internal/endpoint"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/router/natsapi"
	"github.com/belfryio/belfry/schemas"
)

func TestMain(m *testing.M) {
	natstest.MaybeServe()
	waittest.Parallel(8)
	goleak.VerifyTestMain(m)
}

// bound is the time limit of a wait in a test. No wait takes that long on a busy machine.
const bound = waittest.Bound

type fixture struct {
	t     *testing.T
	srv   *natstest.Server
	nc    *nats.Conn
	js    jetstream.JetStream
	store *store.Store
	clock *clustertime.Service
	r     *node
}

// setup starts a router on its own server.
func setup(t *testing.T, cfg store.Config) *fixture {
	t.Helper()
	f := newFixture(t, cfg)
	f.r = f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.Nop()})
	return f
}

// newFixture prepares everything but the router.
func newFixture(t *testing.T, cfg store.Config) *fixture {
	t.Helper()
	testsize.Brief(t, "a server for each test", "TestAPI", "TestRepeatedAdds", "TestBadInputStopsNothing", "TestAddSchedule", "TestTrigger")
	srv := natstest.Run(t)
	f := newFixtureOn(t, srv.Connect(), cfg)
	f.srv = srv
	return f
}

func newFixtureOn(t *testing.T, nc *nats.Conn, cfg store.Config) *fixture {
	t.Helper()
	f := &fixture{t: t, nc: nc, js: natstest.JetStream(t, nc)}
	var err error
	cfg.Node = cmp.Or(cfg.Node, "n1")
	if f.store, err = store.Open(t.Context(), f.nc, cfg, zerolog.Nop()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.store.Close)
	f.clock = clustertime.NewService(func(ctx context.Context) (clustertime.Reading, error) {
		st, err := f.store.Beat(ctx)
		return clustertime.Reading{Sent: st.Sent, Received: st.Received, ServerNs: st.ServerNs}, err
	}, 0, zerolog.Nop())
	f.clock.Start()
	t.Cleanup(f.clock.Stop)
	return f
}

// node is a router with its NATS endpoint.
type node struct {
	*router.Service
	nats *natsapi.Server
}

func (n *node) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, router.StopTimeout)
	defer cancel()
	err := n.nats.Stop(ctx)
	n.Service.Stop(ctx)
	return err
}

// newNode creates a node, with defaults for unset options, and does not start it.
func (f *fixture) newNode(o router.Options, inboxes ...string) (*node, error) {
	if o.Dedup == nil {
		o.Dedup = f.store.NewDedupCheck()
	}
	s, err := router.New(o)
	if err != nil {
		return nil, err
	}
	n, err := natsapi.New(natsapi.Options{
		Service: s, OpenInbox: f.store.OpenInbox, OpenTenantInbox: f.store.OpenTenantInbox, Conn: endpoint.On(f.nc), Inboxes: inboxes, Log: o.Log, Registerer: o.Registerer,
	})
	return &node{s, n}, err
}

// startWith starts a node, and stops it when the test ends.
func (f *fixture) startWith(o router.Options, inboxes ...string) *node {
	f.t.Helper()
	n, err := f.newNode(o, inboxes...)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := n.Start(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	if err := n.nats.Start(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	// As the program does: a request on another connection finds the subscriptions.
	if err := f.nc.FlushTimeout(bound); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := n.Stop(context.Background()); err != nil {
			f.t.Error(err)
		}
	})
	return n
}

func add(id, more string) []byte {
	return fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":"/test","type":"t",%s}`, id, more)
}

// await waits until the record is stored.
func (f *fixture) await(source, id string) store.Timer {
	f.t.Helper()
	var tm store.Timer
	var err error
	waittest.Until(f.t, "timer "+source+" "+id+" is stored", func() bool {
		tm, err = f.store.Get(f.t.Context(), schemas.NewTimerID(source, id))
		return err == nil
	}, func() string { return err.Error() })
	return tm
}

// request sends a request to the API and returns the code of the error, if any.
func (f *fixture) request(verb string, data []byte, reply any) string {
	f.t.Helper()
	code, _ := f.answer(verb, data, reply)
	return code
}

// answer sends a request to the API and returns the code and the text of the error, if
// any.
func (f *fixture) answer(verb string, data []byte, reply any) (code, text string) {
	f.t.Helper()
	m, err := f.nc.Request(schemas.SubjectAPIPrefix+verb, data, bound)
	if err != nil {
		f.t.Fatalf("%s: %v", verb, err)
	}
	if code := m.Header.Get(micro.ErrorCodeHeader); code != "" {
		if m.Header.Get(micro.ErrorHeader) == "" {
			f.t.Errorf("%s: error %s without a text", verb, code)
		}
		return code, m.Header.Get(micro.ErrorHeader)
	}
	if err := json.Unmarshal(m.Data, reply); err != nil {
		f.t.Fatalf("%s: %v in %s", verb, err, m.Data)
	}
	return "", ""
}

// available returns the answer to a request. It repeats the request while the router is unavailable.
func available[T any](t *testing.T, request string, send func() (T, error)) (answer T, err error) {
	t.Helper()
	waittest.Available(t, request, func() bool {
		answer, err = send()
		return schemas.CodeOf(err) == schemas.CodeUnavailable
	}, func() string { return fmt.Sprint(err) })
	return answer, err
}

// addTo adds a timer. It repeats the add while the router is unavailable.
func addTo(t *testing.T, n *router.Service, id, more string) (schemas.AddReply, error) {
	t.Helper()
	return available(t, "the add of "+id, func() (schemas.AddReply, error) { return n.Add(t.Context(), nil, add(id, more)) })
}

// cancelIn cancels a timer of source /test. It repeats the request while the router is unavailable.
func cancelIn(t *testing.T, n *router.Service, id string) {
	t.Helper()
	q := schemas.CancelRequest{TimerRef: schemas.TimerRef{Source: "/test", ID: id}}
	if _, err := available(t, "the cancel of "+id, func() (store.Timer, error) { return n.Cancel(t.Context(), q, schemas.Caller{}) }); err != nil {
		t.Fatal(err)
	}
}

// rejected reads n messages of timers.rejected.
func (f *fixture) rejected(n int) []jetstream.Msg {
	f.t.Helper()
	c, err := f.js.OrderedConsumer(f.t.Context(), schemas.StreamRejected, jetstream.OrderedConsumerConfig{FilterSubjects: []string{schemas.SubjectRejected}})
	if err != nil {
		f.t.Fatal(err)
	}
	it, err := c.Messages()
	if err != nil {
		f.t.Fatal(err)
	}
	defer it.Stop()
	var out []jetstream.Msg
	for range n {
		m, err := it.Next(jetstream.NextMaxWait(bound))
		if err != nil {
			f.t.Fatalf("after %d of %d rejected adds: %v", len(out), n, err)
		}
		out = append(out, m)
	}
	return out
}

// TestClientsThatKnowNothing publishes adds like ordinary NATS clients.
func TestClientsThatKnowNothing(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	if err := f.nc.Publish(schemas.SubjectAdd, add("plain", `"timerafter":"1h"`)); err != nil {
		t.Fatal(err)
	}
	ack, err := f.js.PublishMsg(t.Context(), &nats.Msg{Subject: schemas.SubjectAdd, Data: []byte("data"), Header: nats.Header{
		"ce-specversion": {"1.0"}, "ce-id": {"binary"}, "ce-source": {"/test"}, "ce-type": {"t"}, "ce-timerafter": {"1h"}, "content-type": {"text/plain"}}})
	if err != nil || ack.Stream != schemas.StreamAdd {
		t.Fatalf("got %v, %v", ack, err)
	}
	for _, mode := range []string{"structured", "binary"} {
		ctx := binding.WithForceStructured(t.Context())
		if mode == "binary" {
			ctx = binding.WithForceBinary(t.Context())
		}
		e := cloudevents.NewEvent()
		e.SetSource("/sdk")
		e.SetType("t")
		e.SetExtension("timerafter", "PT1H")
		e.SetExtension("mine", "a b%")
		if err := e.SetData(cloudevents.ApplicationJSON, map[string]int{"a": 1}); err != nil {
			t.Fatal(err)
		}
		core, err := cenats.NewSender(f.srv.URL(), schemas.SubjectAdd, cenats.NatsOptions())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = core.Close(context.Background()) })
		e.SetID("core-" + mode)
		if err := core.Send(ctx, (*binding.EventMessage)(&e)); err != nil {
			t.Fatal(err)
		}
		js, err := cejs.NewSenderFromConn(f.nc, schemas.StreamAdd, schemas.SubjectAdd, nil)
		if err != nil {
			t.Fatal(err)
		}
		e.SetID("js-" + mode)
		if err := js.Send(ctx, (*binding.EventMessage)(&e)); err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"core-", "js-"} {
			tm := f.await("/sdk", kind+mode)
			got, err := tm.Record.Body.Event()
			if err != nil {
				t.Fatal(err)
			}
			if string(got.Data()) != `{"a":1}` || got.Extensions()["mine"] != "a b%" || got.DataContentType() != cloudevents.ApplicationJSON {
				t.Errorf("%s%s: %v", kind, mode, got)
			}
		}
	}
	for _, id := range []string{"plain", "binary"} {
		tm := f.await("/test", id)
		if tm.Record.State != schemas.StatePending || tm.Record.DueMs-tm.Record.AddedMs != 3_600_000 || tm.StoredMs < tm.Record.AddedMs-1 {
			t.Errorf("%s: %+v", id, tm.Record)
		}
	}
}

func TestBadInputStopsNothing(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	bad := []struct{ data, code string }{
		{"not json", "invalid_event"}, {"", "invalid_event"}, {"{", "invalid_event"}, {`{"specversion":"1.0"}`, "invalid_event"},
		{string(add("a", `"timerafter":-5`)), "invalid_attribute"}, {string(add("a", `"timerafter":"-5s"`)), "invalid_attribute"},
		{string(add("a", `"timerat":"0001-01-01T00:00:00Z"`)), "invalid_attribute"}, {string(add("a", `"timerat":"9999-12-31T00:00:00Z"`)), "invalid_attribute"},
		{string(add("a", `"timerafter":"1s","timersvc":"a.b"`)), "invalid_attribute"}, {string(add("a", `"timerafter":"1s","timersvc":"*"`)), "invalid_attribute"},
		{string(add("a", `"timerafter":"1s","timersvc":">"`)), "invalid_attribute"}, {string(add("a", `"timerafter":"1s","timersvc":""`)), "invalid_attribute"},
		{string(add("a", `"timerafter":"1s","timersvc":"ü"`)), "invalid_attribute"}, {string(add("a", `"timerafter":"1s","timerflow":"or ders"`)), "invalid_attribute"},
		{string(add("a", `"timerafter":"1s","timercron":"* * * * *"`)), "invalid_attribute"}, {string(add("a", `"timercron":"* * * *"`)), "invalid_attribute"},
		{string(add("a", `"timerafter":"1s","data":"`+strings.Repeat("x", 1<<20-20_000)+`","more":"`+strings.Repeat("y", 5000)+`"`)), "too_large"},
	}
	// Headers that look like a status of the server are ordinary headers of an add.
	looks := []nats.Header{{"Status": {"404"}}, {"Status": {"100"}}, {"Status": {"409"}, "Description": {"Consumer Deleted"}}}
	for range looks {
		bad = append(bad, bad[1])
	}
	for i, b := range bad {
		hdr := nats.Header{"X-Mine": {fmt.Sprint(i)}}
		if n := i - len(bad) + len(looks); n >= 0 {
			maps.Copy(hdr, looks[n])
		}
		if _, err := f.js.PublishMsg(t.Context(), &nats.Msg{Subject: schemas.SubjectAdd, Header: hdr, Data: []byte(b.data)}); err != nil {
			t.Fatal(err)
		}
		if _, err := f.js.Publish(t.Context(), schemas.SubjectAdd, add(fmt.Sprint("good", i), `"timerafter":"1h"`)); err != nil {
			t.Fatal(err)
		}
	}
	for i := range bad {
		f.await("/test", fmt.Sprint("good", i))
	}
	seen := map[string]jetstream.Msg{}
	for _, m := range f.rejected(len(bad)) {
		seen[m.Headers().Get("X-Mine")] = m
	}
	for i, b := range bad {
		m := seen[fmt.Sprint(i)]
		if m == nil {
			t.Errorf("%.60q is not on %s", b.data, schemas.SubjectRejected)
			continue
		}
		if string(m.Data()) != b.data || m.Headers().Get(schemas.HeaderErrorCode) != b.code || m.Headers().Get(schemas.HeaderError) == "" || m.Headers().Get(schemas.HeaderOriginalSequence) == "" || m.Headers().Get("Status") != "" {
			t.Errorf("%.60q: rejected with %v", b.data, m.Headers())
		}
	}
	if _, err := f.js.Publish(t.Context(), schemas.SubjectAdd, make([]byte, 2<<20)); err == nil {
		t.Error("the server took a message of 2 MB")
	}
}

func TestRepeatedAdds(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	var first, again schemas.AddReply
	if code := f.request("add", add("x", `"timerafter":"1h","time":"2026-01-01T00:00:00Z"`), &first); code != "" {
		t.Fatal(code)
	}
	if code := f.request("add", add("x", `"timerafter":"1h","time":"2026-01-01T00:00:01Z"`), &again); code != "" {
		t.Fatal(code)
	}
	if first.Duplicate || !again.Duplicate || first.Timer != again.Timer || !first.Due.Equal(again.Due) {
		t.Errorf("%+v, then %+v", first, again)
	}
	for _, other := range []string{`"timerafter":"2h"`, `"timerafter":"1h","data":1`, `"timerat":"2030-01-01T00:00:00Z"`} {
		if code := f.request("add", add("x", other), nil); code != "conflict" {
			t.Errorf("%s: %q", other, code)
		}
	}
	// Of many concurrent adds with the same ID, one creates a timer and all others are
	// duplicates.
	var wg sync.WaitGroup
	var mu sync.Mutex
	accepted := 0
	for range 50 {
		wg.Go(func() {
			m, err := f.nc.Request(schemas.SubjectAPIPrefix+"add", add("many", `"timerafter":"1h"`), bound)
			var r schemas.AddReply
			switch {
			case err != nil:
			case m.Header.Get(micro.ErrorCodeHeader) != "":
				err = errors.New(m.Header.Get(micro.ErrorHeader))
			default:
				err = json.Unmarshal(m.Data, &r)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			} else if !r.Duplicate {
				accepted++
			}
		})
	}
	wg.Wait()
	if accepted != 1 {
		t.Errorf("%d of 50 equal adds made a timer", accepted)
	}
	// A conflicting add on the stream is rejected.
	if _, err := f.js.Publish(t.Context(), schemas.SubjectAdd, add("x", `"timerafter":"3h"`)); err != nil {
		t.Fatal(err)
	}
	if m := f.rejected(1)[0]; m.Headers().Get(schemas.HeaderErrorCode) != "conflict" {
		t.Errorf("got %v", m.Headers())
	}
}

func TestAPI(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	for i := range 30 {
		if code := f.request("add", add(fmt.Sprint(i), fmt.Sprintf(`"timerafter":"%dm","timersvc":"svc%d","timergroup":"g%d"`, i+1, i%3, i%2)), &schemas.AddReply{}); code != "" {
			t.Fatal(code)
		}
	}
	var info schemas.TimerInfo
	byID := []byte(`{"id":"7","source":"/test"}`)
	if code := f.request("get", byID, &info); code != "" || info.State != schemas.StatePending || info.Service != "svc1" || info.Group != "g1" {
		t.Fatalf("%s %+v", code, info)
	}
	byTimer := fmt.Appendf(nil, `{"timer":%q}`, info.Timer)
	if code := f.request("reschedule", fmt.Appendf(nil, `{"timer":%q,"at":"2027-06-01T00:00:00.5Z"}`, info.Timer), &info); code != "" || schemas.FormatTime(info.Due.UnixMilli()) != "2027-06-01T00:00:00.500Z" {
		t.Errorf("%s %+v", code, info)
	}
	for range 2 {
		if code := f.request("cancel", byTimer, &info); code != "" || info.State != schemas.StateCancelled {
			t.Errorf("%s %+v", code, info)
		}
	}
	tm := f.await("/test", "7")
	if len(tm.Record.Body.Data) > 0 || tm.Record.Queued {
		t.Errorf("a cancelled record still has its event: %+v", tm.Record)
	}
	for req, want := range map[string]string{
		"get {}": "bad_request", "get x": "bad_request", `get {"timer":"zz"}`: "invalid_timer_id", `get {"id":"no","source":"/test"}`: "not_found",
		`cancel {"id":"no","source":"/test"}`: "not_found", `reschedule {"id":"8","source":"/test"}`: "bad_request",
		`reschedule {"id":"8","source":"/test","after":"-1s"}`: "invalid_attribute", `reschedule {"id":"8","source":"/test","at":"x"}`: "invalid_attribute",
		`reschedule {"id":"7","source":"/test","after":"1s"}`: "already_done", `list {"limit":100000}`: "bad_request", `list {"cursor":"x"}`: "bad_request",
		`list {"state":["odd"]}`: "bad_request", `dead.replay {}`: "bad_request", `dead.replay {"id":"8","source":"/test"}`: "not_found", `dead.list {"service":"a.b"}`: "bad_request",
	} {
		verb, body, _ := strings.Cut(req, " ")
		if code := f.request(verb, []byte(body), nil); code != want {
			t.Errorf("%s: %q, want %q", req, code, want)
		}
	}
	// Lists with pages and filters.
	seen := map[schemas.TimerID]bool{}
	for cursor, pages := "", 0; ; pages++ {
		var page schemas.ListReply
		if code := f.request("list", fmt.Appendf(nil, `{"state":["pending"],"service":"svc1","limit":3,"cursor":%q}`, cursor), &page); code != "" {
			t.Fatal(code)
		}
		for _, i := range page.Timers {
			if i.Service != "svc1" || i.State != schemas.StatePending || seen[i.Timer] {
				t.Errorf("got timer %+v", i)
			}
			seen[i.Timer] = true
		}
		if cursor = page.Cursor; cursor == "" {
			break
		}
		if pages > 20 {
			t.Fatal("the pages do not end")
		}
	}
	if len(seen) != 9 {
		t.Errorf("%d timers of svc1 are listed, 9 wait", len(seen))
	}
	// A timer that has fired can be neither cancelled nor rescheduled.
	tm = f.await("/test", "9")
	tm.Record.State, tm.Record.Queued, tm.Record.FiredMs = schemas.StateDelivered, false, 1
	if _, err := f.store.Update(t.Context(), store.Write{ID: tm.ID, Rev: tm.Rev, Record: &tm.Record}); err != nil {
		t.Fatal(err)
	}
	for _, req := range []string{"cancel {%s}", `reschedule {%s,"after":"1s"}`} {
		verb, body, _ := strings.Cut(fmt.Sprintf(req, `"id":"9","source":"/test"`), " ")
		if code := f.request(verb, []byte(body), nil); code != "already_fired" {
			t.Errorf("%s: %q", verb, code)
		}
	}
	// The API is listed as a NATS micro service.
	m, err := f.nc.Request("$SRV.INFO.timers", nil, bound)
	if err != nil || !strings.Contains(string(m.Data), "timers.api.reschedule") {
		t.Errorf("got %v, %v", m, err)
	}
}

// TestCancelRace: of a concurrent cancel and claim of a timer, exactly one wins.
func TestCancelRace(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	const n = 10_000
	cancels, claims := 0, 0
	var writes []store.Write
	for i := range n {
		writes = append(writes, store.Write{ID: schemas.NewTimerID("/race", fmt.Sprint(i)), Record: &schemas.Record{
			Definition: schemas.Definition{Service: "s"},
			RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, DueMs: time.Now().UnixMilli()},
		}})
	}
	revs := make([]store.Result, 0, n)
	for some := range slices.Chunk(writes, 500) {
		revs = append(revs, f.store.Create(t.Context(), some)...)
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	for i, w := range writes {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			claimed := make(chan error, 1)
			rec := *w.Record
			rec.State, rec.Queued = schemas.StateDelivered, false
			rec.FiredMs = rec.DueMs
			claim := func() {
				f.store.UpdateAsync(store.Write{ID: w.ID, Rev: revs[i].Rev, Record: &rec}, func(r store.Result) { claimed <- r.Err })
			}
			if i%2 == 0 {
				claim()
			}
			m, err := f.nc.Request(schemas.SubjectAPIPrefix+"cancel", fmt.Appendf(nil, `{"timer":%q}`, w.ID), bound)
			if i%2 == 1 {
				claim()
			}
			if err != nil {
				t.Error(err)
				return
			}
			cancelled := m.Header.Get(micro.ErrorCodeHeader) == ""
			cerr := <-claimed
			mu.Lock()
			defer mu.Unlock()
			switch {
			case cancelled == (cerr == nil):
				t.Errorf("cancelled %v, claim %v", cancelled, cerr)
			case cancelled:
				cancels++
			default:
				claims++
			}
			if cerr != nil && !errors.Is(cerr, store.ErrRevision) {
				t.Error(cerr)
			}
		})
	}
	wg.Wait()
	t.Logf("%d cancels won, %d claims", cancels, claims)
}

func TestStopTwiceAndUnstarted(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	for range 3 {
		if err := f.r.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	r, err := f.newNode(router.Options{Store: f.store, Time: &clustertime.Service{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}
