//go:build unix

package chaos

import (
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/chaos/check"
	"github.com/belfryio/belfry/test/proc"
)

// Promised bounds of fail-over, from the fault to the first event.
const (
	nodeBound = lease + 2*time.Second // a dead, paused or disconnected node
	// afterElection bounds fail-over after the death of a server that leads a stream,
	// from the election of the new leaders. Servers draw election timeouts from 4 to 9 s.
	afterElection = 2 * time.Second
)

// fault is a kind of fault. run causes it for about d, and then repairs it.
type fault struct {
	name  string
	bound time.Duration // for the fail-over of every shard; 0: only reported
	after time.Duration // the same, without the elections
	least time.Duration // d is drawn from least to most
	most  time.Duration
	run   func(r *rounds, d time.Duration)
}

func ms(n int) time.Duration { return time.Duration(n) * time.Millisecond }

// kinds lists all faults.
var kinds = []fault{
	{"node-kill", nodeBound, 0, ms(200), ms(8000), (*rounds).nodeKill},
	{"node-pause-short", 0, 0, ms(500), ms(2000), (*rounds).nodePauseShort},
	{"node-pause-long", nodeBound, 0, ms(5000), ms(10_000), (*rounds).nodePauseLong},
	{"node-cut-short", 0, 0, ms(300), ms(2000), (*rounds).nodeCutShort},
	{"node-cut", nodeBound, 0, ms(5000), ms(10_000), (*rounds).nodeCut},
	{"node-hold", nodeBound, 0, ms(5000), ms(10_000), (*rounds).nodeHold},
	{"node-delay", 0, 0, ms(4000), ms(8000), (*rounds).nodeDelay},
	{"server-kill", 0, afterElection, ms(200), ms(8000), (*rounds).serverKill},
	{"server-pause", 0, 0, ms(1000), ms(8000), (*rounds).serverPause},
	{"leader-step-down", 0, afterElection, 0, 1, (*rounds).stepDown},
	{"roll-servers", 0, 0, 0, 1, (*rounds).rollServers},
	{"roll-nodes", 0, 0, 0, 1, (*rounds).rollNodes},
	{"restart-all", 0, 0, ms(100), ms(3000), (*rounds).restartAll},
	{diskFull, 0, 0, ms(2000), ms(8000), (*rounds).diskFull},
}

const diskFull = "disk-full"

func kindNamed(name string) fault {
	for _, k := range kinds {
		if k.name == name {
			return k
		}
	}
	panic("no fault is named " + name)
}

// rounds makes one fault after another.
type rounds struct {
	*cluster
	rng  *rand.Rand
	last int // number of the last fault
	open check.Event
}

// drawn returns an endless series in which each kind occurs once before any occurs again.
// BELFRY_CHAOS_FAULTS selects the kinds; by default all.
func (r *rounds) drawn() func() fault {
	only := os.Getenv("BELFRY_CHAOS_FAULTS")
	var chosen, left []fault
	for _, k := range kinds {
		if (only == "" || slices.Contains(strings.Split(only, ","), k.name)) && (k.name != diskFull || r.small() != nil) {
			chosen = append(chosen, k)
		}
	}
	if len(chosen) == 0 {
		r.t.Fatalf("BELFRY_CHAOS_FAULTS=%q names no fault that can be made here", only)
	}
	return func() fault {
		if len(left) == 0 {
			left = append(left, chosen...)
			r.rng.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
		}
		f := left[0]
		left = left[1:]
		return f
	}
}

// make makes one fault and waits until the cluster has recovered.
func (r *rounds) make(f fault) {
	r.t.Helper()
	r.last++
	r.open = check.Event{Name: f.name}
	d := f.least + time.Duration(r.rng.Int64N(int64(max(f.most-f.least, 1))))
	r.t.Logf("fault %d: %s for %s", r.last, f.name, d.Round(time.Millisecond))
	f.run(r, d)
	r.well()
	r.rec.Put(check.Event{Kind: check.Heal, Fault: r.last, Name: f.name, TimeNs: time.Now().UnixNano()})
}

// begin records the start of a fault, its target and the affected shards.
func (r *rounds) begin(target, owner string, shards []int) {
	r.rec.Put(check.Event{Kind: check.Fault, Fault: r.last, Name: r.open.Name, Target: target, Owner: owner, Shards: shards, TimeNs: time.Now().UnixNano()})
}

// owner returns a node that owns shards, or any node if none does.
func (r *rounds) owner() *member {
	nodes := append([]*member(nil), r.nodes...)
	r.rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	for _, m := range nodes {
		if len(r.shardsOf(m.name)) > 0 {
			return m
		}
	}
	return nodes[0]
}

// hit records the start of a fault of a node. loses says that the fault lasts so long
// that the node loses its shards.
func (r *rounds) hit(m *member, loses bool) {
	owner := ""
	if loses {
		owner = m.name
	}
	r.begin(m.title, owner, r.shardsOf(m.name))
}

func (r *rounds) nodeKill(d time.Duration) {
	m := r.owner()
	r.hit(m, true)
	m.Kill()
	pause.For(r.t.Context(), d)
	m.Start()
}

func (r *rounds) nodePauseShort(d time.Duration) { r.nodePause(d, false) }
func (r *rounds) nodePauseLong(d time.Duration)  { r.nodePause(d, true) }

func (r *rounds) nodePause(d time.Duration, loses bool) {
	m := r.owner()
	r.hit(m, loses)
	m.Pause()
	pause.For(r.t.Context(), d)
	m.Resume()
}

func (r *rounds) nodeCutShort(d time.Duration) { r.network(d, false, (*proc.Link).Cut) }
func (r *rounds) nodeCut(d time.Duration)      { r.network(d, true, (*proc.Link).Cut) }
func (r *rounds) nodeHold(d time.Duration)     { r.network(d, true, (*proc.Link).Hold) }

func (r *rounds) nodeDelay(d time.Duration) {
	by := ms(20 + r.rng.IntN(300))
	r.network(d, false, func(k *proc.Link) { k.Delay(by) })
}

func (r *rounds) network(d time.Duration, loses bool, fail func(*proc.Link)) {
	m := r.owner()
	r.hit(m, loses)
	for _, k := range m.links {
		fail(k)
	}
	pause.For(r.t.Context(), d)
	for _, k := range m.links {
		k.Heal()
	}
}

// stream draws a stream whose leader a fault hits.
func (r *rounds) stream() string {
	streams := []string{clockStream, clockStream, schemas.StreamFired, schemas.StreamAdd}
	for shard := range schemas.DefaultShards {
		streams = append(streams, shardStream(shard))
	}
	return streams[r.rng.IntN(len(streams))]
}

// leading draws a stream and returns the server that leads it.
func (r *rounds) leading() *proc.Server {
	if s, err := r.leader(r.stream()); err == nil {
		return s
	}
	return r.servers[r.rng.IntN(len(r.servers))]
}

func (r *rounds) serverKill(d time.Duration) {
	s := r.leading()
	shards := r.ledBy(s)
	r.begin(s.Name, "", shards)
	s.Kill()
	pause.For(r.t.Context(), d)
	s.Start()
}

func (r *rounds) serverPause(d time.Duration) {
	s := r.leading()
	r.begin(s.Name, "", r.ledBy(s))
	s.Pause()
	pause.For(r.t.Context(), d)
	s.Resume()
}

func (r *rounds) stepDown(time.Duration) {
	stream := r.stream()
	var shards []int
	for shard := range schemas.DefaultShards {
		if !strings.HasPrefix(stream, "KV_timers_") || stream == shardStream(shard) {
			shards = append(shards, shard)
		}
	}
	r.begin(stream, "", shards)
	nc := r.js.Conn()
	if _, err := nc.Request("$JS.API.STREAM.LEADER.STEPDOWN."+stream, nil, 5*time.Second); err != nil {
		r.t.Logf("step-down of %s: %v", stream, err)
	}
}

func (r *rounds) rollServers(time.Duration) {
	r.begin("all servers", "", allShards())
	for _, s := range r.servers {
		s.Terminate()
		s.Start()
		if err := s.WaitHealthy(r.t.Context(), wellBound); err != nil {
			r.t.Fatalf("server %s: %v", s.Name, err)
		}
	}
}

func (r *rounds) rollNodes(time.Duration) {
	r.begin("all nodes", "all", allShards())
	for _, m := range r.nodes {
		m.Terminate()
		m.Start()
		r.up(m)
	}
}

func (r *rounds) restartAll(d time.Duration) {
	r.begin("everything", "all", allShards())
	for _, m := range r.nodes {
		m.Kill()
	}
	for _, s := range r.servers {
		s.Kill()
	}
	pause.For(r.t.Context(), d)
	for _, s := range r.servers {
		s.Start()
	}
	for _, m := range r.nodes {
		m.Start()
	}
}

// small returns the server whose disk can be filled, or nil.
func (r *rounds) small() *proc.Server {
	for _, s := range r.servers {
		if s.HasDisk() {
			return s
		}
	}
	return nil
}

// diskFull fills a server's disk, frees it, and restarts the server: JetStream disables
// itself on a full disk and does not come back without a restart.
func (r *rounds) diskFull(d time.Duration) {
	s := r.small()
	r.begin(s.Name, "", r.ledBy(s))
	if err := s.Fill(); err != nil {
		r.t.Errorf("fill the disk of %s: %v", s.Name, err)
	}
	pause.For(r.t.Context(), d)
	if err := s.Free(); err != nil {
		r.t.Errorf("free the disk of %s: %v", s.Name, err)
	}
	s.Terminate()
	s.Start()
}
