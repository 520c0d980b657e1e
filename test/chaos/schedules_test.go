//go:build unix

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/chaos/check"
	"github.com/belfryio/belfry/test/proc"
)

// This file has the schedules that join a run. Each has a goroutine of its own, which adds
// it, operates on it while faults happen, and reads its record. At the end all are deleted.

const (
	scheduleSource = "/chaos/schedules"
	// clusterSchedules has each misfire policy with each overlap policy, without a callback
	// and with each kind of callback.
	clusterSchedules = 3 * 4 * 4
	// readBound bounds the time until the record of an operation's answer is read. A server
	// that lags behind the leader may answer.
	readBound = 2 * time.Second
	// readEvery is the interval at which the record of a schedule is read that nobody operates
	// on. In that time it makes fewer decisions than a record keeps.
	readEvery = 5 * time.Second
	// soonMs bounds the time until the next run of a schedule, in milliseconds, unless calendars
	// exclude the date.
	soonMs = 60_000
	// endBound bounds the time until all schedules are deleted, and have been read.
	endBound = 3 * time.Minute
)

// recurring is a schedule and the client that operates on it.
type recurring struct {
	*client
	rng *rand.Rand
	key belfry.TimerID
	id  string
	// version counts the updates. It is in the data.
	version                int
	rule                   schemas.Recurrence
	service, callback, pad string
	addAt                  time.Time
	// operates states that the client pauses, updates, … the schedule. deletes states that it
	// deletes the schedule during the run.
	operates, deletes bool
	added             bool   // the add was acknowledged
	runs              uint32 // the last run of the last record that was read
	paused            bool   // there may be a pause that no resume has ended
}

// scheduleWork describes the schedules of a run.
type scheduleWork struct {
	count   int
	begin   time.Time
	whole   time.Duration // of the run
	every   int           // the longest period in seconds
	httpURL string
	// worker adds schedules for workers.
	worker bool
	// operated is the share of the schedules that clients operate on: one of so many. Of those
	// with timerexpect, it is half of that.
	operated int
	// calendars are names of calendars that some schedules exclude.
	calendars []string
}

// makeSchedules draws the schedules of a run.
func (c *client) makeSchedules(rng *rand.Rand, w scheduleWork) []*recurring {
	all := make([]*recurring, w.count)
	for n := range all {
		s := &recurring{client: c, id: fmt.Sprintf("s%d", n), rng: rand.New(rand.NewPCG(rng.Uint64(), rng.Uint64())), service: "chaos-schedules"}
		s.key = belfry.NewTimerID(scheduleSource, s.id)
		s.addAt = w.begin.Add(time.Duration(rng.Int64N(int64(time.Second))))
		s.operates = n%w.operated == 0
		s.rule = schemas.Recurrence{Misfire: schemas.Misfire(n % 3), Overlap: schemas.Overlap(n / 3 % 4)}
		s.times(w.every)
		switch n / 12 % 4 {
		case 1:
			s.callback = w.httpURL
		case 2:
			s.callback = "nats:" + natsCallback
		case 3:
			s.callback = w.httpURL
			if w.worker {
				s.service, s.callback = workService, schemas.NATSScheme+schemas.WorkSubjectPrefix+workService
			} else {
				s.service, s.pad = "chaos-slow", ","+slowMark
			}
		}
		switch rng.IntN(8) {
		case 0:
			s.rule.Limit = 2 + rng.Uint32N(6)
		case 1:
			s.rule.EndMs = w.begin.Add(w.whole/2 + time.Duration(rng.Int64N(int64(w.whole)))).UnixMilli()
		case 2:
			s.rule.GraceMs = 1000 + rng.Int64N(2000)
		case 3:
			s.rule.JitterMs = 1 + rng.Int64N(800)
		case 4:
			s.deletes = s.operates
		}
		s.expects(rng)
		s.excludes(rng, w.calendars)
		all[n] = s
	}
	return all
}

// expects draws timerexpect for a schedule with a callback. Some of its callbacks fail for
// longer than that.
func (s *recurring) expects(rng *rand.Rand) {
	if s.callback == "" || rng.IntN(3) == 0 {
		return
	}
	s.rule.ExpectMs = 1000 + rng.Int64N(4000)
	s.pad += "," + stuckMark
	if s.operates {
		s.operates = rng.IntN(2) == 0
		s.deletes = s.deletes && s.operates
	}
}

// excludes draws timerexclude. The dates of the calendars change while the schedule fires.
func (s *recurring) excludes(rng *rand.Rand, calendars []string) {
	if len(calendars) == 0 || rng.IntN(3) > 0 {
		return
	}
	for _, name := range calendars {
		if rng.IntN(2) == 0 {
			s.rule.Exclude = append(s.rule.Exclude, name)
		}
	}
	if len(s.rule.Exclude) == 0 {
		s.rule.Exclude = calendars[:1]
	}
	s.rule.Zone = calendarZones[rng.IntN(len(calendarZones))]
	s.rule.EndMs = 0    // if all dates up to the end are excluded, the add is rejected
	s.rule.JitterMs = 0 // the time until the next run bounds it, and depends on the calendars
}

// times draws the nominal times: every second up to every some seconds.
func (s *recurring) times(most int) {
	s.rule.Cron, s.rule.Every = "", ""
	n := 1 + s.rng.IntN(most)
	if s.rng.IntN(2) == 0 {
		s.rule.Every = fmt.Sprintf("PT%dS", n)
	} else {
		s.rule.Cron = fmt.Sprintf("%d/%d * * * * *", s.rng.IntN(n), n)
	}
}

func (s *recurring) data() string {
	return fmt.Sprintf(`{"schedule":%q,"version":%d%s}`, s.id, s.version, s.pad)
}

// event returns the event to add or to update, and the options of its recurrence.
func (s *recurring) event() (event.Event, []belfry.AddOption) {
	e := event.New()
	e.SetID(s.id)
	e.SetSource(scheduleSource)
	e.SetType("chaos.schedule")
	if err := e.SetData("application/json", []byte(s.data())); err != nil {
		panic(err) // these bytes are always valid
	}
	r := &s.rule
	opts := []belfry.AddOption{
		belfry.WithService(s.service), belfry.Misfire(r.Misfire), belfry.Overlap(r.Overlap),
		belfry.WithBackoff(50*time.Millisecond, time.Second), belfry.WithMaxAttempts(500), belfry.WithAttemptTimeout(5 * time.Second),
	}
	if s.callback != "" {
		opts = append(opts, belfry.WithCallback(s.callback))
	}
	if r.Cron != "" {
		opts = append(opts, belfry.Cron(r.Cron))
	} else {
		opts = append(opts, belfry.Every(r.Every))
	}
	if r.Limit > 0 {
		opts = append(opts, belfry.Limit(r.Limit))
	}
	if r.EndMs > 0 {
		opts = append(opts, belfry.Ending(time.UnixMilli(r.EndMs)))
	}
	if r.GraceMs > 0 {
		opts = append(opts, belfry.Grace(time.Duration(r.GraceMs)*time.Millisecond))
	}
	if r.ExpectMs > 0 {
		opts = append(opts, belfry.Expect(time.Duration(r.ExpectMs)*time.Millisecond))
	}
	if len(r.Exclude) > 0 {
		opts = append(opts, belfry.Exclude(r.Exclude...))
	}
	if r.Zone != "" {
		opts = append(opts, belfry.Zone(r.Zone))
	}
	if r.JitterMs > 0 {
		opts = append(opts, belfry.Jitter(time.Duration(r.JitterMs)*time.Millisecond))
	}
	return e, opts
}

// live adds the schedule and operates on it until ctx ends.
func (s *recurring) live(ctx context.Context) {
	if !pause.For(ctx, time.Until(s.addAt)) || !s.add(ctx) {
		return
	}
	_ = s.readFrom(ctx, 1) // if it fails, the record is read after the next operation
	for !s.operates && pause.For(ctx, readEvery) {
		_ = s.readFrom(ctx, 1) // if it fails, the check judges less
	}
	for s.operates && pause.For(ctx, time.Second+time.Duration(s.rng.Int64N(int64(2*time.Second)))) {
		s.operate(ctx)
	}
}

// add adds the schedule until that is acknowledged.
func (s *recurring) add(ctx context.Context) bool {
	rule := s.rule
	for try := 0; ; try++ {
		e, opts := s.event()
		sent := check.Event{Kind: check.Add, Via: "api", Data: s.data(), Callback: s.callback != "", Recurrence: &rule}
		var err error
		// If a calendar is deleted before the router reads a published add that excludes it, the add is
		// acknowledged and then rejected. The history could not distinguish that from a loss, so such
		// schedules are added by requests: a rejected request is repeated.
		if len(rule.Exclude) == 0 && s.rng.IntN(2) == 0 {
			sent.Via = "publish"
			err = s.call(ctx, sent, func(ctx context.Context) (answer, error) {
				p, err := s.belfry.AddAsync(e, opts...)
				if err == nil {
					err = p.Wait(ctx)
				}
				return answer{}, err
			})
		} else {
			err = s.call(ctx, sent, func(ctx context.Context) (answer, error) {
				_, err := s.belfry.Add(ctx, e, opts...)
				return answer{}, err
			})
		}
		if err == nil {
			s.added = true
			return true
		}
		if !pause.For(ctx, min(50*time.Millisecond<<min(try, 5), time.Second)) {
			return false
		}
	}
}

// answer is what the history keeps of an answer.
type answer struct {
	timer belfry.Timer
	count int
}

// call makes a call and records it with its answer.
func (s *recurring) call(ctx context.Context, e check.Event, do func(context.Context) (answer, error)) error {
	// The end of the run interrupts no call.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	e.Source, e.ID = scheduleSource, s.id
	n := s.rec.Put(e)
	a, err := do(ctx)
	if err != nil {
		s.answer(n, err)
		return err
	}
	done := check.Event{Kind: check.Answer, Call: n, OK: true, Sequence: a.timer.Revision, Count: a.count}
	if p := a.timer.Schedule; p != nil && p.Last != nil {
		done.Run = p.Last.Run
	}
	s.rec.Put(done)
	return nil
}

// operate makes one operation and reads the record.
func (s *recurring) operate(ctx context.Context) {
	rev := uint64(1)
	// timer makes an operation whose answer is the schedule.
	timer := func(kind check.Kind, do func(context.Context) (belfry.Timer, error)) error {
		return s.call(ctx, check.Event{Kind: kind, Via: "api"}, func(ctx context.Context) (answer, error) {
			t, err := do(ctx)
			rev = max(rev, t.Revision)
			return answer{timer: t}, err
		})
	}
	switch n := s.rng.IntN(10); {
	case s.paused:
		catchUp := schemas.Misfire(s.rng.IntN(3))
		if err := timer(check.Resume, func(ctx context.Context) (belfry.Timer, error) { return s.belfry.Resume(ctx, s.key, catchUp) }); err == nil {
			s.paused = false
		}
	case n < 3:
		s.paused = true
		if err := timer(check.Pause, func(ctx context.Context) (belfry.Timer, error) { return s.belfry.Pause(ctx, s.key, "chaos") }); schemas.CodeOf(err) == schemas.CodeAlreadyDone {
			s.paused = false
		}
	case n < 5:
		_ = timer(check.Trigger, func(ctx context.Context) (belfry.Timer, error) { return s.belfry.Trigger(ctx, s.key) })
	case n < 7:
		s.backfill(ctx)
	case n < 9:
		s.update(ctx, &rev)
	case s.deletes:
		_ = timer(check.Cancel, func(ctx context.Context) (belfry.Timer, error) { return s.belfry.Cancel(ctx, s.key) })
	}
	_ = s.readFrom(ctx, rev) // if it fails, the check judges less
}

// backfill asks for the nominal times of the last seconds that did not fire.
func (s *recurring) backfill(ctx context.Context) {
	to := time.Now().Add(-time.Duration(s.rng.Int64N(int64(3 * time.Second))))
	p := belfry.BackfillPeriod{From: to.Add(-time.Duration(s.rng.Int64N(int64(8 * time.Second)))), To: to}
	if s.rng.IntN(2) == 0 {
		p.Every = 200 * time.Millisecond
	}
	var opts []belfry.ControlOption
	if s.rng.IntN(2) == 0 {
		opts = append(opts, belfry.AllowOverlap())
	}
	e := check.Event{Kind: check.Backfill, Via: "api", FromMs: p.From.UnixMilli(), ToMs: p.To.UnixMilli()}
	_ = s.call(ctx, e, func(ctx context.Context) (answer, error) { // an unanswered call is one of the cases
		b, err := s.belfry.Backfill(ctx, s.key, p, opts...)
		return answer{b.Timer, b.Count}, err
	})
}

// update changes the data, and often the nominal times.
func (s *recurring) update(ctx context.Context, rev *uint64) {
	s.version++
	if s.rng.IntN(3) > 0 {
		s.times(5)
	}
	rule := s.rule
	e, opts := s.event()
	sent := check.Event{Kind: check.Update, Via: "api", Data: s.data(), Callback: s.callback != "", Recurrence: &rule}
	_ = s.call(ctx, sent, func(ctx context.Context) (answer, error) { // an unanswered call is one of the cases
		u, err := s.belfry.Update(ctx, e, opts)
		*rev = max(*rev, u.Timer.Revision)
		return answer{timer: u.Timer}, err
	})
}

// record reads the schedule's record and its revision.
func (s *recurring) record(ctx context.Context) (schemas.Record, uint64, error) {
	shard := schemas.DefaultGeometry().Shard(s.key)
	st, err := s.js.Stream(ctx, shardStream(shard))
	if err != nil {
		return schemas.Record{}, 0, err
	}
	m, err := st.GetLastMsgForSubject(ctx, "$KV."+schemas.BucketTimers(shard)+".timer."+s.key.String())
	if err != nil {
		return schemas.Record{}, 0, err
	}
	r, err := schemas.DecodeRecordUpTo(m.Data, schemas.RecordFormatTest)
	if err == nil && r.Schedule == nil {
		err = errors.New("the record is not that of a schedule")
	}
	return r, m.Sequence, err
}

// stored records a record in the history.
func (s *recurring) stored(r *schemas.Record, rev uint64) {
	e := check.Event{Kind: check.Stored, Source: scheduleSource, ID: s.id, Sequence: rev, Schedule: r.Schedule, State: r.State, AddedMs: r.AddedMs}
	for _, op := range r.History {
		if op.Kind == schemas.OperationUpdate {
			e.UpdatedMs = max(e.UpdatedMs, op.AtMs)
		}
	}
	s.runs = max(s.runs, r.Schedule.Last.Run)
	s.rec.Put(e)
}

// readFrom reads the record at a revision or a later one, and records it.
func (s *recurring) readFrom(ctx context.Context, rev uint64) error {
	return s.readUntil(ctx, readBound, func(_ *schemas.Record, got uint64) bool { return got >= rev })
}

// readUntil reads the record until ok accepts it, and records it. After bound it records
// the last record that it has read.
func (s *recurring) readUntil(ctx context.Context, bound time.Duration, ok func(*schemas.Record, uint64) bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	for {
		one, done := context.WithTimeout(ctx, callTimeout)
		r, rev, err := s.record(one)
		done()
		switch {
		case err == nil && ok(&r, rev):
			s.stored(&r, rev)
			return nil
		case !pause.For(ctx, 50*time.Millisecond):
			if err == nil {
				s.stored(&r, rev)
				p := r.Schedule
				err = fmt.Errorf("after %s the record is still that of revision %d: state %s, next run %s, due %s, %d open deadlines, calendars %v by revision %d", bound, rev,
					r.State, schemas.FormatTime(p.NextMs), schemas.FormatTime(p.NextDueMs), len(p.Expected), p.Exclude, p.Calendars)
			}
			return err
		}
	}
}

// schedules runs schedules until stop is called.
func (c *client) schedules(t *testing.T, all []*recurring) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, s := range all {
		wg.Go(func() { s.live(ctx) })
	}
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// endSchedules reads all records after the low watermark of every shard has passed, deletes
// the schedules, and reads the final records and those of the runs. Before that it makes the
// calendars exclude no date of the run, and expects that the schedules follow. passed waits
// until every low watermark has passed a time.
func (c *client) endSchedules(t *testing.T, all []*recurring, calendars []*dated, passed func(time.Time)) {
	t.Helper()
	putAll(t, calendars)
	now := time.Now()
	passed(now)
	c.rec.Put(check.Event{Kind: check.Passed, TimeNs: now.UnixNano()})
	ctx := t.Context()
	var wg sync.WaitGroup
	for some := range chunks(all, 16) {
		wg.Go(func() {
			for _, s := range some {
				err := s.readUntil(ctx, endBound, func(r *schemas.Record, _ uint64) bool { return caughtUp(r, now.UnixMilli()) })
				if err != nil && s.added {
					t.Errorf("schedule %s after every low watermark had passed %s: %v", s.id, schemas.FormatTime(now.UnixMilli()), err)
				}
				s.delete(t)
			}
		})
	}
	wg.Wait()
	passed(time.Now()) // so that every run that was claimed has its event
	for some := range chunks(all, 16) {
		wg.Go(func() {
			for _, s := range some {
				if s.rule.ExpectMs > 0 {
					s.results(t, s.runs)
				}
			}
		})
	}
	wg.Wait()
}

// caughtUp reports whether a schedule has decided all that was due at a time, and follows
// calendars that exclude no present date.
func caughtUp(r *schemas.Record, nowMs int64) bool {
	p := r.Schedule
	switch {
	case r.State.Final(): // a cancelled schedule decides nothing more, also no deadline
		return true
	case len(p.Expected) > 0 && p.Expected[0].DeadlineMs <= nowMs:
		return false
	case len(p.Expected) > 0 && p.Expected[0].Run == 0 && p.Expected[0].FromMs+p.ExpectMs <= nowMs:
		return false // the nominal times share an overdue event, which comes after the deadline of the last one
	case r.State != schemas.StatePending || p.NextMs == 0:
		return true
	}
	return p.NextDueMs > nowMs && (len(p.Exclude) == 0 || p.NextMs < time.Now().UnixMilli()+soonMs)
}

// delete deletes the schedule and reads its final record.
func (s *recurring) delete(t *testing.T) {
	until := time.Now().Add(endBound)
	for {
		err := s.call(t.Context(), check.Event{Kind: check.Cancel, Via: "api"}, func(ctx context.Context) (answer, error) {
			timer, err := s.belfry.Cancel(ctx, s.key)
			return answer{timer: timer}, err
		})
		code := schemas.CodeOf(err)
		if code == schemas.CodeNotFound && !s.added {
			return
		}
		if err == nil || code == schemas.CodeAlreadyDone || code == schemas.CodeAlreadyFired {
			break
		}
		if time.Now().After(until) || !pause.For(t.Context(), 100*time.Millisecond) {
			t.Errorf("delete schedule %s: %v", s.id, err)
			return
		}
	}
	if err := s.readUntil(t.Context(), endBound, func(r *schemas.Record, _ uint64) bool { return r.State.Final() }); err != nil {
		t.Errorf("the final record of schedule %s: %v", s.id, err)
	}
}

// chunks yields at most n parts of a list.
func chunks(all []*recurring, n int) func(func([]*recurring) bool) {
	return func(yield func([]*recurring) bool) {
		size := max(1, (len(all)+n-1)/n)
		for at := 0; at < len(all); at += size {
			if !yield(all[at:min(at+size, len(all))]) {
				return
			}
		}
	}
}

// watermarksPast waits until the low watermark of every shard has passed a time.
func (c *client) watermarksPast(t *testing.T, at time.Time) {
	t.Helper()
	eventually(t, endBound, "every low watermark past "+schemas.FormatTime(at.UnixMilli()), func(ctx context.Context) (bool, error) {
		return everyClock(ctx, c, func(clock *store.Clock) bool { return clock.TimeMs > at.UnixMilli() })
	})
}

// shownEnough fails the test if the report has too few schedules' runs.
func shownEnough(t *testing.T, r *check.ScheduleReport, schedules int) {
	t.Helper()
	if r.Deadlines == 0 || r.Overdue == 0 || r.Calendars == 0 || r.Kinds[schemas.DecisionExcluded] == 0 {
		t.Errorf("the run showed too little of deadlines and calendars: %+v", *r)
	}
	if r.Schedules < schedules/2 || r.Judged < 2*r.Schedules || r.Skipped == 0 || r.Acknowledged < r.Operations/2 || r.Done[check.Pause] == 0 || r.Done[check.Update] == 0 {
		t.Errorf("the run showed too little of schedules: %+v", *r)
	}
}

// TestKillNineWhileSchedulesFire kills the owner of two hundred schedules again and
// again, mostly of every second, while clients operate on some of them. Each nominal time is
// decided once, run numbers have no gaps, and every run that was claimed has one event. Calendars
// change meanwhile, and schedules follow them. Each deadline without a success has one overdue
// event.
func TestKillNineWhileSchedulesFire(t *testing.T) {
	testsize.Long(t, "kills under two hundred schedules")
	t.Parallel()
	// With many more, two busy cores cannot fire them as fast as they are due, and nothing ends.
	const count, kills, whole = 200, 8, 14 * time.Second
	sd := seed(t)
	t.Logf("seed %d: %d schedules, %d kills", sd, count, kills)
	historyPath := filepath.Join(t.TempDir(), "history.jsonl")
	history, err := os.Create(historyPath)
	if err != nil {
		t.Fatal(err)
	}
	rec := check.NewRecorder(history)
	rec.Begin()
	rng := rand.New(rand.NewPCG(sd, 1))
	recv := newReceiver(t, rec, sd)
	const retention = 10 * time.Minute
	n := proc.New(t, proc.Options{Config: nodeConfig(retention)})
	n.Start()
	n.Ready(t.Context())
	c := newClient(t, rec, n.URL(), retention)
	c.useClient()
	recv.serve(c.nc)
	calendars := c.makeCalendars(t, rng)
	begin := time.Now()
	all := c.makeSchedules(rng, scheduleWork{count: count, begin: begin, whole: whole, every: 2, httpURL: recv.url, operated: 5, calendars: usedCalendars})
	stop := c.schedules(t, all)
	stopCalendars := changeCalendars(t, calendars)
	killWhile(t, n, rec, rng, size{kills: kills, adding: whole}, begin, nil)
	stop()
	stopCalendars()
	c.endSchedules(t, all, calendars, func(at time.Time) { c.watermarksPast(t, at) })
	report := conclude(t, c, rec)
	t.Logf("\n%s", report)
	fail(t, report)
	shownEnough(t, &report.Schedules, count)
	if missed := metrictest.TextOf(t, n.Metrics(), "belfry_missed_timers_total"); len(missed) != 1 || missed[""] != 0 {
		t.Error("the sweeper found a missed timer")
	}
	noDamage(t, c.nc)
	if err := history.Close(); err != nil {
		t.Error(err)
	}
	if t.Failed() {
		keep(t, historyPath, map[string]string{"node.log": n.LogPath()})
	}
}
