package jet

import (
	"bytes"
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
	passed map[uint64]string // subjects by sequence
	last   uint64
}

func newFollowing(t *testing.T, o ...natstest.Option) *following {
	f := &following{t: t, srv: natstest.Run(t, o...), passed: map[uint64]string{}}
	connect := func() *nats.Conn { return f.srv.Connect(nats.ReconnectWait(time.Millisecond), nats.MaxReconnects(-1)) }
	f.c, f.other = newClient(t, connect(), 5*time.Second), newClient(t, connect(), 5*time.Second)
	cfg := StreamConfig{Name: "S", Subjects: []string{"k.>"}, Storage: FileStorage, MaxMsgsPerSubject: 16, AllowRollup: true, AllowDirect: true, AllowAtomicPublish: true}
	if err := f.c.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	f.c.KeepWrites("S", "k.r.")
	f.own = f.c.Writes.conn.own["S"]
	return f
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
	f.passed[m.Sequence] = m.Subject
	if m.Time.IsZero() {
		f.memory.Add(1)
		if !bytes.HasPrefix(m.Data, []byte(m.Subject)) {
			f.t.Errorf("message %d on %s has the data %.20q", m.Sequence, m.Subject, m.Data)
		}
	} else {
		f.stream.Add(1)
	}
}

// busy writes some 2,000 messages a second, records and others, until stop is called.
func (f *following) busy() (stop func()) {
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var inflight sync.WaitGroup
		defer inflight.Wait()
		rng := rand.New(rand.NewPCG(1, 2))
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		data := make([]byte, 0, 64)
		for n := 0; ; n++ {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			for range 1 + rng.IntN(3) {
				subject, hdr := fmt.Sprintf("k.r.%d", rng.IntN(60)), Header{}
				switch rng.IntN(4) {
				case 0:
					subject = fmt.Sprintf("k.i.%d", n)
				case 1:
					hdr = Header{headerRollup: {rollupSubject}}
				}
				inflight.Add(1)
				data = append(data[:0], subject...) // used again
				write := data
				if f.c.InBatches() {
					write = []byte(subject)
				}
				f.c.WriteAsync("S", "write", subject, hdr, write, func(Ack, error) { inflight.Done() })
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
			if f.passed[m.Sequence] != m.Subject {
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
				time.Sleep(20 * time.Millisecond) // not so many that a consumer is better
			}
			f.fromMemory()
			stop()
			f.check()
			waittest.Until(t, "the consumer is used again", func() bool { return !f.own.taken.Load() })
			was := f.memory.Load()
			for range 20 {
				if _, err := f.c.Publish(t.Context(), "write", "k.r.slow", nil, nil); err != nil {
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
	stop := f.busy()
	defer stop()
	f.fromMemory()
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
	stop()
	f.check()
	for n := range 10 {
		if err := f.foreign(fmt.Sprintf("k.r.f%d", n)); err != nil {
			t.Fatal(err)
		}
		f.check()
	}
	if !f.own.taken.Load() {
		t.Error("the follower has used a consumer")
	}
	close(quit)
	<-done
}

// TestLookAnswers checks what each answer of the stream lets the follower pass over.
func TestLookAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		gap, found uint64 // found is 0 for no message
		own        []uint64
		passes     string
		after      uint64
	}{
		{"nothing, no gap", 0, 0, nil, "[]", 10},
		{"nothing before a kept write", 14, 0, []uint64{14}, "[14]", 14},
		{"nothing before a kept write that has passed meanwhile", 11, 0, []uint64{11, 12, 13}, "[11 12 13]", 13},
		{"a message in the gap", 14, 12, []uint64{14}, "[12]", 12},
		{"a kept write", 14, 14, []uint64{14, 15}, "[14 15]", 15},
		{"a message after kept writes that were replaced", 14, 17, []uint64{14, 16, 18}, "[17 18]", 18},
		{"a message that has passed meanwhile", 14, 12, []uint64{11, 12, 14}, "[11 12]", 12},
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
					f.pass(&took[i])
				}
			}
			for _, seq := range c.own {
				acked(own, "k.r.own", seq)
			}
			take() // while the look is open
			a := lookAnswer{}
			if c.found > 0 {
				a.msg = &Msg{Subject: "k.r.found", Sequence: c.found}
			}
			if err := r.onAnswer(a); err != nil || r.open != nil {
				t.Errorf("%v, still open: %v", err, r.open != nil)
			}
			take()
			if fmt.Sprint(passed) != c.passes || after != c.after {
				t.Errorf("passed %v, through %d", passed, after)
			}
		})
	}
}

// TestFollowOwnOfOthers checks that a consumer is used as soon as much comes from others.
func TestFollowOwnOfOthers(t *testing.T) {
	t.Parallel()
	f := newFollowing(t)
	f.follow()
	defer f.busy()()
	f.fromMemory()
	n := 0
	waittest.Until(t, "the consumer is used again", func() bool {
		for range 20 {
			if err := f.foreign(fmt.Sprintf("k.r.f%d", n)); err != nil {
				t.Fatal(err)
			}
			n++
		}
		return !f.own.taken.Load()
	})
	f.check()
}

// TestFollowOwnFull checks that nothing is missing when a follower that stands still fills the memory.
func TestFollowOwnFull(t *testing.T) {
	t.Parallel()
	f := newFollowing(t)
	f.follow()
	stop := f.busy()
	defer stop()
	f.fromMemory()
	f.hold.Lock()
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
	f := newFollowing(t)
	f.follow()
	stop := f.busy()
	defer stop()
	f.fromMemory()
	f.srv.Restart()
	f.fromMemory()
	waittest.Until(t, "the other client reconnects", func() bool { return f.foreign("k.r.after") == nil })
	stop()
	f.check()
}

// TestFollowOwnTwice checks that of two followers one uses memory, and both get all messages.
func TestFollowOwnTwice(t *testing.T) {
	t.Parallel()
	f := newFollowing(t)
	second := &following{t: t, srv: f.srv, c: f.c, other: f.other, own: f.own, passed: map[uint64]string{}}
	f.follow()
	second.follow()
	stop := f.busy()
	defer stop()
	waittest.Until(t, "messages from memory", func() bool { return f.memory.Load()+second.memory.Load() > 1000 })
	if f.memory.Load() > 0 && second.memory.Load() > 0 {
		t.Error("both get messages from memory")
	}
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
	cfg := StreamConfig{Name: "S", Subjects: []string{"k.>"}, Storage: FileStorage, MaxMsgsPerSubject: 16, AllowRollup: true, AllowDirect: true, Replicas: 3}
	eventually(t, "the stream", func() bool { return f.c.CreateStream(t.Context(), cfg) == nil })
	f.c.KeepWrites("S", "k.r.")
	f.own = f.c.Writes.conn.own["S"]
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
	for _, s := range []StreamConfig{{Name: "direct", AllowDirect: true}, {Name: "indirect"}} {
		s.Subjects, s.Storage = []string{s.Name + ".>"}, jetstream.MemoryStorage
		if err := c.CreateStream(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range []struct {
		stream, filter string
		after          uint64
	}{
		{"none", "none.*", 1},
		{"indirect", "indirect.*", 1},
		{"direct", "", 1<<64 - 1}, // asks for nothing
	} {
		after := l.after
		f := &ownFollower{c: c.Readers, own: newOwnWrites("k.r."), stream: l.stream, filter: l.filter, after: &after}
		r := ownReading{f: f, open: f.look(time.Now(), 7)}
		if err := r.onAnswer(waittest.Receive(t, "the answer", r.open.answer)); !errors.Is(err, ErrUnavailable) || after != l.after {
			t.Errorf("%s: %v, passed to %d", l.stream, err, after)
		}
	}
}
