package scheduler

import "sync/atomic"

// Backlog counts the shards of a node that have due timers to claim. A shard does not count while its due timers
// have waited for backlogStallMs without a stored claim. The shards share the node's processors, so while one has due timers, the
// others write no final records: in a burst the events of all shards come first. The zero value is ready.
// Safe for concurrent use.
type Backlog struct{ shards atomic.Int64 }

// Shards returns the number of shards in the Backlog. It is 0 when no term of the node runs.
func (b *Backlog) Shards() int64 { return b.shards.Load() }

// backlogStallMs is the time without a stored claim after which a shard no longer counts: its store does not
// answer, and the final records of other shards need not wait for it.
const backlogStallMs = 1000

// backlogMember is the part of one core in the Backlog of its node.
type backlogMember struct {
	of      *Backlog
	counted bool // of includes this core
	// progressMs is the time at which due timers began to wait, or at which the last claim was stored if that is
	// later, in Unix milliseconds; 0 while no due timer waits.
	progressMs int64
}

// claimed notes that a claim of the core was stored.
func (m *backlogMember) claimed(nowMs int64) { m.progressMs = nowMs }

// note adds the core to the Backlog while it has due timers, and removes it when they have waited for
// backlogStallMs without a stored claim.
func (m *backlogMember) note(nowMs int64, due bool) {
	switch {
	case !due:
		m.progressMs = 0
	case m.progressMs == 0:
		m.progressMs = nowMs
	}
	m.set(due && nowMs-m.progressMs < backlogStallMs)
}

// set adds the core to the Backlog, or removes it.
func (m *backlogMember) set(counted bool) {
	if m.counted == counted {
		return
	}
	if m.counted = counted; counted {
		m.of.shards.Add(1)
	} else {
		m.of.shards.Add(-1)
	}
}
