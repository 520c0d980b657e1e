package power

import (
	"context"
	"fmt"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/chaos/check"
)

// This file has the schedules of a round. Package check judges them: after the power
// losses each nominal time has one decision and at most one event, and what was
// acknowledged is obeyed.

const (
	scheduleSource = "/power/schedules"
	// mostSchedules bounds the schedules of a round.
	mostSchedules = 20
)

// schedule is a schedule that one client operates on.
type schedule struct {
	id            string
	key           belfry.TimerID
	data          string
	rule          schemas.Recurrence
	added, paused bool
	busy          bool
}

// schedule makes one random call for a schedule: it adds one, or pauses, resumes, triggers or
// deletes one.
func (l *ledger) schedule(ctx context.Context, c *belfry.Client) {
	s, n := l.drawSchedule()
	if s == nil {
		return
	}
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		s.busy = false
	}()
	operation := func(kind check.Kind, do func() (belfry.Timer, error)) error {
		return l.call(s, check.Event{Kind: kind}, do)
	}
	switch {
	case !s.added:
		s.added = l.addSchedule(ctx, c, s) == nil
	case s.paused:
		if operation(check.Resume, func() (belfry.Timer, error) { return c.Resume(ctx, s.key, schemas.Misfire(n%3)) }) == nil {
			s.paused = false
		}
	case n < 4:
		s.paused = true
		_ = operation(check.Pause, func() (belfry.Timer, error) { return c.Pause(ctx, s.key, "power") }) // an unanswered call is one of the cases
	case n < 9:
		_ = operation(check.Trigger, func() (belfry.Timer, error) { return c.Trigger(ctx, s.key) }) // as above
	default:
		_ = operation(check.Cancel, func() (belfry.Timer, error) { return c.Cancel(ctx, s.key) }) // as above
	}
}

// drawSchedule draws a schedule, often a new one, and a number below 10. It returns nil if a
// call for the schedule is in progress.
func (l *ledger) drawSchedule() (*schedule, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.rng.IntN(10)
	if k := len(l.schedules); k == 0 || k < mostSchedules && l.rng.IntN(2) == 0 {
		s := &schedule{id: fmt.Sprintf("s%d", k), data: fmt.Sprintf(`"s%d"`, k), busy: true}
		s.key = belfry.NewTimerID(scheduleSource, s.id)
		s.rule = schemas.Recurrence{Every: fmt.Sprintf("PT%dS", 1+k%2), Misfire: schemas.Misfire(k % 3)}
		l.schedules = append(l.schedules, s)
		return s, n
	}
	s := l.schedules[l.rng.IntN(len(l.schedules))]
	if s.busy {
		return nil, 0
	}
	s.busy = true
	return s, n
}

func (l *ledger) addSchedule(ctx context.Context, c *belfry.Client, s *schedule) error {
	e := event.New()
	e.SetID(s.id)
	e.SetSource(scheduleSource)
	e.SetType("power.schedule")
	if err := e.SetData("application/json", []byte(s.data)); err != nil {
		panic(err) // these bytes are always valid
	}
	return l.call(s, check.Event{Kind: check.Add, Via: "api", Data: s.data, Recurrence: &s.rule}, func() (belfry.Timer, error) {
		_, err := c.Add(ctx, e, belfry.Every(s.rule.Every), belfry.Misfire(s.rule.Misfire), belfry.WithService(service))
		return belfry.Timer{}, err
	})
}

// call makes a call and records it with its answer.
func (l *ledger) call(s *schedule, e check.Event, do func() (belfry.Timer, error)) error {
	e.Source, e.ID = scheduleSource, s.id
	n := l.history.Put(e)
	t, err := do()
	switch code := schemas.CodeOf(err); {
	case err == nil:
		done := check.Event{Kind: check.Answer, Call: n, OK: true, Sequence: t.Revision}
		if t.Schedule != nil && t.Schedule.Last != nil {
			done.Run = t.Schedule.Last.Run
		}
		l.history.Put(done)
	case code == "":
		l.history.Put(check.Event{Kind: check.Unknown, Call: n})
	default:
		l.history.Put(check.Event{Kind: check.Answer, Call: n, Code: string(code), Note: err.Error()})
	}
	return err
}

// deleteSchedules deletes all schedules, so that their records do not change any more.
func (l *ledger) deleteSchedules(ctx context.Context, c *belfry.Client) error {
	for _, s := range l.schedules {
		until := time.Now().Add(checkBound)
		for {
			err := l.call(s, check.Event{Kind: check.Cancel}, func() (belfry.Timer, error) { return c.Cancel(ctx, s.key) })
			code := schemas.CodeOf(err)
			if err == nil || code == schemas.CodeNotFound || code == schemas.CodeAlreadyDone {
				break
			}
			if time.Now().After(until) || !pause.For(ctx, 100*time.Millisecond) {
				return fmt.Errorf("delete schedule %s: %w", s.id, err)
			}
		}
	}
	return nil
}

// checkSchedules reads the records of the schedules and returns the violations. fired are
// their events, which were read before.
func (l *ledger) checkSchedules(ctx context.Context, js jetstream.JetStream, shards int, fired []check.Event) (*check.Report, error) {
	events, err := l.history.Events()
	if err != nil {
		return nil, err
	}
	for _, s := range l.schedules {
		bucket := schemas.BucketTimers(schemas.Geometry{Shards: shards}.Shard(s.key))
		st, err := js.Stream(ctx, "KV_"+bucket)
		if err != nil {
			return nil, err
		}
		m, err := st.GetLastMsgForSubject(ctx, "$KV."+bucket+".timer."+s.key.String())
		if err != nil {
			continue // an acknowledged schedule without a record is a violation
		}
		r, err := schemas.DecodeRecord(m.Data)
		if err != nil || r.Schedule == nil {
			return nil, fmt.Errorf("the record of schedule %s cannot be read: %w", s.id, err)
		}
		events = append(events, check.Event{
			Kind: check.Stored, Source: scheduleSource, ID: s.id, Sequence: m.Sequence, Schedule: r.Schedule, State: r.State, AddedMs: r.AddedMs,
		})
	}
	return check.Check(append(events, fired...)), nil
}
