package scheduler

import (
	"context"
	"fmt"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// Bounds of inspections.
const (
	// inspectEvery is the interval between checks for lost messages and damaged records
	// of a shard. Each check requests the stream's state.
	inspectEvery = 30 * time.Second
	// inspectSoon is the interval while checks fail or find damage.
	inspectSoon = 2 * time.Second
	// startBound is how long a take-over waits for the end of the shard's stream.
	startBound = time.Second
)

// damage is what a shard's last inspection found, for Status.
type damage struct {
	records int
	loss    string
}

// start returns the clock from which a term starts. That is the stored clock, unless the
// stream has lost messages that an owner had read. The tail then resumes at the end of the
// stream, because new records get the sequences of the lost ones.
func (s *shard) start(ctx context.Context, c store.Clock) store.Clock {
	ctx, cancel := context.WithTimeout(ctx, startBound)
	defer cancel()
	last, err := s.o.Store.LastSeq(ctx, s.n)
	// Record the position: another node may own the shard next and must compare with it.
	s.seen.Store(max(s.seen.Load(), c.Seen))
	s.end.Store(last)
	if err == nil && last < c.Seen {
		c.Tail, c.Seen = min(c.Tail, last), last
	}
	return c
}

// inspect checks for damage until the term ends, first at once.
func (r *reign) inspect() {
	for wait := time.Duration(0); pause(r.ctx, wait); {
		wait = inspectEvery
		// Compare the end of the stream at the take-over with the position read by
		// then; afterwards compare the current end with the current position.
		seen, end := r.seen.Load(), r.end.Load()
		if end == 0 {
			seen = max(seen, r.written.Load().Seen)
		}
		in, err := r.o.Store.Inspect(r.ctx, r.n, seen, end)
		r.failed("inspect", err)
		if err != nil {
			wait = inspectSoon
			continue
		}
		r.end.Store(0)
		if in.LastSeq < r.written.Load().Seen {
			// The tail waits for sequences that do not exist. If that persists, take the
			// shard again, from the end of the stream.
			wait = inspectSoon
			if in.Key != "" {
				r.log.Error().Str("evidence", in.Evidence).Msg("the shard's stream has lost messages that its owner had read: taking the shard again")
				r.rewind.Store(true)
				r.in.put(EvTick{})
				return
			}
		} else if in.LastSeq < r.seen.Load() {
			wait = inspectSoon
		}
		r.tellDamage(in.Damage)
		if in.Key != "" {
			wait = inspectSoon
			r.audit(in)
		}
	}
}

// audit reads the whole shard after a loss and records the loss.
func (r *reign) audit(in store.Inspection) {
	r.log.Error().Str("evidence", in.Evidence).Uint64("messages", in.Messages).Msg("the server has lost messages of this shard: reading all of it")
	through := r.o.Time.EarliestNs()/int64(time.Millisecond) + r.cfg.HorizonMs
	loss, err := r.o.Store.Audit(r.ctx, r.n, in, r.written.Load().Pending, through, func(t store.Timer) error {
		select {
		case r.scan <- EvScanned{Timer: t}:
			return nil
		case <-r.ctx.Done():
			return context.Cause(r.ctx)
		}
	})
	r.failed("audit", err)
	if err != nil {
		return
	}
	r.seen.Store(0) // the loss up to here is recorded
	in.Damage.Loss = &loss
	r.tellDamage(in.Damage)
	r.log.Error().Str("evidence", loss.Evidence).Uint64("messages", loss.Messages).Strs("timers", loss.Timers).Int("more_timers", loss.TimersMore).
		Int64("waiting", loss.Waiting).Int64("expected", loss.Expected).Int("reindexed", loss.Reindexed).
		Msg("the loss is recorded, and intact timers fire; \"belfry repair\" shows it, and --apply marks it as known")
}

// tellDamage publishes the damage that was found.
func (r *reign) tellDamage(d store.ShardDamage) {
	found := damage{records: d.Count()}
	lost := uint64(0)
	if d.Loss != nil && !d.Loss.Noted {
		lost = d.Loss.Messages
		found.loss = fmt.Sprintf("%s; timers without a record: %d", d.Loss.Evidence, len(d.Loss.Timers)+d.Loss.TimersMore)
	}
	r.m.damaged.WithLabelValues(r.label).Set(float64(found.records))
	r.m.lost.WithLabelValues(r.label).Set(float64(lost))
	r.damage.Store(&found)
}
