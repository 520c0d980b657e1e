package scheduler

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// Bounds of inspections.
const (
	// inspectSoon is the interval between inspections while they fail or find damage.
	inspectSoon = 2 * time.Second
	// startBound bounds the request for the last sequence of the shard's stream at a
	// take-over.
	startBound = time.Second
)

// damage is the result of a shard's last inspection, for Status.
type damage struct {
	records int
	loss    string
}

// start returns the clock from which a term starts. That is the stored clock, unless the
// stream has lost messages that an owner had read. The tail then resumes at the end of the
// stream, because new records get the sequences of the lost ones, and the number of pending
// timers is unknown: the tail brings records again that it includes, and the lost ones are gone.
func (s *shard) start(ctx context.Context, c store.Clock) store.Clock {
	ctx, cancel := context.WithTimeout(ctx, startBound)
	defer cancel()
	last, err := s.o.Store.LastSeq(ctx, s.n)
	// Keep the previous owner's position in memory: inspections compare the stream with it.
	s.seen.Store(max(s.seen.Load(), c.Seen))
	s.end.Store(last)
	if s.cfg.Core.Head = last; err != nil {
		s.cfg.Core.Head = math.MaxUint64
	}
	expect := c.Expects()
	s.expect.Store(&expect)
	s.counted.Store(nil)
	if err == nil && last < c.Seen {
		c.Tail, c.EarlierTail, c.Seen, c.Ended = min(c.Tail, last), min(c.EarlierTail, last), last, 0
		c.PendingUnknown, c.Counted = true, false
	}
	return c
}

// inspector looks for lost messages and damaged records in a shard during one term.
type inspector struct {
	*termLoop
	// interruptions is the number of lost connections at the last comparison of message
	// counts. The server may have restarted with each, and may have lost messages.
	interruptions uint64
	// audited is true after the whole shard has been read in this term.
	audited bool
	setBack setBack
	// reindex is true while index entries have to be checked, because the cluster's clock was set back.
	reindex bool
}

// inspect inspects the shard at once and then at intervals until the term ends.
func (l *termLoop) inspect() {
	i := inspector{termLoop: l, interruptions: l.s.o.Store.Interruptions()}
	for wait := time.Duration(0); i.pause(wait); {
		var again bool
		if wait, again = i.inspectOnce(); !again {
			return
		}
	}
}

// pause waits for the next inspection, or until a count finds missing timers, which it
// audits. It returns false at the end of the term.
func (i *inspector) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-i.ctx.Done():
		return false
	case <-t.C:
	case n := <-i.missing:
		if i.audited {
			break // the audit has recorded it
		}
		i.audit(store.Inspection{
			Key: fmt.Sprintf("missing %d at %d", n, i.s.expect.Load().Seen), Missing: n,
			Evidence: fmt.Sprintf("%d waiting timers that an earlier owner had counted are gone", n),
		}, *i.s.expect.Load())
	}
	return true
}

// inspectOnce inspects the shard. It returns the time until the next inspection, or false if
// the shard must be taken again.
func (i *inspector) inspectOnce() (wait time.Duration, ok bool) {
	if i.reindexAfterSetBack() {
		return inspectSoon, true
	}
	// The first inspection compares the stream's last sequence at the take-over with the
	// previous owner's position, later inspections the current sequence with the current
	// position.
	seen, end := i.s.seen.Load(), i.s.end.Load()
	if end == 0 {
		seen = max(seen, i.written.Load().Seen)
	}
	interruptions := i.s.o.Store.Interruptions()
	var expect *store.Expectation
	switch {
	case i.counted.Load() == nil:
		expect = i.s.expect.Load()
	case interruptions != i.interruptions:
		x := i.written.Load().Expects()
		expect = &x
	}
	in, err := i.s.o.Store.Inspect(i.ctx, i.s.n, seen, end, expect)
	i.failed("inspect", err)
	for _, g := range in.Gone { // also after an error: the next inspection may not find them again
		i.put(EvGone{ID: g.ID, Rev: g.Rev})
	}
	if err != nil {
		return inspectSoon, true
	}
	i.s.end.Store(0)
	wait = i.s.o.InspectInterval
	if in.LastSeq < i.written.Load().Seen {
		// The stream ends before the position that this owner has read. If that persists, take
		// the shard again, so that the tail resumes at the end of the stream.
		wait = inspectSoon
		if in.Key != "" {
			i.log.Error().Str("evidence", in.Evidence).Msg("the shard's stream has lost messages that this owner had read: taking the shard again")
			i.giveUp.Store(true)
			i.put(EvTick{})
			return 0, false
		}
	} else if in.LastSeq < i.s.seen.Load() {
		wait = inspectSoon
	}
	i.reportDamage(in.Damage)
	if in.Key != "" {
		wait = inspectSoon
		if expect == nil {
			expect = i.s.expect.Load()
		}
		if !i.audit(in, *expect) {
			return wait, true
		}
	}
	i.interruptions = interruptions
	i.counted.Store(&store.Expectation{Msgs: in.Msgs, MsgsMs: in.StoredMs})
	return wait, true
}

// reindexAfterSetBack checks the index entries of the shard if the cluster's clock was set back so far that
// they may expire before their timers are due. That takes two inspections, so that all nodes have read the
// clock, and write no such entry, when the second one reads the shard. It returns false if there is nothing to do.
func (i *inspector) reindexAfterSetBack() (again bool) {
	nowMs := i.s.o.Time.EarliestNs() / int64(time.Millisecond)
	if i.setBack.note(i.progress.Load().TimeMs-nowMs, i.s.cfg.Core.ScanBehindMs) {
		i.reindex = true
		return true
	}
	if !i.reindex {
		return false
	}
	timers, err := i.s.o.Store.Reindex(i.ctx, i.s.n)
	if i.failed("reindex", err); err != nil {
		return true
	}
	i.reindex = false
	i.log.Warn().Int("timers", timers).Dur("set_back", time.Duration(i.setBack.aheadMs)*time.Millisecond).
		Msg("the cluster's clock was set back: read the whole shard, and wrote the index entries that would have expired too early")
	return false
}

// setBack finds out that the cluster's clock was set back: the low watermark, which never moves back, is then
// ahead of it, until the clock has caught up.
type setBack struct {
	// aheadMs is the time by which the watermark was ahead when note last returned true, or less if the clock has
	// caught up since.
	aheadMs int64
}

// note takes the time by which the low watermark is ahead of the clock, in milliseconds. It reports whether the clock was
// set back by more than boundMs, in one step or in several, since note last returned true.
func (b *setBack) note(aheadMs, boundMs int64) bool {
	if aheadMs-b.aheadMs > boundMs {
		b.aheadMs = aheadMs
		return true
	}
	b.aheadMs = max(min(b.aheadMs, aheadMs), 0)
	return false
}

// audit reads the whole shard after a sign of a loss, and records the loss. It returns
// false if it failed, so that the next inspection repeats it.
func (i *inspector) audit(in store.Inspection, expect store.Expectation) bool {
	log := i.log.Error()
	text := "the server has lost messages of this shard: reading the whole shard"
	if in.Suspect {
		log, text = i.log.Warn(), "the server may have lost messages of this shard: reading the whole shard"
	}
	log.Str("evidence", in.Evidence).Uint64("messages", in.Messages).Msg(text)
	through := i.s.o.Time.EarliestNs()/int64(time.Millisecond) + i.s.cfg.Core.HorizonMs
	d, err := i.s.o.Store.Audit(i.ctx, i.s.n, in, expect, through, func(t store.Timer) error {
		return i.Offer(i.ctx, EvScanned{Timer: t})
	})
	i.failed("audit", err)
	if err != nil {
		return false
	}
	i.audited = true
	i.s.seen.Store(0) // the loss up to here is recorded
	i.reportDamage(d)
	if d.Loss == nil || d.Loss.Noted {
		i.log.Info().Str("evidence", in.Evidence).Msg("read the whole shard: no timer is missing")
		return true
	}
	i.put(EvRecount{})
	l := d.Loss
	log = i.log.Error().Str("evidence", l.Evidence).Uint64("messages", l.Messages).Int64("missing", l.Missing).Strs("timers", l.Timers).Int("more_timers", l.TimersMore).
		Int64("waiting", l.Waiting).Int64("expected", l.Expected).Int("reindexed", l.Reindexed)
	if l.Gap != nil {
		log = log.Stringer("gap", l.Gap)
	}
	log.Msg("recorded the loss; intact timers fire. \"belfry repair\" shows the loss, and \"belfry repair --apply\" marks it as known")
	return true
}

// reportDamage sets the metrics and the status of a shard's damage.
func (s *shardState) reportDamage(d store.ShardDamage) {
	found := damage{records: d.Count()}
	lost := uint64(0)
	if d.Loss != nil && !d.Loss.Noted {
		// A loss that only a count shows has no number of messages; each timer has one.
		lost = max(d.Loss.Messages, uint64(d.Loss.Missing), 1)
		found.loss = d.Loss.Summary()
	}
	s.m.damaged.WithLabelValues(s.label).Set(float64(found.records))
	s.m.lost.WithLabelValues(s.label).Set(float64(lost))
	s.damage.Store(&found)
}
