package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// This file keeps the shard's list of ended timers, which shows the revisions that a killed server brings back to be void
// (work-around 23, docs/internals/nats-server.md; internal/store/endedlist.go).
//
//	a record of the tail ─▶ note ─▶ writeEnded, at intervals ─▶ store.EndedLists
//	take-over ─▶ scanEnded: the final records that the previous owner had not listed
//	take-over, lost connection, count, every voidEvery ─▶ removeVoid ─▶ EvVoid
//
// The list must have a timer before its final record expires. Otherwise nothing shows after a kill that the timer has ended.
// So the owner writes it several times in each retention. The clock says up to which revision the list is complete
// (store.Clock.Ended). If the owner dies, the next one lists the final records after that.
//
// A timer that fires on time needs no entry, and costs three comparisons.

const (
	// endedEvery bounds the interval between two writes of the list; a fraction of the retention, endedPart, is the interval
	// if that is less. A whole cluster that is down for longer than the retention loses what was noted in an interval.
	endedEvery = 5 * time.Minute
	endedPart  = 4
	// endedLeast is the least interval, and the pause after a failed write.
	endedLeast = time.Second
	// endedMost is the number of noted timers that are written at once. Beyond endedBound the owner forgets them, and reads
	// their final records later. 48 bytes each: 48 MB for a shard whose list cannot be written.
	endedMost  = 100_000
	endedBound = 1_000_000
	// endedSlack is added to the sweep delay, after which a due time that has passed does not fire any more.
	endedSlack = time.Minute
	// endedStoredSlack is added to the time at which a final record is stored if the tail does not know it.
	endedStoredSlack = time.Second
	// interruptedEvery is the interval between two looks for a lost connection.
	interruptedEvery = time.Second
	// voidEvery is the interval between two looks for void revisions. A revision that returned while the final record existed, or
	// before the timer ended, is the record only when the final record has expired.
	voidEvery = 10 * time.Minute
)

// EndedStore is the part of the store that keeps the lists of ended timers.
type EndedStore interface {
	AddEnded(ctx context.Context, shard int, nowMs, passedMs int64, timers []store.EndedTimer) error
	EachFinal(ctx context.Context, shard int, after, through uint64, fn func(*store.Timer)) error
	RemoveVoid(ctx context.Context, shard int) ([]store.VoidRecord, error)
	// Interruptions returns how often the connection to the server was lost and made again.
	Interruptions() uint64
}

// endedRule decides which final records need an entry in the list.
type endedRule struct {
	// keepMs is the time after the end of a timer at which its final record may have expired soon; 0 if no record expires.
	keepMs int64
	// lateMs is the time after its due time for which a timer may still fire.
	lateMs int64
}

func newEndedRule(retention time.Duration, sweepMs int64) endedRule {
	late := sweepMs + endedSlack.Milliseconds()
	keep := retention.Milliseconds()
	// A timer that has fired is done after its due time, so half of the retention keeps it out of the list.
	return endedRule{keepMs: keep - min(late, keep/2), lateMs: late}
}

// of returns the entry of a record; false if it needs none. nowMs is a lower bound of the cluster's time.
func (r endedRule) of(t *store.Timer, nowMs int64) (store.EndedTimer, bool) {
	rec := &t.Record
	if !rec.State.Final() || rec.LastWaitMs()-rec.DoneMs <= r.keepMs || r.keepMs == 0 {
		return store.EndedTimer{}, false
	}
	stored := t.StoredMs
	if stored == 0 {
		stored = max(nowMs, rec.DoneMs) + endedStoredSlack.Milliseconds()
	}
	return store.EndedTimer{ID: t.ID, Rev: t.Rev, StoredMs: stored, AddedMs: rec.AddedMs, UntilMs: rec.LastWaitMs() + r.lateMs}, true
}

// endedTimers are the ended timers of a shard during one term. Only turns use it, except results.
type endedTimers struct {
	rule  endedRule
	every time.Duration
	// noted are the timers that are not written yet.
	noted []store.EndedTimer
	// complete is the revision up to which the stored list is complete.
	complete uint64
	// writing and scanning are true while a write and a scan are under way.
	writing, scanning bool
	// forgot is true if timers after complete are neither noted nor written: a scan must read them.
	forgot bool
	// losses grows when the shard has lost messages, maybe those with the list.
	losses int
	// nextAt is the earliest time of the next write, on the monotonic clock; 0 for none. failing is true after a failed write.
	nextAt  time.Duration
	failing bool
	// suspect is true if the server may have been killed since the last look for void revisions. looking is true during a look.
	// interruptions is the number of lost connections. lookAt is the time of its next comparison, on the monotonic clock.
	suspect, looking bool
	interruptions    uint64
	lookAt           time.Duration
	// voidAt is the time of the next look for void revisions, on the monotonic clock.
	voidAt time.Duration

	results results
}

// resume begins a term at a clock.
func (e *endedTimers) resume(c *CoreConfig, clock *store.Clock) {
	e.suspect = true // nobody has watched the server since the previous owner's term
	e.rule = newEndedRule(c.Retention, c.SweepMs)
	e.every = max(min(c.Retention/endedPart, endedEvery), endedLeast)
	// The tail brings the records after clock.Tail, also the final records that are listed already.
	e.complete = min(clock.Ended, clock.Tail)
	e.forgot = e.complete < clock.Tail
}

// note notes a record of the tail, if it needs an entry.
func (e *endedTimers) note(t *store.Timer, nowMs int64) {
	if timer, ok := e.rule.of(t, nowMs); ok {
		e.add(timer)
	}
}

// lost takes note that the shard has lost messages: the list may be incomplete.
func (e *endedTimers) lost() {
	e.complete, e.forgot = 0, true
	e.losses++
}

func (e *endedTimers) add(timers ...store.EndedTimer) {
	if len(e.noted)+len(timers) > endedBound {
		e.noted, e.forgot = nil, true
		return
	}
	e.noted = append(e.noted, timers...)
}

// upTo returns the revision up to which the stored list is complete. tailRev is that up to which the tail was noted.
func (e *endedTimers) upTo(tailRev uint64) uint64 {
	if len(e.noted) == 0 && !e.writing && !e.scanning && !e.forgot {
		e.complete = tailRev
	}
	return e.complete
}

// keepEnded begins the writes and scans of the list that are due. Without ended timers it costs a few comparisons.
func (t *Term) keepEnded() {
	e := &t.ended
	if t.cfg.Ended == nil || e.rule.keepMs == 0 {
		return
	}
	for _, result := range e.results.take() {
		result()
	}
	if e.forgot && !e.scanning {
		t.scanEnded()
	}
	now := t.host.Monotonic()
	if t.interrupted(now); (e.suspect || now >= e.voidAt) && !e.looking {
		e.voidAt = now + voidEvery
		t.lookForVoid()
	}
	switch {
	case len(e.noted) == 0 || e.writing:
	case e.nextAt == 0:
		e.nextAt = now + e.every
	case now >= e.nextAt, len(e.noted) >= endedMost && !e.failing:
		t.writeEnded()
	}
}

// interrupted sets suspect if the connection was lost since the last call. The first call only notes the number.
func (t *Term) interrupted(now time.Duration) {
	e := &t.ended
	first := e.lookAt == 0
	if now < e.lookAt {
		return
	}
	e.lookAt = now + interruptedEvery
	if n := t.cfg.Ended.Interruptions(); n != e.interruptions {
		e.interruptions, e.suspect = n, e.suspect || !first
	}
}

// removeVoid deletes the records that the list shows to be void.
func (t *Term) removeVoid(ctx context.Context) error {
	if t.cfg.Ended == nil {
		return nil
	}
	removed, err := t.cfg.Ended.RemoveVoid(ctx, t.cfg.Shard)
	for _, v := range removed {
		t.put(EvVoid{ID: v.ID, Rev: v.Rev})
	}
	t.failed("remove_void", err)
	return err
}

// lookForVoid begins removeVoid.
func (t *Term) lookForVoid() {
	e := &t.ended
	e.suspect, e.looking = false, true
	t.host.Go(func(ctx context.Context) {
		err := t.removeVoid(ctx)
		if err != nil && !t.host.Pause(ctx, countLimitedRetry) {
			return
		}
		e.results.put(func() { e.looking, e.suspect = false, e.suspect || err != nil })
		t.host.Wake()
	})
}

// writeEnded writes the noted timers.
func (t *Term) writeEnded() {
	e := &t.ended
	timers, upTo := e.noted, t.tailRev
	whole, losses := !e.scanning && !e.forgot, e.losses
	e.noted, e.writing, e.nextAt = nil, true, 0
	t.host.Go(func(ctx context.Context) {
		err := t.addEnded(ctx, timers)
		e.results.put(func() {
			e.writing, e.failing = false, err != nil
			switch {
			case err != nil:
				e.noted, timers = timers, e.noted
				e.add(timers...)
				e.nextAt = t.host.Monotonic() + endedLeast
			case whole && losses == e.losses:
				e.complete = upTo
			}
		})
		t.host.Wake()
	})
}

// addEnded writes timers to the list.
func (t *Term) addEnded(ctx context.Context, timers []store.EndedTimer) error {
	if len(timers) == 0 {
		return nil
	}
	// The next owner resumes from the clock: an earlier due time does not fire any more.
	clock := t.written.Load()
	passed := min(clock.TimeMs, clock.SweptMs)
	err := t.cfg.Ended.AddEnded(ctx, t.cfg.Shard, t.cfg.Time.EarliestNs()/int64(time.Millisecond), passed, timers)
	t.failed("list_ended", err)
	return err
}

// scanEnded lists the final records after the revision up to which the list is complete, and up to the tail.
func (t *Term) scanEnded() {
	e := &t.ended
	after, through := e.complete, t.tailRev
	e.scanning, e.forgot = true, false
	t.host.Go(func(ctx context.Context) {
		if !t.host.Pause(ctx, countAfter) { // due timers fire first
			return
		}
		err := t.listFinal(ctx, after, through)
		if err != nil && !t.host.Pause(ctx, countLimitedRetry) {
			return
		}
		e.results.put(func() {
			e.scanning = false
			e.suspect = e.suspect || err == nil // the list may have more timers now
			e.forgot = e.forgot || err != nil
		})
		t.host.Wake()
	})
}

// listFinal writes the timers that ended in the revisions after one and up to another.
func (t *Term) listFinal(ctx context.Context, after, through uint64) error {
	var found []store.EndedTimer
	var failed error
	nowMs := t.cfg.Time.EarliestNs() / int64(time.Millisecond)
	err := t.cfg.Ended.EachFinal(ctx, t.cfg.Shard, after, through, func(timer *store.Timer) {
		ended, ok := t.ended.rule.of(timer, nowMs)
		if !ok {
			return
		}
		if found = append(found, ended); len(found) == endedMost {
			failed = errors.Join(failed, t.addEnded(ctx, found))
			found = found[:0]
		}
	})
	t.failed("read_ended", err)
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	return t.addEnded(ctx, found)
}
