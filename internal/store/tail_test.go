package store_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/schemas"
)

const round = jet.FollowBatch

// TestTailReaderAway: the reader pauses within a round for longer than the interval of
// heartbeats, while more is written than a round holds. No record is dropped, and all are
// delivered in order.
func TestTailReaderAway(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).InProcess(nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { t.Error(err) }))
	s := open(t, nc)
	add := adder(t, s)
	before := add(round / 2)
	away, back := make(chan struct{}), make(chan struct{})
	got := make(chan uint64, 8*round)
	leave := sync.OnceFunc(func() {
		close(away)
		<-back
	})
	tail, err := s.Tail(t.Context(), 0, 0, func(tm store.Timer) {
		leave()
		got <- tm.Rev
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tail.Stop()
	<-away
	add(3 * round)
	time.Sleep(2500 * time.Millisecond) // longer than two heartbeats
	close(back)
	rising(t, got, before+3*round, 0)
}

// TestTailConsumerGone: a tail continues where it was after its consumer is deleted, or after
// the server has ended its round.
func TestTailConsumerGone(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).InProcess()
	s := open(t, nc)
	add := adder(t, s)
	got := make(chan uint64, round)
	tail, err := s.Tail(t.Context(), 0, 0, func(tm store.Timer) { got <- tm.Rev })
	if err != nil {
		t.Fatal(err)
	}
	defer tail.Stop()
	js := natstest.JetStream(t, nc)
	stream, err := js.Stream(t.Context(), "KV_"+schemas.BucketTimers(0))
	if err != nil {
		t.Fatal(err)
	}
	var last uint64
	for range 3 {
		add(5)
		last = rising(t, got, 5, last)
		for name := range stream.ConsumerNames(t.Context()).Name() {
			if err := stream.DeleteConsumer(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(got) != 0 {
		t.Errorf("%d records were delivered twice", len(got))
	}
}

// rising takes n revisions, each greater than the one before and than last, and
// returns the greatest.
func rising(t *testing.T, got <-chan uint64, n int, last uint64) uint64 {
	t.Helper()
	for i := range n {
		select {
		case rev := <-got:
			if rev <= last {
				t.Fatalf("revision %d after %d", rev, last)
			}
			last = rev
		case <-time.After(time.Minute):
			t.Fatalf("the tail has delivered %d of %d records, and no more within a minute", i, n)
		}
	}
	return last
}

// adder adds timers of shard 0 that are due in an hour.
func adder(t *testing.T, s *store.Store) func(count int) int {
	seed := 0
	return func(count int) int {
		t.Helper()
		var writes []store.Write
		for ; len(writes) < count; seed++ {
			w := store.Write{ID: schemas.NewTimerID("/tail", fmt.Sprint(seed)), Record: storetest.Pending(time.Now().Add(time.Hour).UnixMilli())}
			if s.Geometry().Shard(w.ID) == 0 {
				writes = append(writes, w)
			}
		}
		storetest.CreateAll(t, s, writes)
		return count
	}
}
