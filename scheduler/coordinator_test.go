package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

func TestAssign(t *testing.T) {
	t.Parallel()
	if Assign(8, nil) != nil {
		t.Error("shards were assigned to nobody")
	}
	var nodes []string
	for n := 1; n <= 9; n++ {
		before := Assign(64, nodes)
		nodes = append(nodes, fmt.Sprintf("host-%d", n))
		after := Assign(64, nodes)
		count := map[string]int{}
		moved := 0
		for s, node := range after {
			count[node]++
			if before != nil && before[s] != node && node != nodes[n-1] {
				moved++
			}
		}
		for _, node := range nodes {
			if most := (64 + n - 1) / n; count[node] > most || n <= 4 && count[node] < 64/n-8 {
				t.Errorf("%s of %d nodes has %d of 64 shards", node, n, count[node])
			}
		}
		// Only the newcomer's shards have to move. The limit per node moves a few more.
		if moved > 64/4 {
			t.Errorf("node %d made %d shards move between other nodes", n, moved)
		}
		shuffled := slices.Clone(nodes)
		slices.Reverse(shuffled)
		if !slices.Equal(after, Assign(64, shuffled)) {
			t.Error("the assignment depends on the order of the nodes")
		}
	}
}

const (
	testLease = 3 * time.Second
	testTick  = time.Second
)

// court is the cluster that a coordinator sees. A test sets its clocks and presences.
type court struct {
	t    *testing.T
	k    *Coordinator
	now  time.Duration
	rev  uint64
	view store.Cluster
	age  time.Duration
	err  error
}

func newCourt(t *testing.T, shards int, exclusive bool) *court {
	c := &court{t: t, k: NewCoordinator(CoordinatorConfig{Node: "me", Exclusive: exclusive, Shards: shards, Lease: testLease, Heartbeat: testTick}), now: time.Hour}
	for n := range shards {
		c.view.Clocks = append(c.view.Clocks, store.ClockAt{Shard: n})
		c.clock(n, "")
	}
	return c
}

// clock renews a shard's clock for an owner.
func (c *court) clock(shard int, owner string) {
	c.rev++
	at := &c.view.Clocks[shard]
	if at.Clock.Owner != owner {
		at.Clock.Epoch++
	}
	at.Rev, at.StoredMs, at.Clock.Owner = c.rev, c.now.Milliseconds(), owner
}

func (c *court) beat(node, state string) {
	c.rev++
	i := slices.IndexFunc(c.view.Nodes, func(m store.Member) bool { return m.Node == node })
	if i < 0 {
		i = len(c.view.Nodes)
		c.view.Nodes = append(c.view.Nodes, store.Member{Node: node})
	}
	c.view.Nodes[i].Rev, c.view.Nodes[i].Presence.Scheduler = c.rev, state
	c.view.Nodes[i].StoredMs = c.now.Milliseconds()
}

// after lets time pass and polls. It returns what the coordinator takes and releases.
func (c *court) after(d time.Duration) (takes []TakeShard, releases []int) {
	c.now += d
	for _, a := range c.k.Step(c.now, SnapshotRead{Cluster: c.view, HeartbeatAge: c.age, Err: c.err}) {
		switch a := a.(type) {
		case TakeShard:
			takes = append(takes, a)
		case ReleaseShard:
			releases = append(releases, a.Shard)
		}
	}
	return takes, releases
}

// take performs a take: this node owns the clock.
func (c *court) take(a TakeShard) {
	if at := c.view.Clocks[a.Shard]; at.Rev != a.Rev || at.Clock.Epoch+1 != a.Clock.Epoch || a.Clock.Owner != "me" {
		c.t.Errorf("takes %+v of %+v", a, at)
	}
	c.clock(a.Shard, "me")
	c.k.Step(c.now, ShardTaken{Shard: a.Shard})
}

func TestCoordinatorAlone(t *testing.T) {
	t.Parallel()
	c := newCourt(t, 3, false)
	c.beat("me", store.SchedulerActive)
	takes, _ := c.after(0)
	if len(takes) != 3 {
		t.Fatalf("takes %v of 3 free shards", takes)
	}
	if again, _ := c.after(time.Second); len(again) != 0 {
		t.Errorf("takes %v while it is taking them", again)
	}
	for _, a := range takes {
		c.take(a)
	}
	if takes, releases := c.after(time.Hour); len(takes)+len(releases) != 0 {
		t.Errorf("takes %v, releases %v", takes, releases)
	}
	c.k.Step(c.now, LeaveCluster{})
	// There is no other node to which notice could be given.
	if !c.k.Holds() {
		t.Fatal("holds nothing")
	}
	c2 := newCourt(t, 1, false)
	takes, _ = c2.after(0)
	c2.take(takes[0])
	if got := c2.k.Step(c2.now, LeaveCluster{}); len(got) != 1 {
		t.Errorf("a lone node that leaves does %v", got)
	}
	c2.k.Step(c2.now, TermEnded{Shard: 0})
	if takes, _ := c2.after(time.Hour); len(takes) != 0 || c2.k.Holds() {
		t.Errorf("takes %v after it has left", takes)
	}
}

func TestCoordinatorWaitsForTheLease(t *testing.T) {
	t.Parallel()
	c := newCourt(t, 1, false)
	c.clock(0, "other")
	c.beat("other", store.SchedulerActive)
	c.after(0)
	for range 20 { // the owner is alive
		c.clock(0, "other")
		c.beat("other", store.SchedulerActive)
		if takes, _ := c.after(2900 * time.Millisecond); len(takes) != 0 {
			t.Fatalf("takes %v from an owner that lives", takes)
		}
	}
	if takes, _ := c.after(testLease - time.Millisecond); len(takes) != 0 {
		t.Fatalf("takes %v before the lease is over", takes)
	}
	takes, _ := c.after(time.Millisecond)
	if len(takes) != 1 || takes[0].From != "other" {
		t.Fatalf("takes %v after the lease", takes)
	}
	// The answer is lost, but the write took effect: the node may take it again.
	c.clock(0, "me")
	c.k.Step(c.now, ShardTaken{Shard: 0, Err: errors.New("no answer")})
	takes, _ = c.after(10 * time.Millisecond)
	if len(takes) != 1 {
		t.Fatal("waits for its own attempt")
	}
	c.take(takes[0])
	// Lost to the other node again: wait for another lease.
	c.clock(0, "other")
	c.k.Step(c.now, TermEnded{Shard: 0})
	c.beat("other", store.SchedulerActive)
	if takes, _ := c.after(time.Second); len(takes) != 0 {
		t.Errorf("takes %v back at once", takes)
	}
}

func TestCoordinatorDoesNotMistakeTheStoresSilence(t *testing.T) {
	t.Parallel()
	for name, trouble := range map[string]func(*court, bool){
		"looks fail":   func(c *court, on bool) { c.err = nil; c.err = map[bool]error{true: errors.New("no leader")}[on] },
		"beats fail":   func(c *court, on bool) { c.age = map[bool]time.Duration{true: testLease}[on] },
		"beats, stale": func(c *court, on bool) { c.age = map[bool]time.Duration{true: testLease/2 + 1}[on] },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCourt(t, 1, false)
			c.clock(0, "other")
			c.after(0)
			trouble(c, true)
			for range 100 {
				if takes, _ := c.after(time.Second); len(takes) != 0 {
					t.Fatal("takes a shard while the store is silent")
				}
			}
			trouble(c, false)
			if takes, _ := c.after(testLease - time.Millisecond); len(takes) != 0 {
				t.Fatal("takes a shard before its owner had a lease to renew in")
			}
			if takes, _ := c.after(testLease); len(takes) != 1 {
				t.Fatal("never takes it")
			}
		})
	}
}

// TestCoordinatorAfterRevisionsGoBack: the bucket of the clocks was made again, or its server has lost its
// last writes, so its revisions begin lower. The owner continues there, and when it dies its shard is taken.
func TestCoordinatorAfterRevisionsGoBack(t *testing.T) {
	t.Parallel()
	c := newCourt(t, 1, false)
	renew := func() {
		c.clock(0, "other")
		c.beat("other", store.SchedulerActive)
		c.beat("me", store.SchedulerActive)
		if takes, releases := c.after(testTick); len(takes)+len(releases) != 0 {
			t.Fatalf("takes %v, releases %v while the owner lives", takes, releases)
		}
	}
	c.rev = 1000
	renew()
	c.rev = 4
	renew()
	stale := c.view
	stale.Clocks, stale.Nodes = slices.Clone(c.view.Clocks), slices.Clone(c.view.Nodes)
	for range 4 {
		renew()
	}
	if got := c.k.live; !slices.Equal(got, []string{"me", "other"}) {
		t.Errorf("live nodes: %v", got)
	}
	// A replica that is behind answers once. That is no sign of life.
	now := c.view
	c.view = stale
	takes, _ := c.after(testLease / 2)
	c.view = now
	if more, _ := c.after(testLease / 2); len(takes) != 0 || len(more) != 1 || more[0].Rev != c.view.Clocks[0].Rev {
		t.Errorf("takes %v, then %+v; want revision %d", takes, more, c.view.Clocks[0].Rev)
	}
}

func TestCoordinatorExclusive(t *testing.T) {
	t.Parallel()
	for _, exclusive := range []bool{true, false} {
		c := newCourt(t, 1, exclusive)
		c.clock(0, "me") // an earlier process with this name
		if takes, _ := c.after(0); (len(takes) == 1) != exclusive {
			t.Errorf("exclusive %v: takes %v", exclusive, takes)
		}
	}
}

// TestCoordinatorShares: a node that joins receives its shards after the assignment has
// been stable for a while, and polls often while it waits.
func TestCoordinatorShares(t *testing.T) {
	t.Parallel()
	const shards = 8
	c := newCourt(t, shards, false)
	takes, _ := c.after(0)
	for _, a := range takes {
		c.take(a)
	}
	c.beat("other", store.SchedulerActive)
	if _, releases := c.after(0); len(releases) != 0 {
		t.Fatalf("releases %v without waiting for a stable assignment", releases)
	}
	c.beat("other", store.SchedulerActive)
	c.after(testTick)
	c.beat("other", store.SchedulerActive)
	_, releases := c.after(testTick)
	var want []int
	for n, node := range Assign(shards, []string{"me", "other"}) {
		if node == "other" {
			want = append(want, n)
		}
	}
	if !slices.Equal(releases, want) || len(want) != shards/2 {
		t.Fatalf("releases %v, want %v", releases, want)
	}
	for _, n := range releases {
		c.clock(n, "")
		c.k.Step(c.now, TermEnded{Shard: n})
	}
	// The other node does not take the shard. After a while its last owner takes it back.
	c.beat("other", store.SchedulerActive)
	if takes, _ := c.after(100 * time.Millisecond); len(takes) != 0 {
		t.Fatalf("takes %v back", takes)
	}
	c.beat("other", store.SchedulerActive)
	if takes, _ := c.after(testLease / 2); len(takes) != len(want) {
		t.Fatalf("leaves shards without an owner: takes %v", takes)
	}
	// The same from the view of the other node.
	d := newCourt(t, shards, false)
	for n := range shards {
		d.clock(n, "owner")
	}
	d.beat("owner", store.SchedulerActive)
	d.after(0)
	if got := d.k.NextSnapshot(d.now); got > 50*time.Millisecond {
		t.Errorf("polls every %s while shards are about to come", got)
	}
	d.beat("owner", store.SchedulerActive)
	d.after(time.Minute)
	if got := d.k.NextSnapshot(d.now); got < testTick/10 {
		t.Errorf("still polls every %s after the wait", got)
	}
}

// TestCoordinatorLeaves: a node that leaves releases its shards after it has given notice
// to the others.
func TestCoordinatorLeaves(t *testing.T) {
	t.Parallel()
	c := newCourt(t, 2, false)
	takes, _ := c.after(0)
	for _, a := range takes {
		c.take(a)
	}
	c.beat("other", store.SchedulerLeaving) // must not receive shards
	if _, releases := c.after(5 * testTick); len(releases) != 0 {
		t.Fatalf("releases %v to a node that leaves", releases)
	}
	c.beat("third", store.SchedulerActive)
	c.after(0)
	if got := c.k.Step(c.now, LeaveCluster{}); len(got) != 0 {
		t.Fatalf("does %v without notice", got)
	}
	c.beat("third", store.SchedulerActive)
	if _, releases := c.after(testTick / 2); len(releases) != 2 {
		t.Fatalf("releases %v of 2", releases)
	}
}

func TestLease(t *testing.T) {
	t.Parallel()
	c := store.Clock{Owner: "me", Epoch: 7}
	tn := NewLease(testLease, testTick, 0, c, 10)
	if !tn.Trusted(testLease*9/10-1) || tn.Trusted(testLease*9/10) {
		t.Error("the lease is not trusted for nine tenths of its length")
	}
	if next, ok := tn.NextWrite(); next != testTick || !ok {
		t.Errorf("next write at %s, %v", next, ok)
	}
	tn.Writing()
	if _, ok := tn.NextWrite(); ok {
		t.Error("two writes at a time")
	}
	// The lease counts from the attempt, not from the answer.
	c.TimeMs = 1
	if v := tn.Wrote(testTick+testLease/2, testTick, c, 11, nil); v != Kept || tn.Trusted(testTick+testLease*9/10) {
		t.Errorf("verdict %d", v)
	}
	tn.Writing()
	now := 2 * testTick
	if v := tn.Wrote(now, now, c, 0, errors.New("no answer")); v != Again {
		t.Errorf("verdict %d of a write without an answer", v)
	}
	if next, ok := tn.NextWrite(); !ok || next > now+250*time.Millisecond {
		t.Errorf("next try after %s", next-now)
	}
	// The write whose answer was lost took effect.
	tn.Writing()
	if v := tn.Wrote(now, now, c, 0, store.ErrRevision); v != Unsure {
		t.Errorf("verdict %d of a conflict", v)
	}
	if v := tn.Reread(now, store.Clock{}, 0, errors.New("no answer")); v != Again {
		t.Errorf("verdict %d", v)
	}
	tn.Writing()
	tn.Wrote(now, now, c, 0, store.ErrRevision)
	if v := tn.Reread(now, c, 12, nil); v != Again {
		t.Errorf("verdict %d of our own write", v)
	}
	if _, rev := tn.Clock(); rev != 12 {
		t.Errorf("continues from revision %d", rev)
	}
	for _, other := range []store.Clock{{Owner: "other", Epoch: 8}, {Owner: "me", Epoch: 9}, {Owner: "", Epoch: 7}} {
		l := NewLease(testLease, testTick, 0, store.Clock{Owner: "me", Epoch: 7}, 1)
		l.Writing()
		l.Wrote(now, now, c, 0, store.ErrRevision)
		if v := l.Reread(now, other, 13, nil); v != Lost {
			t.Errorf("verdict %d, but the clock is %+v", v, other)
		}
	}
	// A former leader answers with the clock that this node replaced when it took the shard.
	was := store.Clock{Owner: "other", Epoch: 6}
	l := NewLease(testLease, testTick, 0, store.Clock{Owner: "me", Epoch: 7}, 13)
	for _, at := range []struct {
		now  time.Duration
		want Verdict
	}{{testTick, Again}, {2 * testTick, Again}, {testLease, Lost}} {
		l.Writing()
		l.Wrote(at.now, at.now, store.Clock{}, 0, store.ErrRevision)
		if v := l.Reread(at.now, was, 12, nil); v != at.want {
			t.Errorf("verdict %d of an earlier clock after %s", v, at.now)
		}
	}
	if c, rev := l.Clock(); c.Owner != "me" || rev != 13 {
		t.Errorf("continues from %+v at revision %d", c, rev)
	}
}

// TestOwnersLongerLease: a node with a shorter lease than the owner's waits for the
// owner's lease, because the owner fires for that long. A node with a longer lease waits
// for its own. The clock of a shard that a node takes has the node's lease.
func TestOwnersLongerLease(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		owners time.Duration
		wait   time.Duration
	}{{0, testLease}, {testLease / 2, testLease}, {4 * testLease, 4 * testLease}, {1000 * time.Hour, maxLease}} {
		c := newCourt(t, 1, false)
		c.beat("me", store.SchedulerActive)
		c.clock(0, "other")
		c.view.Clocks[0].Clock.LeaseMs = tt.owners.Milliseconds()
		c.after(0)
		var taken []TakeShard
		var waited time.Duration
		for waited = 0; waited < 2*maxLease && taken == nil; waited += testTick / 4 {
			c.beat("me", store.SchedulerActive)
			taken, _ = c.after(testTick / 4)
		}
		if len(taken) != 1 || waited < tt.wait || waited > tt.wait+testTick {
			t.Errorf("owner's lease %s: taken after %s, want %s", tt.owners, waited, tt.wait)
		}
		if len(taken) == 1 && taken[0].Clock.LeaseMs != testLease.Milliseconds() {
			t.Errorf("the clock states a lease of %d ms", taken[0].Clock.LeaseMs)
		}
	}
}
