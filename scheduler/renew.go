package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file writes the shard's clock during a term: renewals of the lease, and the release.

// renewal is the result of one write of the clock. After a lost compare-and-set it includes
// the result of reading the clock (was, wasRev, readErr).
type renewal struct {
	start    time.Duration
	clock    store.Clock
	progress store.Clock // see Core.Checkpoint
	rev      uint64
	err      error
	was      store.Clock
	wasRev   uint64
	readErr  error
	release  bool // the write releases the shard
}

// maybeRenew starts a write of the clock if the next renewal is due.
func (t *Term) maybeRenew() {
	if next, ok := t.lease.NextWrite(); !ok || t.host.Monotonic() < next {
		return
	}
	if t.cfg.HoldRenewal != nil && t.cfg.HoldRenewal() {
		return
	}
	c, progress := t.checkpoint()
	_, rev := t.lease.Clock()
	t.lease.Writing()
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

// renew writes the clock. It gives up after a heartbeat interval: a store without a leader
// may never answer, and when the store answers again, its owners must be able to write
// before other nodes take their shards.
func (t *Term) renew(ctx context.Context, c store.Clock, rev uint64) renewal {
	res := renewal{start: t.host.Monotonic(), clock: c}
	write, cancel := t.host.WithTimeout(ctx, max(t.cfg.Heartbeat, minRenewWait))
	defer cancel()
	if res.rev, res.err = t.cfg.Store.WriteClock(write, t.cfg.Shard, c, rev); isRevision(res.err) {
		res.was, res.wasRev, res.readErr = t.cfg.Store.ReadClock(write, t.cfg.Shard)
	}
	return res
}

// checkpoint returns the clock to write, and the clock for the sweeper; see Core.Checkpoint.
func (t *Term) checkpoint() (c, progress store.Clock) {
	c, _ = t.lease.Clock()
	progress = t.core.Checkpoint(&c)
	swept := t.swept.Load()
	if held := t.sweepHeld.Load(); held != 0 {
		swept = min(swept, held)
	}
	c.SweptMs = max(c.SweptMs, swept)
	if n := t.counted.Load(); n != nil {
		c.Msgs, c.MsgsMs = n.Msgs, n.MsgsMs
	}
	if c.Ended = 0; t.cfg.Ended != nil && t.ended.rule.keepMs != 0 {
		c.Ended = t.ended.upTo(t.tailRev)
	}
	if c.Basis = *t.planned.Load(); t.older.waiting() {
		c.Basis = ""
	}
	return c, progress
}

// holdSweep limits the sweeper's position in the clock to ms (Unix milliseconds), because
// the sweeper found a record of a newer format there.
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
			t.log.Debug().Uint64("epoch", res.clock.Epoch).Time("low_watermark", time.UnixMilli(res.clock.TimeMs)).Msg("shard released")
			t.over = true
			return
		}
		defer t.retryRelease(res)
	}
	verdict := t.lease.Wrote(t.host.Monotonic(), res.start, res.clock, res.rev, res.err)
	err := res.err
	if verdict == Unsure {
		verdict = t.lease.Reread(t.host.Monotonic(), res.was, res.wasRev, res.readErr)
		err = res.readErr
	}
	switch verdict {
	case Kept:
		t.onStored(res)
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
				log = t.log.Debug() // the metric counts every case
			}
			log.Err(res.readErr).Uint64("revision", res.wasRev).Msg("a client that does not own the shard overwrote or removed its clock: writing it again")
			err = nil // the next write decides
		}
	}
	t.logChange("renew clock", err)
}

// onStored updates status and metrics after a successful write of the clock.
func (t *Term) onStored(res *renewal) {
	t.watermarkMs.Store(res.clock.TimeMs)
	t.written.Store(&res.clock)
	t.progress.Store(&res.progress)
	t.reportNewer(res.clock)
	if pending, known := t.core.Pending(); known {
		t.m.pending.WithLabelValues(t.label).Set(float64(pending))
	} else {
		t.m.pending.DeleteLabelValues(t.label)
	}
	t.m.loaded.WithLabelValues(t.label).Set(float64(t.core.Loaded()))
	lag := time.Duration(t.cfg.Time.EarliestNs() - t.core.LowWatermarkMs()*int64(time.Millisecond))
	t.m.lag.WithLabelValues(t.label).Set(lag.Seconds())
}

// reportNewer updates the number of records of newer formats. It logs when the first is
// found and when none is left.
func (t *Term) reportNewer(c store.Clock) {
	n := int64(t.core.Newer())
	t.m.newer.WithLabelValues(t.label).Set(float64(n))
	switch was := t.newer.Swap(n); {
	case was == 0 && n > 0:
		t.log.Error().Int64("records", n).Int("needs_level", int(c.Needs)).Int("reads_level", int(t.cfg.Core.Level)).Time("low_watermark", time.UnixMilli(c.TimeMs)).
			Msg("the shard has records of a newer format: a node that reads them takes the shard; until then the low watermark stays before them and all other timers fire")
	case was > 0 && n == 0:
		t.log.Info().Msg("no record of a newer format is left in the shard")
	}
}

// isDamage reports whether err is the error of a clock that a client other than an owner
// overwrote or removed.
func isDamage(err error) bool {
	return errors.Is(err, schemas.ErrDamaged) || errors.Is(err, schemas.ErrNotFound)
}

// lostTo logs why this node lost a shard.
func (t *Term) lostTo(res *renewal) {
	switch log := t.log.With().Uint64("epoch", res.clock.Epoch).Logger(); {
	case errors.Is(res.readErr, schemas.ErrNewer):
		log.Error().Err(res.readErr).Msg("shard given up: a node of a newer version wrote its clock")
	case isDamage(res.readErr):
		t.m.damagedClocks.Inc()
		log.Error().Err(res.readErr).Msg("shard given up: its clock was overwritten or removed after the lease had expired; a node takes the shard after another lease")
	default:
		log.Warn().Str("to", res.was.Owner).Msg("shard lost: another node wrote its clock")
	}
}

// withdraw removes this node from a clock that releases the shard, and the number of pending timers if that may be wrong.
func (t *Term) withdraw(c *store.Clock) {
	c.Owner = ""
	// A claim, or the final record of a rejected claim, may be stored although its result has not arrived. The number still
	// includes its timer. The final record of a fired timer does not change the number.
	c.PendingUnknown = c.PendingUnknown || t.core.inflight > 0 || t.core.hasUnclear()
	if t.ended.looking {
		// A record that the look deletes may be in the number, and the next owner does not find it.
		c.PendingUnknown, c.Counted = true, false
	}
}

// releaseClock starts a write of the clock without an owner, which gives up after within.
func (t *Term) releaseClock(within time.Duration) {
	c, progress := t.checkpoint()
	t.withdraw(&c)
	_, rev := t.lease.Clock()
	t.lease.Writing()
	t.host.Go(func(ctx context.Context) {
		ctx, cancel := t.host.WithTimeout(ctx, within)
		defer cancel()
		counting, counted := t.host.WithTimeout(ctx, within/4) // the write matters more
		t.countMessages(counting, &c)
		counted()
		res := t.renew(ctx, c, rev)
		res.progress, res.release = progress, true
		t.renewed(&res)
	})
}

// countMessages sets the number of the shard's messages for the next owner. If the request
// fails, the number of the last inspection remains.
func (t *Term) countMessages(ctx context.Context, c *store.Clock) {
	if t.cfg.Messages == nil || t.counted.Load() == nil {
		return // the previous owner's number was not compared yet: keep it
	}
	if n, atMs, err := t.cfg.Messages(ctx, t.cfg.Shard); err == nil {
		c.Msgs, c.MsgsMs = n, atMs
	}
}

// retryRelease plans the next attempt to release the clock, or gives up.
func (t *Term) retryRelease(res *renewal) {
	now := t.host.Monotonic()
	if t.retryAt = now + releaseRetry; !t.lost && t.retryAt < t.until {
		return
	}
	t.over = true
	t.log.Warn().Err(res.err).Msg("clock not released: the next owner waits until the lease expires")
}
