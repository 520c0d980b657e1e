package jet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
)

// following is a client that follows the records k.r.* of stream S, and another client.
type following struct {
	t        *testing.T
	srv      *natstest.Server
	c, other *Client
	own      *ownWrites
	// memory and stream count the messages that came from memory and from the stream.
	memory, stream atomic.Int64
	// hold is locked while the follower shall not get a message.
	hold sync.Mutex

	mu     sync.Mutex
	passed map[uint64]string // data by sequence
	last   uint64
}

func newFollowing(t *testing.T) *following {
	f := &following{t: t, srv: natstest.Run(t), passed: map[uint64]string{}}
	connect := func() *nats.Conn { return f.srv.Connect(nats.ReconnectWait(time.Millisecond), nats.MaxReconnects(-1)) }
	f.c, f.other = newClient(t, connect(), 5*time.Second), newClient(t, connect(), 5*time.Second)
	if err := f.c.CreateStream(t.Context(), followed(1)); err != nil {
		t.Fatal(err)
	}
	f.keepWrites()
	return f
}

// followed is stream S with a number of replicas.
func followed(replicas int) StreamConfig {
	return StreamConfig{
		Name: "S", Subjects: []string{"k.>"}, Storage: FileStorage, Replicas: replicas, MaxMsgsPerSubject: 16,
		AllowRollup: true, AllowDirect: true, AllowAtomicPublish: true, AllowMsgTTL: true,
	}
}

func (f *following) keepWrites() {
	f.c.KeepWrites("S", "k.r.")
	f.own = f.c.Writes.conn.own["S"]
	f.own.pause = 100 * time.Millisecond
}

// followFromMemory follows a busy stream from memory. Its client writes until stop is called.
func followFromMemory(t *testing.T) (f *following, stop func()) {
	t.Helper()
	f = newFollowing(t)
	f.follow()
	stop = f.busy()
	t.Cleanup(stop)
	f.fromMemory()
	return f, stop
}

// follow follows until the test ends.
func (f *following) follow() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.c.Follow(ctx, "S", "k.r.*", 0, f.pass, func(error) {})
	}()
	f.t.Cleanup(func() {
		cancel()
		<-done
	})
}

func (f *following) pass(m *Msg) {
	f.hold.Lock()
	f.hold.Unlock() //nolint:staticcheck // It only waits.
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.Sequence <= f.last {
		f.t.Errorf("message %d came after %d", m.Sequence, f.last)
	}
	f.last = m.Sequence
	f.passed[m.Sequence] = m.Subject + string(m.Data)
	if m.Time.IsZero() {
		f.memory.Add(1)
	} else {
		f.stream.Add(1)
	}
}

// busy writes some 2,000 messages a second, until stop is called: records, some with a roll-up, some that expire, some whose
// compare-and-set fails, and other messages.
func (f *following) busy() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var inflight sync.WaitGroup
		defer inflight.Wait()
		rng := rand.New(rand.NewPCG(1, 2))
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		reused := make([]byte, 0, 64)
		for n := 0; ; n++ {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			for range 1 + rng.IntN(3) {
				subject, hdr := fmt.Sprintf("k.r.%d", rng.IntN(60)), Header{}
				switch rng.IntN(8) {
				case 0, 1:
					subject = fmt.Sprintf("k.i.%d", n)
				case 2, 3:
					hdr = Header{headerRollup: {rollupSubject}}
				case 4:
					hdr = TTLHeader(time.Second)
				case 5:
					if rng.IntN(8) == 0 {
						hdr = casHeader(1<<40, 0)
					}
				}
				inflight.Add(1)
				data := fmt.Append(reused[:0], n)
				if f.c.InBatches() {
					data = fmt.Append(nil, n)
				}
				f.c.WriteAsync("S", "write", subject, hdr, data, func(Ack, error) { inflight.Done() })
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(quit)
		<-done
	})
}

// foreign writes a message of the other client, and returns when it was stored.
func (f *following) foreign(subject string) error {
	_, err := f.other.Publish(f.t.Context(), "write", subject, nil, []byte(subject))
	return err
}

// fromMemory waits until more messages have come from memory.
func (f *following) fromMemory() {
	f.t.Helper()
	was := f.memory.Load()
	waittest.Until(f.t, "messages from memory", func() bool { return f.memory.Load() > was+100 })
}

// check waits until the follower has passed all records that exist.
func (f *following) check() {
	f.t.Helper()
	missing := ""
	waittest.Until(f.t, "all records to pass", func() bool {
		missing = ""
		err := f.other.Scan(f.t.Context(), "S", Range{Filters: []string{"k.r.*"}}, func(m Msg) (bool, error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.passed[m.Sequence] != m.Subject+string(m.Data) {
				missing += fmt.Sprintf(" %d", m.Sequence)
			}
			return true, nil
		})
		if err != nil {
			missing = err.Error()
		}
		return missing == ""
	}, func() string { return "missing:" + missing })
}

// TestFollowOwn checks that a busy follower gets what its client wrote from memory, every message of others as
// well, and all in order.
func TestFollowOwn(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(c *Client){
		"single writes": func(*Client) {},
		"batches": func(c *Client) {
			c.CommitInBatches(Journals{MaxBytes: 1 << 20, Subject: func(string) string { return "k.journal" }})
			c.SetRestored("S", c.Reconnects())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFollowing(t)
			begin(f.c)
			f.follow()
			stop := f.busy()
			defer stop()
			f.fromMemory()
			for n := range 40 {
				if err := f.foreign(fmt.Sprintf("k.r.f%d", n)); err != nil {
					t.Fatal(err)
				}
				if _, err := f.other.Publish(t.Context(), "delete", fmt.Sprintf("k.r.%d", n), Header{headerOperation: {"DEL"}}, nil); err != nil {
					t.Fatal(err)
				}
				time.Sleep(40 * time.Millisecond) // not so many that a consumer is better
			}
			f.fromMemory()
			stop()
			f.check()
			waittest.Until(t, "the consumer is used again", func() bool { return !f.own.inUse.Load() })
			was := f.memory.Load()
			time.Sleep(2 * ownWindow) // a quiet window
			for range 20 {
				if _, err := f.c.Await(t.Context(), "write", func(done func(Ack, error)) { f.c.WriteAsync("S", "write", "k.r.slow", nil, nil, done) }); err != nil {
					t.Fatal(err)
				}
			}
			f.check()
			if f.memory.Load() != was {
				t.Error("messages come from memory although there are few")
			}
		})
	}
}

// TestFollowOwnSoon checks that a message of another client passes while this client's writes come from memory, and also
// if no later write of this client shows that something is missing.
func TestFollowOwnSoon(t *testing.T) {
	t.Parallel()
	f := newFollowing(t)
	f.follow()
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(ownWindow / 10); ; {
			select {
			case <-tick.C:
				f.own.sent.Add(manyOwn) // the follower takes this client for busy
			case <-quit:
				tick.Stop()
				return
			}
		}
	}()
	n := 0
	waittest.Until(t, "a message of others beside memory", func() bool {
		again := f.busy()
		f.fromMemory()
		again()
		f.check()
		if n++; f.foreign(fmt.Sprintf("k.r.f%d", n)) != nil {
			return false
		}
		f.check()
		return f.own.inUse.Load() // on a busy machine the follower may have left the memory
	})
	close(quit)
	<-done
}

// TestLookAnswers checks what each answer of the stream lets the follower pass over.
func TestLookAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		gap     uint64
		found   uint64 // 0 for no message
		subject string
		own     []uint64
		leaves  bool
		passes  string
		after   uint64
	}{
		{"nothing, no gap", 0, 0, "", nil, false, "[]", 10},
		{"nothing, although there is a kept write", 14, 0, "", []uint64{14}, true, "[]", 10},
		{"nothing behind a gap that has closed meanwhile", 11, 0, "", []uint64{11, 12, 13}, false, "[11 12 13]", 13},
		{"a message in the gap", 14, 12, "k.r.found", []uint64{14}, false, "[12]", 12},
		{"a message that is not for the follower", 13, 12, "k.i.found", []uint64{13}, false, "[13]", 13},
		{"a kept write", 14, 14, "k.r.found", []uint64{14, 15}, false, "[14 15]", 15},
		{"a message after kept writes that were replaced", 14, 17, "k.r.found", []uint64{14, 16, 18}, false, "[17 18]", 18},
		{"a message that has passed meanwhile", 14, 12, "k.r.found", []uint64{11, 12, 14}, false, "[11 12]", 12},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			passed, after := []uint64{}, uint64(10)
			own := newOwnWrites("k.r.")
			own.begin(11)
			f := &ownFollower{own: own, after: &after, fn: func(m *Msg) { passed = append(passed, m.Sequence) }}
			r := ownReading{f: f, open: &look{gap: c.gap}}
			take := func() {
				took, _, _ := own.take(make([]ownWrite, 0, 8))
				for i := range took {
					f.deliver(&took[i])
				}
			}
			for _, seq := range c.own {
				acked(own, "k.r.own", seq)
			}
			take() // while the look is open
			a := lookAnswer{}
			if c.found > 0 {
				a.msg = &Msg{Subject: c.subject, Sequence: c.found}
			}
			if leaves, err := r.onAnswer(a); err != nil || leaves != c.leaves || r.open != nil {
				t.Errorf("leaves: %v, %v, still open: %v", leaves, err, r.open != nil)
			}
			take()
			if fmt.Sprint(passed) != c.passes || after != c.after {
				t.Errorf("passed %v, through %d", passed, after)
			}
		})
	}
}

// TestOwnReadingSlow checks when looks into the stream are too slow for the messages of others.
func TestOwnReadingSlow(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	at := func(ms int) time.Time { return begun.Add(time.Duration(ms) * time.Millisecond) }
	for _, c := range []struct {
		name  string
		steps []struct {
			ms   int
			took bool
			gap  uint64
		}
		slow bool
	}{
		{"no gap", []struct {
			ms   int
			took bool
			gap  uint64
		}{{0, true, 0}, {120, true, 0}, {240, true, 0}}, false},
		{"one gap, still open", []struct {
			ms   int
			took bool
			gap  uint64
		}{{0, true, 0}, {100, false, 7}, {200, false, 7}}, true},
		{"a short gap", []struct {
			ms   int
			took bool
			gap  uint64
		}{{0, true, 0}, {100, false, 7}, {200, true, 0}, {240, true, 0}}, false},
		{"gap after gap", []struct {
			ms   int
			took bool
			gap  uint64
		}{{0, true, 7}, {50, true, 9}, {100, false, 11}, {150, true, 13}, {200, true, 0}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := ownReading{f: &ownFollower{own: newOwnWrites("k.r."), since: begun}}
			for _, s := range c.steps {
				r.progress(s.took, s.gap, at(s.ms))
			}
			if r.slow(at(250)) != c.slow {
				t.Errorf("slow: %v, blocked for %s", !c.slow, r.blocked)
			}
			r.nextWindow(at(250))
			r.f.since = at(250)
			if r.progress(true, 0, at(300)); r.slow(at(500)) {
				t.Errorf("slow in the next window, too: blocked for %s", r.blocked)
			}
			r.progress(true, 9, at(310))
			if r.progress(false, 9, at(450)); !r.slow(at(500)) {
				t.Errorf("not slow with a gap in the next window: blocked for %s", r.blocked)
			}
		})
	}
}

// TestNextLook checks when the stream is asked.
func TestNextLook(t *testing.T) {
	t.Parallel()
	looked := time.Now()
	gapped := looked.Add(3 * time.Millisecond)
	for _, c := range []struct {
		name string
		r    ownReading
		open int64
		want time.Time
	}{
		{"nothing is missing", ownReading{looked: looked}, 0, looked.Add(foreignPace)},
		{"an acknowledgement will show what is missing", ownReading{looked: looked}, 1, looked.Add(busyPace)},
		{"a gap", ownReading{looked: looked, gap: 7, gapped: gapped}, 1, gapped.Add(gapPatience)},
		{"a gap that was asked for", ownReading{looked: looked, gap: 7, gapped: looked.Add(-time.Second)}, 0, looked.Add(gapPatience)},
		{"more may follow", ownReading{looked: looked, again: true}, 1, looked},
	} {
		c.r.f = &ownFollower{own: newOwnWrites("k.r.")}
		c.r.f.own.open.Store(c.open)
		if got := c.r.nextLook(); !got.Equal(c.want) {
			t.Errorf("%s: %s after the last one, want %s", c.name, got.Sub(looked), c.want.Sub(looked))
		}
	}
}

// TestOwnPause checks that the follower tries the memory ever more seldom while it does not pay, and again soon once it has.
func TestOwnPause(t *testing.T) {
	t.Parallel()
	f := &ownFollower{own: newOwnWrites("k.r.")}
	now := time.Now()
	for i, c := range []struct {
		quiet bool
		ran   time.Duration
		want  time.Duration
	}{
		{false, time.Second, ownPause}, {false, time.Second, 2 * ownPause}, {false, time.Second, 4 * ownPause},
		{false, ownSteady, ownPause}, {false, time.Second, 2 * ownPause}, {true, time.Second, 0}, {false, time.Second, ownPause},
	} {
		f.setPause(c.quiet, now, now.Add(c.ran))
		if got := f.notBefore.Sub(now.Add(c.ran)); got != c.want {
			t.Errorf("%d: %s, want %s", i, got, c.want)
		}
	}
	for range 20 {
		f.setPause(false, now, now)
	}
	if f.pause != maxOwnPause {
		t.Errorf("at most %s, got %s", maxOwnPause, f.pause)
	}
}

// TestFollowOwnOfOthers checks that a consumer is used as soon as much comes from others.
func TestFollowOwnOfOthers(t *testing.T) {
	t.Parallel()
	f, _ := followFromMemory(t)
	n := 0
	waittest.Until(t, "the consumer is used again", func() bool {
		for range 20 {
			if err := f.foreign(fmt.Sprintf("k.r.f%d", n)); err != nil {
				t.Fatal(err)
			}
			n++
		}
		return !f.own.inUse.Load()
	})
	f.check()
}

// TestFollowOwnFull checks that nothing is missing when a follower that stands still fills the memory.
func TestFollowOwnFull(t *testing.T) {
	t.Parallel()
	f, stop := followFromMemory(t)
	// On a busy machine the follower may have left the memory just before.
	waittest.Until(t, "the follower stands still and uses memory", func() bool {
		if f.hold.Lock(); f.own.keeps.Load() {
			return true
		}
		f.hold.Unlock()
		return false
	})
	waittest.Until(t, "the memory is full", func() bool {
		var inflight sync.WaitGroup
		for n := range 64 {
			subject := fmt.Sprintf("k.r.big%d", n)
			inflight.Add(1)
			f.c.WriteAsync("S", "write", subject, nil, append([]byte(subject), make([]byte, 100<<10)...), func(Ack, error) { inflight.Done() })
		}
		inflight.Wait()
		return !f.own.keeps.Load()
	})
	stop()
	f.hold.Unlock()
	f.check()
}

// TestFollowOwnAfterBreak checks that nothing is missing or repeated after a restart of the server, and that writes come from memory
// again.
func TestFollowOwnAfterBreak(t *testing.T) {
	t.Parallel()
	f, stop := followFromMemory(t)
	if err := f.foreign("k.r.before"); err != nil {
		t.Fatal(err)
	}
	f.srv.Restart()
	waittest.Until(t, "the other client reconnects", func() bool { return f.foreign("k.r.after") == nil })
	f.fromMemory()
	stop()
	f.check()
}

// TestFollowOwnTwice checks that two followers of a client get all messages, although one of them at most uses memory at a time.
func TestFollowOwnTwice(t *testing.T) {
	t.Parallel()
	f := newFollowing(t)
	second := &following{t: t, srv: f.srv, c: f.c, other: f.other, own: f.own, passed: map[uint64]string{}}
	f.follow()
	second.follow()
	stop := f.busy()
	defer stop()
	waittest.Until(t, "messages from memory", func() bool { return f.memory.Load()+second.memory.Load() > 1000 })
	stop()
	f.check()
	second.check()
}

// TestFollowOwnReplicas checks that a stream with replicas is read with a consumer: a replica that is behind would
// answer that nothing is missing.
func TestFollowOwnReplicas(t *testing.T) {
	t.Parallel()
	cl := natstest.Cluster3(t)
	f := &following{t: t, c: newClient(t, cl.Connect(), 5*time.Second), passed: map[uint64]string{}}
	f.other = f.c
	eventually(t, "the stream", func() bool { return f.c.CreateStream(t.Context(), followed(3)) == nil })
	f.keepWrites()
	f.follow()
	stop := f.busy()
	defer stop()
	waittest.Until(t, "many messages", func() bool { return f.stream.Load()+f.memory.Load() > 2000 })
	stop()
	f.check()
	if n := f.memory.Load(); n > 0 {
		t.Errorf("%d messages came from memory", n)
	}
}

// TestLookRefused checks that an answer that is neither a message nor "not found" ends the reading from memory: the follower
// must not take it for the end of the stream.
func TestLookRefused(t *testing.T) {
	t.Parallel()
	c := newClient(t, natstest.Run(t).Connect(), 5*time.Second)
	if err := c.CreateStream(t.Context(), StreamConfig{Name: "indirect", Subjects: []string{"indirect.>"}, Storage: jetstream.MemoryStorage}); err != nil {
		t.Fatal(err)
	}
	for _, l := range []struct {
		stream string
		after  uint64
	}{
		{"none", 1},
		{"indirect", 1},
	} {
		after := l.after
		f := &ownFollower{c: c.Readers, own: newOwnWrites("k.r."), stream: l.stream, after: &after}
		r := ownReading{f: f, open: f.look(7)}
		if leave, err := r.onAnswer(waittest.Receive(t, "the answer", r.open.answer)); !errors.Is(err, ErrUnavailable) || !leave || after != l.after {
			t.Errorf("%s: %v, passed to %d", l.stream, err, after)
		}
	}
}
