package sim

import (
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/internal/store"
)

// fetch reads the next records of the shard's stream as an ordered consumer does: from some
// replica, in order, a few at a time, or as from memory: with the revisions that have been replaced.
func (t *term) fetch() {
	if t.fetching || t.ended || len(t.tail) >= recordBuffer {
		return
	}
	t.fetching = true
	w, inc := t.w, t.n.inc
	again := func(d time.Duration) {
		w.after(d, func() {
			t.fetching = false
			t.n.run(inc, t.fetch)
		})
	}
	w.after(w.net.delay(), func() {
		if t.ended {
			return
		}
		i := w.net.replica()
		if i < 0 || w.now < t.n.cutUntil || w.net.loses() {
			again(w.between(100*time.Millisecond, time.Second))
			return
		}
		stream := fake.StreamShard(t.shard)
		got, pos := t.n.client.ReadTail(t.shard, t.tailPos, w.net.stands(i, stream), 1+w.rng.IntN(60), t.replacedFrom)
		if w.cfg.Plant == PlantTailGap {
			got = slices.DeleteFunc(got, func(r store.Timer) bool { return r.Rev > t.replacedFrom && w.oneIn(8) })
		}
		if pos == t.tailPos {
			if pos < w.server.LastSeq(stream) {
				again(w.between(time.Millisecond, 50*time.Millisecond)) // the replica lags
				return
			}
			w.waitingTails[t.shard] = append(w.waitingTails[t.shard], func() { again(0) })
			return
		}
		w.after(w.net.delay(), func() {
			t.n.run(inc, func() {
				t.fetching = false
				t.tailPos = pos
				t.tail = append(t.tail, got...)
				t.Wake()
				t.fetch()
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
