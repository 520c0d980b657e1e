package scheduler

import (
	"context"
	"fmt"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// Bounds of inspections.
const (
	// inspectEvery is the interval of looks at what a shard's stream has lost, and at
	// its damaged records. Each costs a request of the stream's state.
	inspectEvery = 30 * time.Second
	// inspectSoon is the interval while a look fails, or finds something.
	inspectSoon = 2 * time.Second
	// startBound is how long a take-over waits for the end of the shard's stream.
	startBound = time.Second
)

// damage is what a shard's last inspection found, for Status.
type damage struct {
	records int
	loss    string
}

// start is the clock that a reign starts from. It is the one that was written,
// unless the stream has lost what an owner had read: then the tail is taken up where
// the stream ends, since new records get the sequences of those that were lost.
func (s *shard) start(ctx context.Context, c store.Clock) store.Clock {
	ctx, cancel := context.WithTimeout(ctx, startBound)
	defer cancel()
	last, err := s.o.Store.LastSeq(ctx, s.n)
	// Another node may own the shard next: it is to compare with what was seen, too.
	s.seen.Store(max(s.seen.Load(), c.Seen))
	s.end.Store(last)
	if err == nil && last < c.Seen {
		c.Tail, c.Seen = min(c.Tail, last), last
	}
	return c
}

// inspect looks for damage for as long as the reign lasts, first at once.
func (r *reign) inspect() {
	for wait := time.Duration(0); pause(r.ctx, wait); {
		wait = inspectEvery
		// Where the stream ended at the take-over is compared with what had been read by
		// then. What is read now is compared with where it ends now.
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
			// What the tail waits for does not come. If that stays so, the shard is taken
			// again, from where the stream ends.
			wait = inspectSoon
			if in.Key != "" {
				r.log.Error().Str("evidence", in.Evidence).Msg("the shard's stream has lost messages that its owner had read: taking the shard anew")
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

// audit reads the whole shard after a loss.
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
	r.seen.Store(0) // what was seen before is accounted for
	in.Damage.Loss = &loss
	r.tellDamage(in.Damage)
	r.log.Error().Str("evidence", loss.Evidence).Uint64("messages", loss.Messages).Strs("timers", loss.Timers).Int("more_timers", loss.TimersMore).
		Int64("waiting", loss.Waiting).Int64("expected", loss.Expected).Int("reindexed", loss.Reindexed).
		Msg("a loss is on record: what is intact fires; \"belfry repair\" shows it, and takes note of it with --apply")
}

// tellDamage publishes what is known of damage.
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
