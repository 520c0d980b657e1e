package sim

import (
	"time"

	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/scheduler"
)

// This file is what runs beside a reign's loop: the tail and the sweeper.

// --- the tail ---

// fetch reads the next records of the shard's stream, as an ordered consumer does:
// at some replica, in order, some at a time.
func (r *reign) fetch() {
	if r.fetching || r.ended || len(r.tail) >= tailBuffer {
		return
	}
	r.fetching = true
	w, inc := r.w, r.n.inc
	again := func(d time.Duration) {
		w.after(d, func() {
			r.fetching = false
			r.n.run(inc, r.fetch)
		})
	}
	w.after(w.net.delay(), func() {
		if r.ended {
			return
		}
		i := w.net.replica()
		if i < 0 || w.now < r.n.cutUntil || w.net.loses() {
			again(w.between(100*time.Millisecond, time.Second))
			return
		}
		stream := fake.StreamShard(r.shard)
		got, pos := w.server.ReadTail(r.shard, r.tailPos, w.net.stands(i, stream), 1+w.rng.IntN(60), r.n.client.Reads())
		if pos == r.tailPos {
			if pos < w.server.LastSeq(stream) {
				again(w.between(time.Millisecond, 50*time.Millisecond)) // the replica lags
				return
			}
			w.waitingTails[r.shard] = append(w.waitingTails[r.shard], func() { again(0) })
			return
		}
		w.after(w.net.delay(), func() {
			r.n.run(inc, func() {
				r.fetching = false
				r.tailPos = pos
				r.tail = append(r.tail, got...)
				r.wake()
				r.fetch()
			})
		})
	})
}

// tailsOf wakes the tails that wait at the end of a shard.
func (w *world) tailsOf(shard int) {
	waiting := w.waitingTails[shard]
	w.waitingTails[shard] = nil
	for _, f := range waiting {
		f()
	}
}

// --- the sweeper ---

func (r *reign) sweep(p *proc) {
	s := scheduler.Sweeper{
		Store: r.n.client, Shard: r.shard, Geometry: r.w.p.geo, Delay: r.w.p.sweep,
		Newer: func(tick int64) {
			if at := r.w.p.geo.TickStart(tick); r.sweepHeld == 0 || at < r.sweepHeld {
				r.sweepHeld = at
			}
		},
		Found: func(ev scheduler.EvSwept) {
			r.w.check.swept(r, ev)
			r.put(ev)
		},
		Looked: func(int) {},
	}
	for {
		p.sleep(r.w.p.sweep / 20)
		for more := true; more && !r.ended && !r.suspended; {
			was := r.sweptMs
			var err error
			r.sweptMs, more, err = s.Some(within(callTimeout), r.sweptMs, r.progress)
			if (err != nil || r.sweptMs != was) && r.w.cfg.Trace != nil {
				r.w.trace("%s: shard %d swept %s to %s, %v", r.n.name, r.shard, ms(was), ms(r.sweptMs), err)
			}
		}
		if r.ended {
			return
		}
	}
}
