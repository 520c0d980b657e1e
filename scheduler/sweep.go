package scheduler

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Bounds of the sweeper.
const (
	sweepTicks    = 256 // ticks in one call of Some
	sweepMinPause = 250 * time.Millisecond
	sweepMaxPause = 30 * time.Second
)

// Sweeper audits the ticks that the low watermark of a shard passed at least Delay ago.
// Every record there should be final, or wait for its callback. The sweeper reports each
// missed timer through Found, so that it is fired and counted; as long as the low watermark
// is correct, there is none. It audits a record whose callback has no result again every
// Delay, and reports it when its event has left TIMERS_FIRED or is acknowledged.
//
// It has no goroutine and no clock.
type Sweeper struct {
	Store    SweepStore
	Shard    int
	Geometry schemas.Geometry
	Delay    time.Duration
	// Newer, if not nil, is called with the first tick that has a record of a newer format.
	// The sweeper continues; the caller writes a position before that tick into the clock,
	// for an owner that can read the record.
	Newer func(tick int64)
	// Found is called for each record that must be fired or finished.
	Found func(EvSwept)
	// Pause, if not nil, waits between the pages of a large tick. If it returns false, the
	// audit ends.
	Pause func(context.Context) bool
	// Audited is called with the number of records of each page.
	Audited func(n int)

	width int64 // maximum ticks of the next call of Some; 0 before the first call, which has sweepTicks
	pages tickPages
	// behind is true if the position is a fifth of Delay behind the position at which it should be. The pages
	// are then as large as they may be: index entries expire.
	behind bool
}

// Some audits up to sweepTicks ticks, starting at sweptMs, the sweeper's position in Unix
// milliseconds. c is the shard's clock as it was last written. Some returns the next position,
// and whether there are more ticks to audit now.
//
// It refuses answers of replicas that have not reached the sequence c.Seen: such a replica may
// lack records that were due before the low watermark when the clock was written.
func (s *Sweeper) Some(ctx context.Context, sweptMs int64, c store.Clock) (next int64, more bool, err error) {
	watermarkMs, tail := c.TimeMs, c.Tail
	first := s.Geometry.Tick(sweptMs)
	last := s.Geometry.Tick(watermarkMs-s.Delay.Milliseconds()) - 1
	if last < first {
		return sweptMs, false, nil
	}
	if s.width == 0 {
		s.width = sweepTicks
	}
	last = min(last, first+s.width-1, first+s.Geometry.WheelSize-1)
	ticks := make([]int64, 0, last-first+1)
	for t := first; t <= last; t++ {
		ticks = append(ticks, t)
	}
	s.behind = s.Geometry.TickStart(first) < watermarkMs-s.Delay.Milliseconds()*6/5
	load, err := s.load(ctx, ticks, 0, c.Seen)
	if err == nil && !load.Complete && len(ticks) > 1 {
		s.width, last, ticks = 1, first, ticks[:1]
		load, err = s.load(ctx, ticks, 0, c.Seen)
	}
	clean := true
	for err == nil {
		s.newer(load.Newer)
		s.pages.read(load.Named, len(ticks), load.Next == 0)
		var ok bool
		if ok, err = s.audit(ctx, load.Timers, first, last, watermarkMs, tail); !ok {
			clean = false
		}
		if err != nil || load.Next == 0 {
			break
		}
		if s.Pause != nil && !s.Pause(ctx) {
			return sweptMs, false, context.Cause(ctx)
		}
		load, err = s.load(ctx, ticks, load.Next, c.Seen)
	}
	if err != nil || !clean {
		return sweptMs, false, err
	}
	// Read twice as many ticks at once if they are expected to fit an answer.
	if int64(s.pages.last)*2*s.width <= maxPage {
		s.width = min(2*s.width, sweepTicks)
	}
	return s.Geometry.TickStart(last + 1), true, nil
}

// load reads several ticks at once, or the next page of a single tick.
func (s *Sweeper) load(ctx context.Context, ticks []int64, after, seen uint64) (store.Load, error) {
	limit := s.pages.limit(len(ticks))
	if s.behind {
		limit = maxPage
	}
	return s.Store.LoadTicks(ctx, s.Shard, ticks, limit, after, seen, nil)
}

// newer reports the first tick of the records that this node cannot read.
func (s *Sweeper) newer(records []store.NewerRecord) {
	if len(records) == 0 || s.Newer == nil {
		return
	}
	first := records[0].Tick
	for _, r := range records {
		first = min(first, r.Tick)
	}
	s.Newer(first)
}

// audit checks the records of the ticks first to last. It returns false if one must be fired
// or finished, so that the ticks are audited again. A pending record after the applied
// offset (tail) is not a missed timer: it arrived late, and the tail will deliver it.
func (s *Sweeper) audit(ctx context.Context, timers []store.Timer, first, last, watermarkMs int64, tail uint64) (clean bool, err error) {
	clean = true
	var open []store.Timer
	s.Audited(len(timers))
	for _, t := range timers {
		rec := &t.Record
		tick := s.Geometry.Tick(rec.DueMs)
		switch {
		case rec.Pending():
			if tick >= first && tick <= last {
				clean = false
				if t.Rev <= tail {
					s.Found(EvSwept{Timer: t})
				}
			}
		case rec.State.Final(), rec.State == schemas.StatePaused:
		case rec.Callback == "" || rec.Schedule != nil:
			clean = false
			s.Found(EvSwept{Timer: t})
		default:
			open = append(open, t)
		}
	}
	if len(open) == 0 {
		return clean, nil
	}
	return clean, s.auditOpen(ctx, open, watermarkMs)
}

// openRecords are records of one service whose callback has no result.
type openRecords struct {
	service string
	backlog store.FiredBacklog
	// doubtful are the records whose event may be gone, or acknowledged.
	doubtful []store.Timer
}

// auditOpen checks records whose callback has no result.
func (s *Sweeper) auditOpen(ctx context.Context, open []store.Timer, watermarkMs int64) error {
	var services []*openRecords // in the order of the records, so that a simulation can be repeated
	byName := map[string]*openRecords{}
	next := s.Geometry.Tick(watermarkMs) + 1
	for _, t := range open {
		rec := &t.Record
		o := byName[rec.Service]
		if o == nil {
			// Functions may have deactivated the service's feed while its event was stored,
			// and the processes that would have noticed may have died.
			if err := s.Store.WakeService(ctx, store.Feed{Service: rec.Service}); err != nil {
				return err
			}
			b, err := s.Store.FiredBacklog(ctx, rec.Service)
			if err != nil {
				return err
			}
			o = &openRecords{service: rec.Service, backlog: b}
			byName[rec.Service], services = o, append(services, o)
		}
		// The new index entry makes the sweeper audit the record again, Delay from now.
		if err := s.Store.PutIndex(ctx, t.ID, next); err != nil {
			return err
		}
		oldest := o.backlog.Oldest
		switch {
		// An event that was claimed less than Delay ago may not be stored yet. JetStream might drop a repetition
		// of it as a duplicate.
		case watermarkMs-rec.FiredMs < s.Delay.Milliseconds():
		// The event was stored at its claim or later, and a service's oldest events leave the
		// stream first. So an event that was claimed after the oldest event without an
		// acknowledgement was stored is still there. If it is acknowledged itself, a later audit,
		// when the older event is acknowledged too, finds it.
		case !oldest.IsZero() && rec.FiredMs > oldest.UnixMilli():
		default:
			o.doubtful = append(o.doubtful, t)
		}
	}
	for _, o := range services {
		if err := s.auditEvents(ctx, o); err != nil {
			return err
		}
	}
	return nil
}

// auditEvents looks for the events of doubtful records, and reports each record whose event has
// left the stream, or is acknowledged: nobody would call it back. Functions write the result before
// they acknowledge the event. So such a record shows that the stream of the shard lacks a write that
// another stream has seen the effect of, as after the restore of a backup.
func (s *Sweeper) auditEvents(ctx context.Context, o *openRecords) error {
	left, err := s.notInRetry(ctx, o)
	if err != nil || len(left) == 0 {
		return err
	}
	ids, sinceMs := map[string]struct{}{}, left[0].Record.FiredMs
	for _, t := range left {
		ids[t.Record.RunID(t.ID).String()] = struct{}{}
		sinceMs = min(sinceMs, t.Record.FiredMs)
	}
	found, err := s.Store.FindInBacklog(ctx, o.service, o.backlog, time.UnixMilli(sinceMs-dedupSlackMs), ids)
	if err != nil {
		return err
	}
	for _, t := range left {
		if _, there := found[t.Record.RunID(t.ID).String()]; there {
			continue
		}
		// The result may have been written since the record was read.
		now, err := s.Store.Get(ctx, t.ID)
		if errors.Is(err, schemas.ErrUnavailable) {
			return err
		}
		if err == nil && now.Rev == t.Rev {
			s.Found(EvSwept{Timer: t, Redispatch: true})
		}
	}
	return nil
}

// notInRetry returns the doubtful records whose event TIMERS_RETRY does not have. An acknowledged event
// leaves that stream. A record with retries that was claimed after the oldest event there is left to a later
// audit, when that event has left: to search for it could mean to read the whole queue for each page.
func (s *Sweeper) notInRetry(ctx context.Context, o *openRecords) ([]store.Timer, error) {
	oldest := o.backlog.OldestRetry
	if oldest.IsZero() {
		return o.doubtful, nil
	}
	ids := map[string]struct{}{}
	left := slices.DeleteFunc(o.doubtful, func(t store.Timer) bool {
		retries := retryIDs(t)
		if len(retries) > 0 && t.Record.FiredMs > oldest.UnixMilli() {
			return true
		}
		for _, id := range retries {
			ids[id] = struct{}{}
		}
		return false
	})
	if len(ids) == 0 {
		return left, nil
	}
	found, err := s.Store.FiredSince(ctx, []string{schemas.SubjectRetry(o.service)}, time.Time{}, ids)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(left, func(t store.Timer) bool {
		return slices.ContainsFunc(retryIDs(t), func(id string) bool { _, there := found[id]; return there })
	}), nil
}

// retryIDs returns the message ids that the event of a record may have in TIMERS_RETRY.
func retryIDs(t store.Timer) []string {
	var ids []string
	// Since the claim the attempts may have grown, the deferrals cannot: only an event that
	// goes back into the wheel counts there, and the next claim publishes it.
	deferrals := t.Record.Deferrals()
	for a := uint32(1); a <= t.Record.Attempt+1; a++ {
		if a > 1 || deferrals > 0 {
			ids = append(ids, t.Record.RunID(t.ID).RetryMsgIDAfter(a, deferrals))
		}
	}
	return ids
}

// sweep runs the shard's sweeper until the term ends.
func (t *Term) sweep(ctx context.Context) {
	delay := time.Duration(t.cfg.Core.SweepMs) * time.Millisecond
	s := Sweeper{
		Store: t.cfg.Store, Shard: t.cfg.Shard, Geometry: t.cfg.Core.Geometry, Delay: delay,
		Pause: func(ctx context.Context) bool { return t.host.Pause(ctx, pacedPagePause) },
		Newer: func(tick int64) { t.holdSweep(t.cfg.Core.Geometry.TickStart(tick)) },
		Found: t.found, Audited: func(n int) { t.m.swept.Add(float64(n)) },
	}
	every := min(max(delay/20, sweepMinPause), sweepMaxPause)
	for t.host.Pause(ctx, every) {
		for more := true; more && t.state.Load() == 1; {
			var next int64
			var err error
			next, more, err = s.Some(ctx, t.swept.Load(), *t.progress.Load())
			t.failed("sweep", err)
			t.swept.Store(next)
			if more && !t.host.Pause(ctx, pacedPagePause) {
				return
			}
		}
	}
}

// found logs a record that the sweeper found, and passes it to the core.
func (t *Term) found(ev EvSwept) {
	rec := &ev.Timer.Record
	switch {
	case ev.Redispatch:
		t.m.redispatched.Inc()
		t.log.Warn().Stringer("timer", ev.Timer.ID).Time("fired", time.UnixMilli(rec.FiredMs)).Msg("timer fired again: its event left TIMERS_FIRED, or was acknowledged, and its callback has no result")
	case rec.Pending():
		t.m.missed.Inc()
		t.log.Error().Stringer("timer", ev.Timer.ID).Time("due", time.UnixMilli(rec.DueMs)).Msg("the sweeper found a timer unfired behind the low watermark")
	}
	t.put(ev)
}
