package store

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// stuck makes shard 0 wait for the answer to a barrier.
func stuck(s *Store) *barrier {
	b := s.barriers
	b.mu.Lock()
	defer b.mu.Unlock()
	w := &barrier{sentAt: time.Now(), open: 1, done: make(chan struct{})}
	b.byShard[0].sent = w
	return w
}

// TestBarriersShare: calls that wait for the answer to an earlier barrier share one message, which is sent after they have begun.
func TestBarriersShare(t *testing.T) {
	t.Parallel()
	s := oneShard(t)
	first, err := s.barriers.sequence(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	earlier := stuck(s)
	const callers = 50
	seqs := make([]uint64, callers)
	var joined, all sync.WaitGroup
	joined.Add(callers)
	for n := range callers {
		all.Go(func() {
			w := s.barriers.join(0)
			joined.Done()
			<-w.done
			if seqs[n] = w.seq; w.err != nil {
				t.Error(w.err)
			}
		})
	}
	joined.Wait()
	s.barriers.answer(0, earlier, first, nil)
	all.Wait()
	for n, seq := range seqs {
		if seq != first+1 {
			t.Fatalf("call %d has the sequence %d; want %d, that of one message for all", n, seq, first+1)
		}
	}
}

// TestBarrierRepeats: a barrier does not wait for the answer to an earlier one for longer than barrierPatience, and is sent
// again if it has no answer itself.
func TestBarrierRepeats(t *testing.T) {
	t.Parallel()
	s := oneShard(t)
	stuck(s)
	begun := time.Now()
	if _, err := s.barriers.sequence(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took < barrierPatience {
		t.Errorf("it waited %s for the earlier barrier", took)
	}
	w := stuck(s)
	waittest.Until(t, "the barrier is repeated and answered", func() bool {
		s.barriers.repeat(0, w)
		select {
		case <-w.done:
			return true
		default:
			return false
		}
	}, func() string { return "no answer" })
	if w.err != nil || w.seq == 0 {
		t.Errorf("the answer is %d, %v", w.seq, w.err)
	}
}

// TestBarrierAnswers: the first answer without an error counts, also if it is late. An error counts if there is no other message.
func TestBarrierAnswers(t *testing.T) {
	t.Parallel()
	s := oneShard(t)
	w := stuck(s)
	w.open = 2
	s.barriers.answer(0, w, 0, ErrRevision)
	if w.ended {
		t.Error("an error ended a barrier with another message")
	}
	s.barriers.answer(0, w, 7, nil)
	if !w.ended || w.seq != 7 || w.err != nil {
		t.Errorf("after an answer: %+v", w)
	}
	w = stuck(s)
	s.barriers.answer(0, w, 0, ErrRevision)
	if !w.ended || w.err == nil {
		t.Errorf("after an error without another message: %+v", w)
	}
}

// TestGetAsOfMissing: a server that lacks a message that every server has is behind.
func TestGetAsOfMissing(t *testing.T) {
	t.Parallel()
	s := oneShard(t)
	stream, err := s.jet.JetStream().Stream(t.Context(), s.subjects[0].stream)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject(s.subjects[0].meta)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.GetAsOf(t.Context(), schemas.NewTimerID("/test", "1"), 1); !errors.Is(err, ErrBehind) || !errors.Is(err, schemas.ErrUnavailable) {
		t.Errorf("the error is %v; want ErrBehind and ErrUnavailable", err)
	}
}

// TestGetNewestFull: in a stream that takes no message, GetNewest is Get.
func TestGetNewestFull(t *testing.T) {
	t.Parallel()
	s := oneShard(t)
	rev := createTimer(t, s, "s", "1")
	js := s.jet.JetStream()
	stream, err := js.Stream(t.Context(), s.subjects[0].stream)
	if err != nil {
		t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	cfg.MaxBytes = int64(stream.CachedInfo().State.Bytes)
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	if _, err := s.barriers.sequence(t.Context(), 0); !errors.Is(err, schemas.ErrStoreFull) {
		t.Fatalf("a barrier in a full stream: %v; want ErrStoreFull", err)
	}
	id := schemas.NewTimerID("/s", "1")
	if got, err := s.GetNewest(t.Context(), id); err != nil || got.Rev != rev {
		t.Errorf("in a full stream: revision %d, %v; want %d", got.Rev, err, rev)
	}
}
