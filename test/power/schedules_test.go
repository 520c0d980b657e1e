package power

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
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
	callback      bool
	added, paused bool
	busy          bool
	runs          uint32 // the last run of its record
}

const (
	// callbackSubject is the target of the callbacks of schedules. Every second one fails.
	callbackSubject = "power.callback"
	calendarName    = "power"
	noRun           = "2020-01-01"
)

// calendar is the calendar that some schedules exclude. One client puts it.
type calendar struct {
	revision uint64
	known    bool
	// made is true once a put was acknowledged: schedules that exclude it can be added.
	made bool
}

// changeCalendar puts the calendar again and again until ctx ends, with and without the
// dates around the present one.
func (l *ledger) changeCalendar(ctx context.Context, c *belfry.Client) {
	for ctx.Err() == nil {
		dates := []string{noRun}
		for d := range 3 {
			if !l.calendar.made || l.chance(2) == 0 {
				dates = append(dates, time.Now().UTC().AddDate(0, 0, d-1).Format(time.DateOnly))
			}
		}
		if l.learnCalendar(ctx, c) != nil || l.putCalendar(ctx, c, dates) != nil {
			pause.For(ctx, 50*time.Millisecond)
		}
	}
}

// learnCalendar reads the revision of the calendar if a call without an answer may have
// changed it.
func (l *ledger) learnCalendar(ctx context.Context, c *belfry.Client) error {
	k := &l.calendar
	if k.known {
		return nil
	}
	got, err := c.GetCalendar(ctx, calendarName)
	if errors.Is(err, belfry.ErrNotFound) {
		if k.made {
			return fmt.Errorf("calendar %s was acknowledged, and is lost", calendarName)
		}
		got.Revision, err = 0, nil
	}
	k.revision, k.known = got.Revision, err == nil
	return err
}

func (l *ledger) putCalendar(ctx context.Context, c *belfry.Client, dates []string) error {
	k := &l.calendar
	var opts []belfry.CalendarOption
	if k.revision != 0 {
		opts = append(opts, belfry.CalendarRevision(k.revision))
	}
	n := l.history.Put(check.Event{Kind: check.PutCalendar, ID: calendarName, Dates: dates})
	r, err := c.PutCalendar(ctx, calendarName, dates, opts...)
	l.answer(n, belfry.Timer{}, err)
	if k.known = err == nil; k.known {
		k.revision = r.Calendar.Revision
		l.mu.Lock()
		defer l.mu.Unlock()
		k.made = true
	}
	return err
}

// serveCallbacks answers the callbacks of one life of the node.
func serveCallbacks(nc *nats.Conn) error {
	_, err := nc.Subscribe(callbackSubject, func(m *nats.Msg) {
		reply := &nats.Msg{}
		_, run, _ := strings.Cut(m.Header.Get("Idempotency-Key"), ".")
		if n, err := strconv.Atoi(run); err != nil || n%2 == 0 {
			reply.Header = nats.Header{"Nats-Service-Error": {"gone"}, "Nats-Service-Error-Code": {"410"}}
		}
		_ = m.RespondMsg(reply) // fails if the node was just killed
	})
	return err
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
		if s.callback = k%2 == 1; s.callback {
			s.rule.ExpectMs = 1000 + l.rng.Int64N(2000)
		}
		if k%4 > 1 && l.calendar.made {
			s.rule.Exclude = []string{calendarName}
		}
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
	opts := []belfry.AddOption{belfry.Every(s.rule.Every), belfry.Misfire(s.rule.Misfire), belfry.WithService(service)}
	if s.callback {
		opts = append(opts, belfry.WithCallback("nats:"+callbackSubject), belfry.Expect(time.Duration(s.rule.ExpectMs)*time.Millisecond))
	}
	if len(s.rule.Exclude) > 0 {
		opts = append(opts, belfry.Exclude(s.rule.Exclude...))
	}
	return l.call(s, check.Event{Kind: check.Add, Via: "api", Data: s.data, Recurrence: &s.rule}, func() (belfry.Timer, error) {
		_, err := c.Add(ctx, e, opts...)
		return belfry.Timer{}, err
	})
}

// call makes a call and records it with its answer.
func (l *ledger) call(s *schedule, e check.Event, do func() (belfry.Timer, error)) error {
	e.Source, e.ID = scheduleSource, s.id
	n := l.history.Put(e)
	t, err := do()
	l.answer(n, t, err)
	return err
}

// answer records the answer to a call.
func (l *ledger) answer(n int64, t belfry.Timer, err error) {
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
}

// settleSchedules makes the calendar exclude no present date, waits until the schedules have
// decided what was due, and deletes them.
func (l *ledger) settleSchedules(ctx context.Context, c *belfry.Client, js jetstream.JetStream, shards int) error {
	if len(l.schedules) == 0 {
		return nil
	}
	until := time.Now().Add(checkBound)
	retry := func(do func() error) error {
		for {
			err := do()
			if err == nil || time.Now().After(until) || !pause.For(ctx, 100*time.Millisecond) {
				return err
			}
		}
	}
	if err := retry(func() error {
		l.calendar.known = false
		if err := l.learnCalendar(ctx, c); err != nil {
			return err
		}
		return l.putCalendar(ctx, c, []string{noRun})
	}); err != nil {
		return err
	}
	now := time.Now()
	caughtUp := func(s *schedule) error {
		r, _, err := readRecord(ctx, js, shards, s.key, s.key)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil // checkSchedules judges that
		}
		if err != nil || r.Schedule == nil {
			return fmt.Errorf("the record of schedule %s cannot be read: %w", s.id, err)
		}
		p := r.Schedule
		switch {
		case r.State.Final(): // a cancelled schedule decides nothing more
		case len(p.Expected) > 0 && p.Expected[0].DeadlineMs <= now.UnixMilli():
			return fmt.Errorf("schedule %s has not decided the deadline %s", s.id, schemas.FormatTime(p.Expected[0].DeadlineMs))
		case r.State == schemas.StatePending && p.NextMs != 0 && p.NextDueMs <= now.UnixMilli():
			return fmt.Errorf("schedule %s has not decided %s", s.id, schemas.FormatTime(p.NextMs))
		case r.State == schemas.StatePending && p.NextMs > now.Add(time.Hour).UnixMilli():
			return fmt.Errorf("schedule %s runs next at %s, though no date is excluded", s.id, schemas.FormatTime(p.NextMs))
		}
		return nil
	}
	for _, s := range l.schedules {
		if err := retry(func() error { return caughtUp(s) }); err != nil {
			return err
		}
	}
	l.history.Put(check.Event{Kind: check.Passed, TimeNs: now.UnixNano()})
	for _, s := range l.schedules {
		if err := retry(func() error { return l.store(ctx, js, shards, s) }); err != nil {
			return err
		}
	}
	return l.deleteSchedules(ctx, c)
}

// readRecord reads the record of a schedule, or of one of its runs, and its message.
func readRecord(ctx context.Context, js jetstream.JetStream, shards int, schedule, id belfry.TimerID) (r schemas.Record, m *jetstream.RawStreamMsg, err error) {
	bucket := schemas.BucketTimers(schemas.Geometry{Shards: shards}.Shard(schedule))
	st, err := js.Stream(ctx, "KV_"+bucket)
	if err != nil {
		return r, nil, err
	}
	if m, err = st.GetLastMsgForSubject(ctx, "$KV."+bucket+".timer."+id.String()); err != nil {
		return r, nil, err
	}
	r, err = schemas.DecodeRecord(m.Data)
	return r, m, err
}

// store records the record of a schedule. An acknowledged schedule without one is a
// violation.
func (l *ledger) store(ctx context.Context, js jetstream.JetStream, shards int, s *schedule) error {
	r, m, err := readRecord(ctx, js, shards, s.key, s.key)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	if err != nil || r.Schedule == nil {
		return fmt.Errorf("the record of schedule %s cannot be read: %w", s.id, err)
	}
	s.runs = r.Schedule.Last.Run
	l.history.Put(check.Event{
		Kind: check.Stored, Source: scheduleSource, ID: s.id, Sequence: m.Sequence, Schedule: r.Schedule, State: r.State, AddedMs: r.AddedMs,
	})
	return nil
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
	for _, s := range l.schedules {
		if err := l.store(ctx, js, shards, s); err != nil {
			return nil, err
		}
	}
	events, err := l.history.Events()
	if err != nil {
		return nil, err
	}
	for _, s := range l.schedules {
		for run := uint32(1); s.callback && run <= s.runs; run++ {
			r, m, err := readRecord(ctx, js, shards, s.key, schemas.RunTimer(s.key, run))
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("the record of run %d of schedule %s: %w", run, s.id, err)
			}
			events = append(events, check.Event{Kind: check.Result, Source: scheduleSource, ID: s.id, Run: run, State: r.State, DoneMs: r.DoneMs, StoredMs: m.Time.UnixMilli()})
		}
	}
	overdue, err := overdueEvents(ctx, js)
	if err != nil {
		return nil, err
	}
	return check.Check(slices.Concat(events, overdue, fired)), nil
}

// overdueEvents returns the events in TIMERS_OVERDUE.
func overdueEvents(ctx context.Context, js jetstream.JetStream) (all []check.Event, err error) {
	s, err := js.Stream(ctx, schemas.StreamOverdue)
	if err != nil {
		return nil, err
	}
	for seq, last := uint64(1), s.CachedInfo().State.LastSeq; seq <= last; seq++ {
		m, err := s.GetMsg(ctx, seq)
		if err != nil {
			return nil, fmt.Errorf("sequence %d of %s: %w", seq, schemas.StreamOverdue, err)
		}
		e, err := check.OverdueEvent(m.Header, m.Data, m.Sequence, m.Time)
		if err != nil {
			return nil, fmt.Errorf("sequence %d of %s: %w", seq, schemas.StreamOverdue, err)
		}
		all = append(all, e)
	}
	return all, nil
}
