package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file is a term's writes of the shard's clock: renewals of the lease, and the
// release.

// renewal is the result of one write of the clock, with the reading that follows a lost
// compare-and-set.
type renewal struct {
	start    time.Duration
	clock    store.Clock
	progress store.Clock // see Core.Checkpoint
	rev      uint64
	err      error
	was      store.Clock
	wasRev   uint64
	readErr  error
	release  bool // it writes the clock without an owner
}

// maybeRenew begins a write of the clock once a heartbeat interval.
func (t *Term) maybeRenew() {
	if next, ok := t.tenure.NextWrite(); !ok || t.host.Monotonic() < next {
		return
	}
	if t.cfg.HoldRenewal != nil && t.cfg.HoldRenewal() {
		return
	}
	c, progress := t.checkpoint()
	_, rev := t.tenure.Clock()
	t.tenure.Writing()
	t.host.Go(func(ctx context.Context) {
		res := t.renew(ctx, c, rev)
		res.progress = progress
		t.renewed(&res)
	})
}

func (t *Term) renewed(res *renewal) {
	t.in.putRenewed(res)
	t.host.Wake()
}

// renew writes the clock. It gives an attempt up after a heartbeat interval: a store
// without a leader may never answer, and when it is back its owners must write first.
func (t *Term) renew(ctx context.Context, c store.Clock, rev uint64) renewal {
	res := renewal{start: t.host.Monotonic(), clock: c}
	write, cancel := t.host.WithTimeout(ctx, max(t.cfg.Tick, minRenewWait))
	defer cancel()
	if res.rev, res.err = t.cfg.Store.WriteClock(write, t.cfg.Shard, c, rev); isRevision(res.err) {
		res.was, res.wasRev, res.readErr = t.cfg.Store.ReadClock(write, t.cfg.Shard)
	}
	return res
}

// checkpoint returns the clock to write, and the progress behind it; see Core.Checkpoint.
func (t *Term) checkpoint() (c, progress store.Clock) {
	c, _ = t.tenure.Clock()
	progress = t.core.Checkpoint(&c)
	swept := t.swept.Load()
	if held := t.sweepHeld.Load(); held != 0 {
		swept = min(swept, held)
	}
	c.SweptMs = max(c.SweptMs, swept)
	if n := t.counted.Load(); n != nil {
		c.Msgs, c.MsgsMs = n.Msgs, n.MsgsMs
	}
	return c, progress
}

// holdSweep keeps the recorded position of the sweeper before a time in Unix
// milliseconds, where it found a record of a newer format.
func (t *Term) holdSweep(ms int64) {
	if held := t.sweepHeld.Load(); held == 0 || ms < held {
		t.sweepHeld.Store(ms)
	}
}

// onRenewed processes the result of a write of the clock. It sets lost if another node
// owns the shard.
func (t *Term) onRenewed(res *renewal) {
	if res.release {
		if res.err == nil || res.readErr == nil && res.was.Owner == "" && res.was.Epoch == res.clock.Epoch {
			t.log.Debug().Uint64("epoch", res.clock.Epoch).Time("mark", time.UnixMilli(res.clock.TimeMs)).Msg("shard released")
			t.over = true
			return
		}
		defer t.retryRelease(res)
	}
	verdict := t.tenure.Wrote(t.host.Monotonic(), res.start, res.clock, res.rev, res.err)
	err := res.err
	if verdict == Unsure {
		verdict = t.tenure.Reread(t.host.Monotonic(), res.was, res.wasRev, res.readErr)
		err = res.readErr
	}
	switch verdict {
	case Kept:
		t.kept(res)
	case Lost:
		t.m.deposed.Inc()
		t.lostTo(res)
		t.lost = true
		return
	default:
		t.m.storeErrs.WithLabelValues("renew_clock").Inc()
		if isDamage(res.readErr) {
			t.m.damagedClocks.Inc()
			log := t.log.Error()
			if _, ok := t.damageLog.Allow(time.Unix(0, 0).Add(t.host.Monotonic())); !ok {
				log = t.log.Debug() // the metric counts each
			}
			log.Err(res.readErr).Uint64("revision", res.wasRev).Msg("a client that does not own the shard overwrote or removed its clock: writing it again")
			err = nil // the next write decides
		}
	}
	t.logChange("renew clock", err)
}

// kept publishes a state that is stored.
func (t *Term) kept(res *renewal) {
	t.markMs.Store(res.clock.TimeMs)
	t.written.Store(&res.clock)
	t.progress.Store(&res.progress)
	t.tellNewer(res.clock)
	if pending, known := t.core.Pending(); known {
		t.m.pending.WithLabelValues(t.label).Set(float64(pending))
	} else {
		t.m.pending.DeleteLabelValues(t.label)
	}
	t.m.loaded.WithLabelValues(t.label).Set(float64(t.core.Loaded()))
	lag := time.Duration(t.cfg.Time.EarliestNs() - t.core.LowWatermarkMs()*int64(time.Millisecond))
	t.m.lag.WithLabelValues(t.label).Set(lag.Seconds())
}

// tellNewer reports the records of newer formats, in the log when the first is met and
// when none is left.
func (t *Term) tellNewer(c store.Clock) {
	n := int64(t.core.Newer())
	t.m.newer.WithLabelValues(t.label).Set(float64(n))
	switch was := t.newer.Swap(n); {
	case was == 0 && n > 0:
		t.log.Error().Int64("records", n).Int("needs_level", int(c.Needs)).Int("reads_level", int(t.cfg.Core.Level)).Time("low_watermark", time.UnixMilli(c.TimeMs)).
			Msg("the shard has records of a newer format: it goes to a node that reads them; until there is one, the low watermark stays before them and all other timers fire")
	case was > 0 && n == 0:
		t.log.Info().Msg("no record of a newer format is left in the shard")
	}
}

// isDamage reports whether a clock has a value that no owner wrote.
func isDamage(err error) bool {
	return errors.Is(err, schemas.ErrDamaged) || errors.Is(err, schemas.ErrNotFound)
}

// lostTo logs why this node lost a shard.
func (t *Term) lostTo(res *renewal) {
	switch log := t.log.With().Uint64("epoch", res.clock.Epoch).Logger(); {
	case errors.Is(res.readErr, schemas.ErrNewer):
		log.Error().Err(res.readErr).Msg("shard given up: a node of a newer version has written its clock")
	case isDamage(res.readErr):
		t.m.damagedClocks.Inc()
		log.Error().Err(res.readErr).Msg("shard given up: its clock was overwritten after the lease had expired; a node takes it again after a lease")
	default:
		log.Warn().Str("to", res.was.Owner).Msg("shard lost: another node moved its clock")
	}
}

// releaseClock begins to write the clock without an owner, within a time.
func (t *Term) releaseClock(within time.Duration) {
	c, progress := t.checkpoint()
	c.Owner = ""
	// Claims without an answer may be stored, and are not in the count.
	c.PendingUnknown = c.PendingUnknown || !t.idle
	_, rev := t.tenure.Clock()
	t.tenure.Writing()
	t.host.Go(func(ctx context.Context) {
		ctx, cancel := t.host.WithTimeout(ctx, within)
		defer cancel()
		t.countMessages(ctx, &c)
		res := t.renew(ctx, c, rev)
		res.progress, res.release = progress, true
		t.renewed(&res)
	})
}

// countMessages counts the shard's messages for the next owner. Without an answer, the
// last inspection's count remains.
func (t *Term) countMessages(ctx context.Context, c *store.Clock) {
	if t.cfg.Messages == nil || t.counted.Load() == nil {
		return // what the previous owner counted was not compared yet
	}
	if n, atMs, err := t.cfg.Messages(ctx, t.cfg.Shard); err == nil {
		c.Msgs, c.MsgsMs = n, atMs
	}
}

// retryRelease plans the next try after a failed try.
func (t *Term) retryRelease(res *renewal) {
	now := t.host.Monotonic()
	if t.retryAt = now + releaseRetry; !t.lost && t.retryAt < t.until {
		return
	}
	t.over = true
	t.log.Warn().Err(res.err).Msg("clock not released: the next owner waits for the lease")
}
