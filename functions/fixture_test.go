package functions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/functions/natscall"
	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// rig is a real server and a real store, on which a test starts functions.
type rig struct {
	t      *testing.T
	server *natstest.Server
	nc     *nats.Conn
	store  *store.Store
	log    *logtest.Buffer
	n      int
}

func newRig(t *testing.T) *rig { return newRigWith(t, 0) }

// newRigWith uses a store with the given ServiceGrace; 0 is the default.
func newRigWith(t *testing.T, grace time.Duration) *rig {
	t.Helper()
	testsize.Brief(t, "a server for each test", "TestSuccessOverHTTP", "TestSuccessOverNATS", "TestFailuresEndAsDocumented", "TestRetryThenSuccessCountsAttempts", "TestFlowSlotsReturned")
	r := &rig{t: t, server: natstest.Run(t), log: &logtest.Buffer{}}
	r.nc = r.server.Connect()
	var err error
	r.store, err = store.Open(t.Context(), r.nc, store.Config{
		Node: "test", AddMaxBytes: 8 << 20, FiredMaxBytes: 64 << 20, RetryMaxBytes: 64 << 20, DeadMaxBytes: 64 << 20, ShardMaxBytes: 64 << 20,
		ServiceGrace: grace, Timeout: time.Minute, // the disk may stand still for seconds
	}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.store.Close)
	return r
}

// natsCalls returns an Invoker for callbacks over NATS. Its subscription ends with r.nc.
func (r *rig) natsCalls() callback.Invoker { return natscall.New(r.nc) }

func nowMs() int64 { return time.Now().UnixMilli() } // the server runs on this host's clock

// start starts functions, with options that change may modify. They stop when the test
// ends.
func (r *rig) start(change func(*Options)) *Functions {
	r.t.Helper()
	o := Options{Store: r.store, NATS: r.natsCalls(), Now: nowMs, Log: zerolog.New(r.log), AllowLoopback: true, AckWait: time.Second, StopGrace: 2 * time.Second}
	if change != nil {
		change(&o)
	}
	f, err := New(o)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := f.Start(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = f.Stop(context.Background()) })
	return f
}

type timer struct {
	svc, callback string // svc of a tenant is <tenant>=<service>
	attributes    map[string]string
	attempt       uint32 // attempts that were recorded before
}

// fire creates a record, claims it and publishes the event, as a scheduler does.
func (r *rig) fire(x timer) schemas.TimerID {
	r.t.Helper()
	r.n++
	if x.svc == "" {
		x.svc = "s"
	}
	tenant, svc := schemas.SplitService(x.svc)
	hdr := nats.Header{
		"ce-specversion": {"1.0"}, "ce-id": {fmt.Sprint(r.n)}, "ce-source": {"/test"}, "ce-type": {"t"}, "content-type": {"text/plain"},
		"ce-timersvc": {svc}, "ce-timerafter": {"1ms"}, "ce-timerbackoff": {"20ms..1s"}, "ce-timermaxattempts": {"3"}, "ce-timertimeout": {"10s"},
	}
	if x.callback != "" {
		hdr["ce-timercallback"] = []string{x.callback}
	}
	for k, v := range x.attributes {
		hdr["ce-"+k] = []string{v}
	}
	return r.fireOf(tenant, hdr, []byte("hello"), x.attempt)
}

// fireEvent adds an event of the default tenant and fires it.
func (r *rig) fireEvent(hdr nats.Header, data []byte, attempt uint32) schemas.TimerID {
	r.t.Helper()
	return r.fireOf("", hdr, data, attempt)
}

// fireOf adds an event of a tenant and fires it.
func (r *rig) fireOf(tenant string, hdr nats.Header, data []byte, attempt uint32) schemas.TimerID {
	r.t.Helper()
	now := nowMs()
	body, spec, err := schemas.ParseAdd(hdr, data, now, schemas.Limits{Tenant: tenant})
	if err != nil {
		r.t.Fatal(err)
	}
	if spec.Callback == "" { // a service without callbacks has no consumer of its own
		if err := r.store.WakeService(r.t.Context(), store.Feed{Service: spec.Service}); err != nil {
			r.t.Fatal(err)
		}
	}
	rec := schemas.Record{
		Definition: schemas.Definition{AddedMs: now, Hash: spec.Hash, Service: spec.Service, Group: spec.Group, Callback: spec.Callback, Source: spec.Source, EventID: spec.EventID, Type: spec.Type, Key: spec.Key, Body: body},
		RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, MaxAttempt: spec.MaxAttempts, DueMs: now, ScheduledMs: now},
	}
	id := spec.Timer
	w := store.Write{ID: id, Record: &rec}
	res := r.store.Create(r.t.Context(), []store.Write{w})[0]
	if res.Err != nil {
		r.t.Fatal(res.Err)
	}
	rec.Attempt = attempt
	r.claim(store.Timer{ID: id, Rev: res.Rev, Record: rec})
	return id
}

// claim claims a due timer and publishes its event, as a scheduler does.
func (r *rig) claim(t store.Timer) {
	r.t.Helper()
	rec := t.Record
	rec.State, rec.Queued, rec.FiredMs, rec.NextMs, rec.Epoch = schemas.StateDelivered, false, nowMs(), 0, 1
	rev, err := r.store.Update(r.t.Context(), store.Write{ID: t.ID, Rev: t.Rev, Record: &rec})
	if err != nil {
		r.t.Fatal(err)
	}
	hdr, data := rec.Body.Message(schemas.Fired{ScheduledMs: rec.ScheduledMs, FiredMs: rec.FiredMs, Run: rec.Run, Attempt: rec.Attempt + 1})
	hdr[schemas.HeaderClaim] = []string{schemas.NewClaim(t.ID, rev, &rec).String()}
	if rec.Deferral != nil || rec.Key != "" {
		hdr[schemas.HeaderExtended] = []string{"1"}
	}
	m := store.Msg{Subject: schemas.SubjectFired(rec.Service), MsgID: t.ID.MsgID(rec.Run), Header: hdr, Data: data}
	if rec.Callback != "" {
		m.Service = rec.Service
	}
	if n := rec.Deferrals(); rec.Attempt > 0 || n > 0 {
		m.Subject, m.MsgID = schemas.SubjectRetry(rec.Service), rec.RunID(t.ID).RetryMsgIDAfter(rec.Attempt+1, n)
	}
	if _, _, err := r.store.Publish(r.t.Context(), m); err != nil {
		r.t.Fatal(err)
	}
}

// get reads a record.
func (r *rig) get(id schemas.TimerID) store.Timer {
	r.t.Helper()
	t, err := r.store.Get(r.t.Context(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	return t
}

// await waits until a record has a state.
func (r *rig) await(id schemas.TimerID, want schemas.State) schemas.Record {
	r.t.Helper()
	var got schemas.Record
	waittest.Until(r.t, "state "+want.String(), func() bool {
		t, err := r.store.Get(r.t.Context(), id)
		got = t.Record
		return err == nil && got.State == want
	})
	return got
}

// settled waits until the service's consumers have nothing left.
func (r *rig) settled(svc string) {
	r.t.Helper()
	waittest.Until(r.t, "nothing left to acknowledge", func() bool {
		for _, k := range []store.Kind{store.KindFired, store.KindRetry} {
			info, err := r.lookUp(svc, k)
			if errors.Is(err, jetstream.ErrConsumerNotFound) {
				if k == store.KindRetry {
					continue // no retries were published
				}
				return false
			}
			if err != nil {
				r.t.Fatal(err)
			}
			if info.NumAckPending > 0 || info.NumPending > 0 {
				return false
			}
		}
		return true
	})
}

func (r *rig) consumer(svc string, k store.Kind) *jetstream.ConsumerInfo {
	r.t.Helper()
	info, err := r.lookUp(svc, k)
	if err != nil {
		r.t.Fatal(err)
	}
	return info
}

// lookUp returns the consumer of a service.
func (r *rig) lookUp(svc string, k store.Kind) (*jetstream.ConsumerInfo, error) {
	stream := schemas.StreamFired
	if k == store.KindRetry {
		stream = schemas.StreamRetry
	}
	c, err := natstest.JetStream(r.t, r.nc).Consumer(r.t.Context(), stream, "belfry_"+svc)
	if err != nil {
		return nil, err
	}
	return c.CachedInfo(), nil
}

// dead returns the dead letters of a service.
func (r *rig) dead(svc string) []*store.Letter {
	r.t.Helper()
	p, err := r.store.DeadList(r.t.Context(), store.DeadQuery{Service: svc})
	if err != nil {
		r.t.Fatal(err)
	}
	return p.Letters
}

// callee is an HTTP server that records its calls.
type callee struct {
	URL   string
	mu    sync.Mutex
	calls []*http.Request
	times []time.Time
	data  []string
}

// bodies returns the bodies of the first n calls; false if there were fewer.
func (c *callee) bodies(n int) ([]string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.data[:min(n, len(c.data))], len(c.data) >= n
}

func (c *callee) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls)
}

// httpCallee starts a server that answers with h. n is the number of the call, from 1.
func httpCallee(t *testing.T, h func(n int, w http.ResponseWriter, r *http.Request)) *callee {
	t.Helper()
	c := &callee{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		c.calls = append(c.calls, r)
		c.times = append(c.times, time.Now())
		c.data = append(c.data, string(b))
		n := len(c.calls)
		c.mu.Unlock()
		h(n, w, r)
	}))
	t.Cleanup(s.Close)
	c.URL = s.URL
	return c
}
