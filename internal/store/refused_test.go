//go:build unix

package store_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/proc"
)

// replicated is a timer that was added an hour ago, in a shard with three replicas.
type replicated struct {
	t      *testing.T
	c      *natstest.Cluster
	routes cutRoutes
	s      *store.Store
	nc     *nats.Conn // of a former leader
	w      store.Write
}

func newReplicated(t *testing.T) *replicated {
	t.Helper()
	t.Parallel()
	d := &replicated{t: t}
	d.c = natstest.Cluster3(t, d.routes.option(t))
	g := schemas.DefaultGeometry()
	g.Shards = 1
	open := func(node string, at *natstest.Server) *store.Store {
		s, err := store.Open(t.Context(), at.Connect(), store.Config{Node: node, Geometry: g, Replicas: 3}, zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}
	open("n1", d.c.Servers[0])
	leader := d.c.WaitStreamLeader("KV_" + schemas.BucketTimers(0))
	for _, at := range d.c.Servers {
		if at != leader {
			d.s, d.nc = open("n2", at), at.Connect()
			break
		}
	}
	d.s.SetShortTTL(0) // as with a long retention, results delete, too
	d.s.SetUnanswered(0, time.Hour)
	now := time.Now().UnixMilli()
	d.w = store.Write{ID: schemas.NewTimerID("/old", "1"), Record: &schemas.Record{
		Definition: schemas.Definition{AddedMs: now - time.Hour.Milliseconds(), Service: "old", Source: "/old", EventID: "1", Type: "t"},
		RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, DueMs: now},
	}}
	d.w.Rev = storetest.CreateAll(t, d.s, []store.Write{d.w})[0]
	// Former leaders answer first.
	d.routes.of(leader, func(l *proc.Link) { l.Delay(100 * time.Millisecond) })
	return d
}

// former answers requests to a subject as a server that led the shard before, if match is "" or part of the request.
func (d *replicated) former(subject, match, answer string) (stop func()) {
	d.t.Helper()
	sub, err := d.nc.Subscribe(subject, func(m *nats.Msg) {
		if strings.Contains(string(m.Data), match) {
			_ = m.Respond([]byte(answer))
		}
	})
	if err == nil {
		err = d.nc.Flush()
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return func() { _ = sub.Unsubscribe() }
}

// refused writes the record until a former leader refuses it first and the leader stores it, and returns the revision before
// that. The last write expires soon.
func (d *replicated) refused() (replaced uint64) {
	d.t.Helper()
	stop := d.former("$KV."+schemas.BucketTimers(0)+".timer.*", "", `{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 0"}}`)
	defer stop()
	for range 20 {
		d.w.Record.State, d.w.Record.Queued, d.w.TTL = schemas.StateSuccess, false, 12*time.Second
		rev, err := d.s.Update(d.t.Context(), d.w)
		if err == nil {
			d.w.Rev = rev
			continue
		}
		if !errors.Is(err, store.ErrRevision) {
			d.t.Fatal(err)
		}
		replaced = d.w.Rev
		waittest.Until(d.t, "the write is stored", func() bool {
			got, err := d.s.Get(d.t.Context(), d.w.ID)
			d.w.Rev = got.Rev
			return err == nil && got.Rev > replaced
		})
		return replaced
	}
	d.t.Fatal("the leader always answers first")
	return 0
}

// looked waits until revisions wait for looks as given.
func (d *replicated) looked(first, last int) {
	d.t.Helper()
	waittest.UntilWithin(d.t, 30*time.Second, "the looks", func() bool {
		f, l := d.s.Unanswered()
		return f == first && l == last
	})
	d.s.DrainRemovals()
}

// gone checks that the timer has no record when the last one has expired.
func (d *replicated) gone() {
	d.t.Helper()
	var got store.Timer
	var err error
	waittest.UntilWithin(d.t, 40*time.Second, "the result expires", func() bool {
		got, err = d.s.Get(d.t.Context(), d.w.ID)
		return errors.Is(err, schemas.ErrNotFound) || err == nil && got.Rev != d.w.Rev
	})
	if err == nil {
		d.t.Errorf("revision %d is the record again: %s", got.Rev, got.Record.State)
	}
}

// TestRefusedAndStored: a server that led the shard before refuses a result, and the leader stores it. The revision that it
// replaced is deleted.
func TestRefusedAndStored(t *testing.T) {
	d := newReplicated(t)
	d.refused()
	d.looked(0, 1)
	d.gone()
}

// TestFormerLeaderLooks: a server that led the shard before answers when a replaced revision is looked at, and does not have the
// record, or not the revision. The last look has the revision deleted.
func TestFormerLeaderLooks(t *testing.T) {
	t.Parallel()
	for name, look := range map[string]struct {
		request string
		check   bool // after a lost connection, without a first look
	}{
		"the record": {request: `"last_by_subj"`}, "the revision": {request: `"seq"`}, "a lost connection": {request: `"seq"`, check: true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newReplicated(t)
			d.s.SetUnanswered(time.Hour, time.Hour)
			replaced := d.refused()
			stop := d.former("$JS.API.STREAM.MSG.GET.KV_"+schemas.BucketTimers(0), look.request,
				`{"type":"io.nats.jetstream.api.v1.stream_msg_get_response","error":{"code":404,"err_code":10037,"description":"no message found"}}`)
			if look.check {
				d.s.CheckRemoval(d.w.ID, replaced, d.w.Rev)
				d.looked(1, 1)
				d.s.ForgetUnanswered(0)
			} else {
				d.s.SetUnanswered(0, time.Hour)
				d.looked(0, 1)
			}
			stop()
			d.s.SetUnanswered(0, 0)
			d.looked(0, 0)
			d.gone()
		})
	}
}
