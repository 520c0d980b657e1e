package sim

import (
	"context"
	"errors"
	"time"

	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// callTimeout bounds the wait for an answer, as store.DefaultTimeout does.
const callTimeout = 5 * time.Second

// network carries requests between nodes and servers, and simulates the servers' faults:
// changes of a stream's leader, replicas that lag, clocks that are wrong.
type network struct {
	backAt  int64 // when a dead server last came back
	w       *world
	servers []serverHost
	// leader is the server that leads each stream, or -1; last is its last leader.
	leader, last map[string]int
	// deposed has for streams the server that led it before and has not learned of the new leader.
	deposed map[string]deposed
	// regimes are the clock eras: a new one begins when the leader of the clock bucket
	// changes, or its clock is set.
	regimes []regime
}

type serverHost struct {
	up bool
	// frozenAt is the time since which it has applied nothing; 0 if it keeps up.
	frozenAt int64
	offset   int64 // of its clock, nanoseconds
	ppm      int64 // of its clock's rate
	applied  map[string]uint64
}

// deposed is a server that still answers requests to the leader of a stream, until a time.
type deposed struct {
	until int64
	upTo  uint64 // its last sequence
}

type regime struct {
	epoch, from int64
	offset, ppm int64
}

func (r regime) at(now int64) int64 { return now + r.offset + drift(now-r.epoch, r.ppm) }

// drift returns the error after d of a clock whose rate is off by ppm parts per million.
func drift(d, ppm int64) int64 { return int64(float64(d) * float64(ppm) / 1e6) }

func newNetwork(w *world) *network {
	n := &network{w: w, leader: map[string]int{}, last: map[string]int{}, deposed: map[string]deposed{}}
	for range w.p.servers {
		s := serverHost{up: true, applied: map[string]uint64{}}
		if w.p.drift {
			s.offset, s.ppm = int64(w.between(-200*time.Millisecond, 200*time.Millisecond)), w.rng.Int64N(101)-50
		}
		n.servers = append(n.servers, s)
	}
	n.note()
	return n
}

// clock is the time by the clock of a stream's leader, and true time.
func (n *network) clock(stream string) (leaderNs, realNs int64) {
	return n.serverTime(n.leaderOf(stream)), n.w.now
}

func (n *network) serverTime(i int) int64 {
	s := &n.servers[i]
	return regime{epoch: n.w.epoch, offset: s.offset, ppm: s.ppm}.at(n.w.now)
}

// leaderOf returns the server that leads a stream, or led it last.
func (n *network) leaderOf(stream string) int {
	if l, known := n.leader[stream]; !known {
		// A stream's first leader.
		l = n.w.rng.IntN(len(n.servers))
		n.leader[stream] = l
		return l
	} else if l >= 0 {
		return l
	}
	return n.last[stream]
}

// note begins a clock era if the cluster's clock has changed.
func (n *network) note() {
	s := &n.servers[n.leaderOf(fake.StreamClock)]
	r := regime{epoch: n.w.epoch, from: n.w.now, offset: s.offset, ppm: s.ppm}
	if k := len(n.regimes); k > 0 && n.regimes[k-1].offset == r.offset && n.regimes[k-1].ppm == r.ppm {
		return
	}
	n.regimes = append(n.regimes, r)
}

// latest returns the latest present time of all clocks that have led the cluster since a true
// time. The estimate of a node may follow any of them until the node has read the newest one.
func (n *network) latest(since int64) int64 {
	best := int64(0)
	for i, r := range n.regimes {
		if i+1 < len(n.regimes) && n.regimes[i+1].from < since {
			continue
		}
		best = max(best, r.at(n.w.now))
	}
	return best
}

// --- faults of the servers ---

// depose leaves a stream without a leader for a while.
func (n *network) depose(stream string, d time.Duration) {
	l := n.leaderOf(stream)
	if n.leader[stream] < 0 {
		return
	}
	n.leader[stream], n.last[stream] = -1, l
	n.w.stats.Elections++
	n.w.trace("stream %s has no leader for %s", stream, d)
	n.w.after(d, func() { n.elect(stream) })
}

// elect makes a server that is up the leader; later, if there is none.
func (n *network) elect(stream string) {
	if n.leader[stream] >= 0 {
		return
	}
	first := n.w.rng.IntN(len(n.servers))
	for i := range n.servers {
		if s := (first + i) % len(n.servers); n.servers[s].up {
			n.leader[stream] = s
			n.w.trace("server %d leads %s", s, stream)
			if was := n.last[stream]; n.w.p.deposed && was != s && n.servers[was].up {
				d := deposed{until: n.w.now + int64(n.w.spread(50*time.Millisecond, 3*time.Second)), upTo: n.w.server.LastSeq(stream)}
				n.deposed[stream] = d
				n.w.trace("server %d still answers for %s, up to %d", was, stream, d.upTo)
			}
			if stream == fake.StreamClock {
				n.note()
			}
			return
		}
	}
	n.w.after(100*time.Millisecond, func() { n.elect(stream) })
}

// kill stops a server. It starts again later and has to catch up.
func (n *network) kill(i int, down time.Duration) {
	s := &n.servers[i]
	if !s.up {
		return
	}
	s.up, s.frozenAt = false, n.w.now
	n.w.trace("server %d dies for %s", i, down)
	for _, stream := range n.w.server.Streams() {
		if n.leaderOf(stream) == i {
			election := n.w.between(4600*time.Millisecond, 5500*time.Millisecond)
			if len(n.servers) == 1 {
				election = down + n.w.between(50*time.Millisecond, time.Second)
			}
			n.depose(stream, election)
		}
	}
	n.w.after(down, func() {
		s.up = true
		n.w.trace("server %d is back", i)
		n.backAt = n.w.now
		n.thaw(i, n.w.between(0, 3*time.Second))
	})
}

// freeze makes a replica lag.
func (n *network) freeze(i int, d time.Duration) {
	if n.servers[i].frozenAt != 0 {
		return
	}
	n.servers[i].frozenAt = n.w.now
	n.w.trace("server %d lags for %s", i, d)
	n.thaw(i, d)
}

func (n *network) thaw(i int, after time.Duration) {
	n.w.after(after, func() {
		if s := &n.servers[i]; s.up {
			s.frozenAt = 0
		}
	})
}

// step moves a server's clock.
func (n *network) step(i int, d time.Duration) {
	n.servers[i].offset += int64(d)
	n.w.stats.Jumps++
	n.w.trace("server %d: its clock is moved by %s", i, d)
	n.note()
}

// replica picks the server that answers a direct get, or holds a consumer; -1 if none can.
func (n *network) replica() int {
	first := n.w.rng.IntN(len(n.servers))
	for i := range n.servers {
		if s := (first + i) % len(n.servers); n.servers[s].up {
			return s
		}
	}
	return -1
}

// stands returns the sequence that a replica of a stream has reached.
func (n *network) stands(i int, stream string) uint64 {
	s := &n.servers[i]
	if n.leader[stream] == i {
		return n.w.server.LastSeq(stream)
	}
	at := n.w.now - int64(n.w.between(0, 2*n.w.p.latency))
	if s.frozenAt != 0 {
		at = s.frozenAt
	}
	seq := max(s.applied[stream], n.w.server.SeqAt(stream, at))
	s.applied[stream] = seq
	if seq < n.w.server.LastSeq(stream) {
		n.w.stats.Stale++
	}
	return seq
}

// --- requests ---

func (n *network) delay() time.Duration {
	p := &n.w.p
	if n.w.oneIn(p.slow) && n.w.now < n.w.healed {
		return n.w.between(p.latency, p.slowest)
	}
	return p.latency/4 + n.w.between(0, p.latency)
}

func (n *network) loses() bool { return n.w.now < n.w.healed && n.w.oneIn(n.w.p.loss) }

// link is one process's connection.
type link struct {
	n   *node
	inc int
}

// budget bounds calls instead of a context's deadline, which would use the real time.
type budget struct {
	d time.Duration // for each call
	// n, if not nil, is the node by whose monotonic clock all calls end at a time.
	n  *node
	at time.Duration
}

type budgetKey struct{}

// within bounds each call.
func within(d time.Duration) context.Context {
	return context.WithValue(context.Background(), budgetKey{}, budget{d: d})
}

// until bounds the time of all calls, and what bounds them in ctx already.
func (n *node) until(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, budgetKey{}, budget{d: callTimeout, n: n, at: n.mono() + min(d, limitOf(ctx))})
}

func limitOf(ctx context.Context) time.Duration {
	b, ok := ctx.Value(budgetKey{}).(budget)
	switch {
	case !ok:
		return callTimeout
	case b.n != nil:
		return min(max(b.at-b.n.mono(), 0), callTimeout)
	}
	return min(b.d, callTimeout)
}

// Do implements fake.Transport for a proc.
func (l link) Do(ctx context.Context, r fake.Request) error {
	p := l.n.w.current
	var got error
	l.send(limitOf(ctx), r, func(err error) {
		got = err
		p.resume()
	})
	p.park()
	return got
}

// Start implements fake.Transport.
func (l link) Start(r fake.Request, done func(error)) { l.send(callTimeout, r, done) }

// send carries a request, and its answer, or loses one of them.
func (l link) send(limit time.Duration, r fake.Request, done func(error)) {
	n, w := l.n, l.n.w
	if n.pauseAtSend > 0 {
		if n.pauseAtSend--; n.pauseAtSend == 0 {
			n.pause(n.midPause)
		}
	}
	if n.paused {
		// Stopped between its decision and the write.
		n.unsent = append(n.unsent, func() { l.send(limit, r, done) })
		return
	}
	net := w.net
	deadline := w.now + n.trueFor(limit)
	answer := func(err error, at int64) {
		if at > deadline {
			err, at = schemas.ErrUnavailable, deadline
			w.stats.Unanswered++
		}
		w.at(at, func() { n.run(l.inc, func() { done(err) }) })
	}
	fail := func() {
		if w.oneIn(2) {
			answer(schemas.ErrUnavailable, w.now+int64(net.delay()))
		} else {
			answer(schemas.ErrUnavailable, deadline+1)
		}
	}
	// late carries the request out after the caller has learned, at the time told, that there is no answer.
	late := func(told, at int64) {
		w.stats.Late++
		answer(schemas.ErrUnavailable, told)
		w.at(at, func() {
			if upTo, ok := net.reach(r); ok {
				_ = r.CarryOut(upTo, false)
			}
		})
	}
	if w.now < n.cutUntil || net.loses() {
		if w.p.late && w.oneIn(2) {
			if w.oneIn(2) {
				// The connection breaks after the request was sent, and the client fails the call at once.
				broken := w.now + int64(net.delay())
				late(broken, broken+int64(w.between(0, 50*time.Millisecond)))
			} else {
				late(deadline+1, deadline+int64(w.between(0, 3*time.Second)))
			}
			return
		}
		w.stats.Lost++
		fail()
		return
	}
	arrives := w.now + int64(net.delay())
	if arrives > deadline {
		late(deadline+1, arrives)
		return
	}
	w.at(arrives, func() {
		upTo, ok := net.reach(r)
		if !ok {
			w.stats.Lost++
			fail()
			return
		}
		err := r.CarryOut(upTo, len(r.Steps) > 1 && net.loses())
		if r.Deposed && upTo != fake.NoLimit && errors.Is(err, store.ErrRevision) {
			net.storeRefused(r)
		}
		if net.loses() && w.oneIn(4) {
			// Send the request twice, and use the second answer.
			err = r.CarryOut(upTo, false)
		}
		back := w.now + int64(net.delay())
		if w.now < n.cutUntil || net.loses() {
			w.stats.Unanswered++
			back = deadline + 1
		}
		answer(err, back)
	})
}

// maxRefusedStored bounds the time from the refusal of a write by a former leader until the leader stores it.
const maxRefusedStored = 300 * time.Millisecond

// storeRefused has the leader carry out a write that a former leader has refused: both have received it. The leader's answer
// comes second, and the client drops it.
func (n *network) storeRefused(r fake.Request) {
	n.w.after(n.w.spread(n.w.p.latency, maxRefusedStored), func() {
		if n.leader[r.Stream] >= 0 && r.CarryOut(fake.NoLimit, false) == nil {
			n.w.stats.RefusedStored++
		}
	})
}

// reach returns the server that answers a request, and the sequence that its replica has
// reached.
func (n *network) reach(r fake.Request) (upTo uint64, ok bool) {
	if !r.Direct {
		if d, ok := n.deposed[r.Stream]; ok && r.Deposed && n.w.now < d.until && n.w.oneIn(2) {
			n.w.stats.Deposed++
			return d.upTo, true
		}
		n.leaderOf(r.Stream) // elects the first
		return fake.NoLimit, n.leader[r.Stream] >= 0
	}
	i := n.replica()
	if i < 0 {
		return 0, false
	}
	return n.stands(i, r.Stream), true
}
