package scheduler

import "sync/atomic"

// Backlog counts the shards of a node in which due timers wait for their claims. The shards of a node share
// its processors. So while the due timers of one shard wait, the others write no final records: in a
// burst the events of all shards come first. The zero value is ready. Safe for concurrent use.
type Backlog struct{ shards atomic.Int64 }

// any reports whether due timers of a shard wait.
func (b *Backlog) any() bool { return b.shards.Load() > 0 }

// backlogMember is the part of one core in the Backlog of its node.
type backlogMember struct {
	of  *Backlog
	due bool
}

// set notes whether due timers of the core wait.
func (m *backlogMember) set(due bool) {
	if m.due == due {
		return
	}
	if m.due = due; due {
		m.of.shards.Add(1)
	} else {
		m.of.shards.Add(-1)
	}
}
