//go:build unix

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/chaos/check"
)

// This file has the calendars that join a run. Each has a goroutine of its own, which puts,
// deletes and reads it while faults happen and schedules that exclude it fire each second. The
// calendars exclude and include the dates around the present one.

const (
	// noRun is a date on which no schedule of a run has a nominal time: a calendar must have one.
	noRun = "2020-01-01"
	// calendarTimeout bounds a call for a calendar. An answer takes store.CalendarFresh at
	// least.
	calendarTimeout = 8 * time.Second
	// calendarBound bounds the time until a calendar is put, at the start and at the end.
	calendarBound = time.Minute
)

// usedCalendars are excluded by schedules. spareCalendar is not, so it can be deleted.
var usedCalendars = []string{"chaos-a", "chaos-b"}

const spareCalendar = "chaos-spare"

// calendarZones are zones of schedules. Their dates differ.
var calendarZones = []string{"", "Pacific/Kiritimati", "Pacific/Pago_Pago", "Asia/Kolkata"}

// dated is a calendar and the client that changes it. Each change names the revision that it
// replaces.
type dated struct {
	*client
	rng  *rand.Rand
	name string
	// revision is that of the stored calendar, 0 if it does not exist. It is not known after a
	// call without an answer.
	revision uint64
	known    bool
}

// makeCalendars stores the calendars of a run.
func (c *client) makeCalendars(t *testing.T, rng *rand.Rand) (all []*dated) {
	t.Helper()
	for _, name := range append(slices.Clone(usedCalendars), spareCalendar) {
		all = append(all, &dated{client: c, name: name, rng: rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64())), known: true})
	}
	putAll(t, all)
	return all
}

// putAll makes all calendars exclude no date of the run, and waits until that is in force.
func putAll(t *testing.T, all []*dated) {
	t.Helper()
	var wg sync.WaitGroup
	for _, k := range all {
		wg.Go(func() {
			until := time.Now().Add(calendarBound)
			for k.learn(t.Context()) != nil || k.put(t.Context(), noRun) != nil {
				if time.Now().After(until) || !pause.For(t.Context(), 100*time.Millisecond) {
					t.Errorf("calendar %s could not be put for %s", k.name, calendarBound)
					return
				}
			}
		})
	}
	wg.Wait()
}

// changeCalendars changes calendars until stop is called.
func changeCalendars(t *testing.T, all []*dated) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, k := range all {
		wg.Go(func() {
			for pause.For(ctx, time.Duration(k.rng.Int64N(int64(2*time.Second)))) {
				k.change(ctx)
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// change makes one call for the calendar. The end of the run interrupts no call.
func (k *dated) change(ctx context.Context) {
	ctx = context.WithoutCancel(ctx)
	if k.learn(ctx) != nil {
		return
	}
	used := k.name != spareCalendar
	switch n := k.rng.IntN(10); {
	case k.revision != 0 && (!used && n < 4 || n == 0):
		k.delete(ctx) // refused for a calendar that schedules exclude
	default:
		_ = k.put(ctx, k.draw()...) // an unanswered call is one of the cases
	}
}

// draw draws dates around the present one.
func (k *dated) draw() []string {
	dates := []string{noRun}
	for d := range 3 {
		if k.rng.IntN(2) == 0 {
			dates = append(dates, time.Now().UTC().AddDate(0, 0, d-1).Format(time.DateOnly))
		}
	}
	return dates
}

// call makes a call for the calendar and records it with its answer.
func (k *dated) call(ctx context.Context, kind check.Kind, dates []string, do func(context.Context) (uint64, error)) error {
	ctx, cancel := context.WithTimeout(ctx, calendarTimeout)
	defer cancel()
	n := k.rec.Put(check.Event{Kind: kind, Via: "api", ID: k.name, Dates: dates})
	revision, err := do(ctx)
	k.answer(n, err)
	if k.known = err == nil; k.known {
		k.revision = revision
	}
	return err
}

func (k *dated) put(ctx context.Context, dates ...string) error {
	var opts []belfry.CalendarOption
	if k.revision != 0 {
		opts = append(opts, belfry.CalendarRevision(k.revision))
	}
	err := k.call(ctx, check.PutCalendar, dates, func(ctx context.Context) (uint64, error) {
		r, err := k.belfry.PutCalendar(ctx, k.name, dates, opts...)
		return r.Calendar.Revision, err
	})
	if err != nil {
		return err
	}
	// Nobody else changes this calendar.
	one, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	got, err := k.belfry.GetCalendar(one, k.name)
	switch code := schemas.CodeOf(err); {
	case err != nil && code != schemas.CodeNotFound:
		return nil
	case err != nil || got.Revision != k.revision || len(got.Dates) != len(dates):
		k.t.Errorf("calendar %s is revision %d with %q (%v); revision %d with %q was acknowledged", k.name, got.Revision, got.Dates, err, k.revision, dates)
	}
	return nil
}

func (k *dated) delete(ctx context.Context) {
	_ = k.call(ctx, check.DeleteCalendar, nil, func(ctx context.Context) (uint64, error) { // an unanswered call is one of the cases
		_, err := k.belfry.DeleteCalendar(ctx, k.name, belfry.CalendarRevision(k.revision))
		return 0, err
	})
}

// learn reads the revision of the calendar if it is not known.
func (k *dated) learn(ctx context.Context) error {
	if k.known {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	got, err := k.belfry.GetCalendar(ctx, k.name)
	if errors.Is(err, belfry.ErrNotFound) {
		got.Revision, err = 0, nil
	}
	k.revision, k.known = got.Revision, err == nil
	return err
}

// results records the records of all runs of a schedule with timerexpect.
func (s *recurring) results(t *testing.T, runs uint32) {
	shard := schemas.DefaultGeometry().Shard(s.key)
	until := time.Now().Add(endBound)
	for run := uint32(1); run <= runs; {
		err := s.result(t.Context(), shard, run)
		switch {
		case err == nil || errors.Is(err, jetstream.ErrMsgNotFound):
			run++
		case time.Now().After(until) || !pause.For(t.Context(), 50*time.Millisecond):
			t.Errorf("the record of run %d of schedule %s: %v", run, s.id, err)
			return
		}
	}
}

func (s *recurring) result(ctx context.Context, shard int, run uint32) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	st, err := s.js.Stream(ctx, shardStream(shard))
	if err != nil {
		return err
	}
	m, err := st.GetLastMsgForSubject(ctx, "$KV."+schemas.BucketTimers(shard)+".timer."+schemas.RunTimer(s.key, run).String())
	if err != nil {
		return err
	}
	r, err := schemas.DecodeRecordUpTo(m.Data, schemas.RecordFormatTest)
	if err != nil {
		return err
	}
	s.rec.Put(check.Event{Kind: check.Result, Source: scheduleSource, ID: s.id, Run: run, State: r.State, DoneMs: r.DoneMs, StoredMs: m.Time.UnixMilli()})
	return nil
}

// readOverdue records the events of TIMERS_OVERDUE.
func (c *client) readOverdue(ctx context.Context) error {
	s, err := c.js.Stream(ctx, schemas.StreamOverdue)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil // an older build
	}
	if err != nil {
		return err
	}
	for seq, last := uint64(1), s.CachedInfo().State.LastSeq; seq <= last; seq++ {
		m, err := s.GetMsg(ctx, seq)
		if err != nil {
			return fmt.Errorf("sequence %d of %s: %w", seq, schemas.StreamOverdue, err)
		}
		e, err := check.OverdueEvent(m.Header, m.Data, m.Sequence, m.Time)
		if err != nil {
			return fmt.Errorf("sequence %d of %s: %w", seq, schemas.StreamOverdue, err)
		}
		c.rec.Put(e)
	}
	return nil
}
