package store_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// stopped is a timer on a server that stops before each write, and continues when the write has ended without an answer.
type stopped struct {
	t   *testing.T
	p   *natstest.Process
	nc  *nats.Conn
	id  schemas.TimerID
	rec schemas.Record
	rev uint64
}

func newStopped(t *testing.T, sync bool) *stopped {
	t.Parallel()
	now := time.Now().UnixMilli()
	p := natstest.RunProcess(t, sync)
	return &stopped{
		t: t, p: p, nc: p.Connect(), id: schemas.NewTimerID("/old", "1"),
		rec: schemas.Record{
			Definition: schemas.Definition{AddedMs: now - time.Hour.Milliseconds(), Service: "old", Source: "/old", EventID: "1", Type: "t"},
			RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, DueMs: now},
		},
	}
}

// open opens a store that gives up a write after a second.
func (d *stopped) open(node string, sync bool, first, last time.Duration) *store.Store {
	d.t.Helper()
	s, err := store.Open(d.t.Context(), d.p.Connect(), store.Config{Node: node, Geometry: storetest.Geometry, GroupCommit: sync, Timeout: time.Second}, zerolog.Nop())
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(s.Close)
	s.SetShortTTL(0) // as with a long retention, results delete, too
	s.SetUnanswered(first, last)
	return s
}

// write writes the record in a state, and waits until it is stored. With fails a look for the replaced revision fails before.
func (d *stopped) write(s *store.Store, state schemas.State, ttl time.Duration, fails bool) {
	d.t.Helper()
	d.rec.State, d.rec.Queued = state, false
	d.p.Signal(syscall.SIGSTOP)
	waittest.Until(d.t, "the server is stopped", func() bool { return d.nc.FlushTimeout(50*time.Millisecond) != nil })
	_, err := s.Update(d.t.Context(), store.Write{ID: d.id, Rev: d.rev, Record: &d.rec, TTL: ttl})
	if fails {
		// A look begins and fails before the server continues.
		waittest.Until(d.t, "a look begins", func() bool { first, last := s.Unanswered(); return first+last == 0 })
		for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if first, _ := s.Unanswered(); first > 0 {
				break
			}
		}
	}
	d.p.Signal(syscall.SIGCONT)
	if !errors.Is(err, schemas.ErrUnavailable) {
		d.t.Fatalf("%v while the server is stopped", err)
	}
	before := d.rev
	waittest.Until(d.t, "the write is stored", func() bool {
		got, err := s.Get(d.t.Context(), d.id)
		d.rev = got.Rev
		return err == nil && got.Rev > before
	})
}

// gone checks that the timer has no record when the last one has expired.
func (d *stopped) gone(s *store.Store) {
	d.t.Helper()
	s.DrainRemovals()
	var got store.Timer
	var err error
	waittest.Until(d.t, "the result expires", func() bool {
		got, err = s.Get(d.t.Context(), d.id)
		return errors.Is(err, schemas.ErrNotFound) || err == nil && got.Rev != d.rev
	})
	if err == nil {
		d.t.Errorf("revision %d is the record again: %s", got.Rev, got.Record.State)
	}
}

// TestUnansweredWrites: a claim and a result get no answer, and are stored. The revisions that they replaced are deleted.
func TestUnansweredWrites(t *testing.T) {
	t.Parallel()
	for name, sync := range map[string]bool{"fast": false, "safe": true} {
		t.Run(name, func(t *testing.T) {
			d := newStopped(t, sync)
			s := d.open("n1", sync, 0, time.Hour)
			d.rev = storetest.CreateAll(t, s, []store.Write{{ID: d.id, Record: &d.rec}})[0]
			d.write(s, schemas.StateDelivered, 0, true)
			d.write(s, schemas.StateSuccess, 5*time.Second, false)
			waittest.Until(t, "the looks", func() bool { first, last := s.Unanswered(); return first+last == 0 })
			d.gone(s)
		})
	}
}

// TestUnansweredLateWrite: a write without an answer is not stored at the first look, but at the last one.
func TestUnansweredLateWrite(t *testing.T) {
	d := newStopped(t, false)
	other := d.open("n2", false, time.Hour, time.Hour)
	d.rev = storetest.CreateAll(t, other, []store.Write{{ID: d.id, Record: &d.rec}})[0]
	s := d.open("n1", false, 0, time.Hour)
	s.AddUnanswered(d.id, d.rev)
	waittest.UntilWithin(t, 20*time.Second, "the first look", func() bool { first, last := s.Unanswered(); return first == 0 && last == 1 })
	d.write(other, schemas.StateSuccess, 5*time.Second, false)
	s.SetUnanswered(0, 0)
	waittest.Until(t, "the last look", func() bool { first, last := s.Unanswered(); return first+last == 0 })
	d.gone(s)
}

// TestUnansweredNotStored: a write without an answer was never stored. The revision before it stays.
func TestUnansweredNotStored(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).Connect())
	s.SetUnanswered(0, 0)
	w := store.Write{ID: schemas.NewTimerID("/old", "1"), Record: &schemas.Record{
		Definition: schemas.Definition{Service: "old", Source: "/old", EventID: "1", Type: "t"}, RunState: schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, DueMs: time.Now().Add(time.Hour).UnixMilli()},
	}}
	rev := storetest.CreateAll(t, s, []store.Write{w})[0]
	s.AddUnanswered(w.ID, rev)
	waittest.Until(t, "the looks", func() bool { first, last := s.Unanswered(); return first+last == 0 })
	s.DrainRemovals()
	if got, err := s.Get(t.Context(), w.ID); err != nil || got.Rev != rev {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestUnansweredAreBounded: with too many revisions the earliest are forgotten.
func TestUnansweredAreBounded(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).Connect())
	s.SetUnanswered(time.Hour, time.Hour)
	for range 3 {
		for i := range store.MaxUnanswered {
			s.AddUnanswered(schemas.NewTimerID("/old", "1"), uint64(i+1))
		}
		for look := range 2 {
			s.FailLook(look)
			if first, last := s.Unanswered(); first+last > store.MaxUnanswered || first < store.MaxUnanswered/4 {
				t.Errorf("%d and %d revisions wait", first, last)
			}
		}
	}
}
