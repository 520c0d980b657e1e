package scheduler

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/store"
)

// TestUntakenWithLateHeartbeats: a node whose heartbeats are late says which shards of a dead owner it does not
// take, but not while the owner lives.
func TestUntakenWithLateHeartbeats(t *testing.T) {
	t.Parallel()
	c := newCourt(t, 1, false)
	c.clock(0, "other")
	c.age = testLease/2 + 1
	var at time.Duration
	for range 20 {
		c.clock(0, "other")
		c.after(testTick)
		if late, refused := c.k.Untaken(c.now); len(late)+len(refused) != 0 {
			t.Fatalf("late %v, refused %v while the owner lives", late, refused)
		}
	}
	for ; at < time.Minute; at += testTick {
		if takes, _ := c.after(testTick); len(takes) != 0 {
			t.Fatalf("takes %v", takes)
		}
		if late, _ := c.k.Untaken(c.now); len(late) > 0 {
			break
		}
	}
	if at < 2*testLease-testTick || at > 2*testLease+testTick {
		t.Errorf("said after %s", at)
	}
	c.age = 0
	for range 10 {
		if takes, _ := c.after(testTick); len(takes) == 1 {
			c.take(takes[0])
		}
	}
	if late, refused := c.k.Untaken(c.now); len(late)+len(refused) != 0 || !c.k.Holds() {
		t.Errorf("late %v, refused %v; holds %v", late, refused, c.k.Holds())
	}
}

// TestUntakenRefused: a node that has the server refuse its attempts for longer than a lease, while the clock
// that it reads stands still, says so.
func TestUntakenRefused(t *testing.T) {
	t.Parallel()
	c := newCourt(t, 1, false)
	var at time.Duration
	for ; at < time.Minute; at += testTick {
		takes, _ := c.after(testTick)
		if len(takes) != 1 {
			t.Fatalf("takes %v", takes)
		}
		c.k.Step(c.now, ShardTaken{Shard: 0, Err: store.ErrRevision})
		if _, refused := c.k.Untaken(c.now); slices.Equal(refused, []int{0}) {
			break
		}
	}
	if at <= testLease || at > testLease+2*testTick {
		t.Errorf("said after %s", at)
	}
	c.clock(0, "other")
	c.after(testTick)
	if late, refused := c.k.Untaken(c.now); len(late)+len(refused) != 0 {
		t.Errorf("late %v, refused %v after the clock has changed", late, refused)
	}
}

func TestUntakenLog(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := zerolog.New(&out)
	var l untakenLog
	l.write(log, time.Second, 0, nil, nil)
	for now := time.Second; now < untakenEvery; now += time.Second {
		l.write(log, now, 1600*time.Millisecond, []int{1, 2}, []int{3})
	}
	l.write(log, 2*untakenEvery, 0, nil, []int{3})
	want := `{"level":"warn","shards":[1,2],"heartbeat_age_ms":1600,"message":"shards of silent owners are not taken: this node's heartbeats are late, so the store may be slow for their owners, too"}
{"level":"warn","shards":[3],"message":"shards are not taken: the server refuses each attempt, because their clocks have changed and the replica that this node reads does not show it"}
{"level":"warn","shards":[3],"message":"shards are not taken: the server refuses each attempt, because their clocks have changed and the replica that this node reads does not show it"}
`
	if out.String() != want {
		t.Errorf("log:\n%s\nwant:\n%s", out.String(), want)
	}
}
