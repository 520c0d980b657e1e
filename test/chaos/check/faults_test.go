package check

import (
	"slices"
	"testing"

	"github.com/belfryio/belfry/schemas"
)

// at returns a time in Unix nanoseconds, ms milliseconds after due.
func at(ms int64) int64 { return (due + ms) * 1_000_000 }

func (s *story) clock(shard int, owner string, epoch uint64, ms int64) *story {
	return s.put(Event{Kind: Clock, Shard: shard, Owner: owner, Epoch: epoch, TimeNs: at(ms)})
}

func (s *story) fault(n int, name, owner string, ms int64, shards ...int) *story {
	return s.put(Event{Kind: Fault, Fault: n, Name: name, Owner: owner, Shards: shards, TimeNs: at(ms)})
}

func (s *story) heal(n int, ms int64) *story {
	return s.put(Event{Kind: Heal, Fault: n, TimeNs: at(ms)})
}

// timer adds a timer of a shard that is due at dueMs and fires at firedMs, both relative
// to due.
func (s *story) timer(call int64, id string, shard int, dueMs, firedMs int64) *story {
	return s.put(Event{Kind: Add, Call: call, ID: id, DueMs: due + dueMs, Data: "d"}).ok(call).
		put(Event{Kind: Fired, ID: id, Shard: shard, TimeNs: at(firedMs), Key: key(id), Data: "d"})
}

func TestFailover(t *testing.T) {
	t.Parallel()
	s := new(story).
		clock(0, "n1", 1, 0).clock(1, "n2", 1, 0).
		timer(1, "calm", 0, 10, 11).
		// n1 dies at 1000. A write that it sent before arrives later.
		fault(1, "node-kill", "n1", 1000, 0).
		clock(0, "n1", 1, 1001).clock(0, "n2", 2, 4000).
		timer(2, "before", 0, 990, 1002). // claimed before the fault
		timer(3, "late", 0, 1500, 4010).
		timer(4, "other", 1, 1600, 1601).
		heal(1, 3000).
		// A server that leads the bucket of shard 1 dies at 20000.
		fault(2, "server-kill", "", 20_000, 1).
		put(Event{Kind: Elected, Name: "KV_" + schemas.BucketTimers(0), TimeNs: at(25_500)}).
		put(Event{Kind: Elected, Name: "KV_" + schemas.BucketTimers(1), TimeNs: at(25_000)}).
		clock(1, "n2", 1, 20_700).
		timer(5, "elected", 1, 20_100, 25_600).
		heal(2, 26_000).
		// The next fault hits shard 0, which never fires again.
		fault(3, "node-kill", "n2", 40_000, 0).heal(3, 41_000)
	r := Check(s.events)
	if len(r.Violations) > 0 {
		t.Fatal(r.Violations)
	}
	if len(r.Faults.Kinds) != 2 {
		t.Fatalf("kinds: %+v", r.Faults.Kinds)
	}
	kill, server := r.Faults.Kinds[0], r.Faults.Kinds[1]
	if kill.Name != "node-kill" || kill.Count != 2 || kill.Never != 1 || !slices.Equal(kill.ClockMs, []int64{3000}) || !slices.Equal(kill.FiredMs, []int64{3010}) || kill.MaxAfter() != 3010 {
		t.Errorf("node-kill: %+v", kill)
	}
	if server.Name != "server-kill" || !slices.Equal(server.ClockMs, []int64{700}) || server.Max() != 5600 || server.MaxAfter() != 600 {
		t.Errorf("server-kill: %+v", server)
	}
	// The window of the first fault ends a second after the shard fired again.
	if want := []int64{1, 12}; !slices.Equal(r.Faults.Outside, want) {
		t.Errorf("outside windows: %v, want %v", r.Faults.Outside, want)
	}
	if want := []int64{1, 2510, 5500}; !slices.Equal(r.Faults.Inside, want) {
		t.Errorf("inside windows: %v, want %v", r.Faults.Inside, want)
	}
}
