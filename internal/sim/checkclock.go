package sim

import (
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// clock checks every change of a shard's clock.
func (c *checker) clock(shard int, was, now store.Clock) {
	// A node that takes a shard whose clock is damaged resumes from an older state. If the clock has no copy, the
	// new epoch is the leader's time, which may have been set back since the last one.
	damaged := c.w.damaged[shard]
	resumed := damaged && (now.Epoch > was.Epoch || now.Epoch < was.Epoch && c.w.p.jumps)
	// An owner that writes its clock again may not know that its last write was stored: the answer was lost, and a reread
	// came before the write. Tail then may be that of the write before. The next owner reads some records twice.
	rewritten := damaged && now.Epoch == was.Epoch && now.Owner == was.Owner && now.Tail >= c.tailBefore[shard]
	c.w.damaged[shard] = false
	switch {
	case resumed:
	case now.TimeMs < was.TimeMs:
		c.fail(PropClock, "shard %d: time from %s to %s", shard, c.w.ms(was.TimeMs), c.w.ms(now.TimeMs))
	case now.Tail < was.Tail && !rewritten:
		c.fail(PropClock, "shard %d: tail from %d to %d", shard, was.Tail, now.Tail)
	case now.Epoch < was.Epoch, now.Epoch == was.Epoch && now.Owner != was.Owner && now.Owner != "":
		c.fail(PropClock, "shard %d: epoch %d of %q to %d of %q", shard, was.Epoch, was.Owner, now.Epoch, now.Owner)
	}
	c.tailBefore[shard] = was.Tail
	if now.Epoch > was.Epoch {
		c.calm(shard)
		c.taken(shard)
	}
	if o := c.owners[shard][now.Epoch]; o != "" && now.Owner != "" && o != now.Owner {
		c.fail(PropOwner, "shard %d: epoch %d of both %s and %s", shard, now.Epoch, o, now.Owner)
	} else if now.Owner != "" {
		c.owners[shard][now.Epoch] = now.Owner
	}
	if limit := c.w.net.latest(c.w.epoch) / int64(time.Millisecond); now.TimeMs > limit {
		c.fail(PropMark, "shard %d: time %s is to come", shard, c.w.ms(now.TimeMs))
	}
	open := c.byShard[shard][:0]
	for _, l := range c.byShard[shard] {
		if l.final {
			continue
		}
		open = append(open, l)
		t, err := c.w.server.Record(l.id)
		if err != nil || t.Record.DueMs >= now.TimeMs || t.Rev > now.Tail || l.half {
			continue
		}
		r := &t.Record
		if r.Pending() || r.State == schemas.StateDelivered && !c.published[published(t)] {
			c.fail(PropMark, "shard %d: %s, due %s, revision %d, is %s behind %s, tail %d", shard, l, c.w.ms(r.DueMs), t.Rev, r.State, c.w.ms(now.TimeMs), now.Tail)
		}
	}
	c.byShard[shard] = open
}
