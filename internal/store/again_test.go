package store_test

import (
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/schemas"
)

// TestAskedAgain: what asks a stream that has no leader is answered when it has
// one. The calls' own time-out is far longer than this test lasts, so without a
// repetition none of them is.
func TestAskedAgain(t *testing.T) {
	t.Parallel()
	c := natstest.Cluster3(t)
	survivor := c.Servers[0]
	s := open(t, survivor.Connect(), func(c *store.Config) { c.Replicas, c.Timeout = 3, 10*time.Minute })
	id := storetest.IDsOf(s.Geometry(), 0, 1)[0]
	rev := storetest.CreateAll(t, s, []store.Write{{ID: id, Record: storetest.Pending(storetest.NowMs(t, s) + 60_000)}})[0]
	stream := "KV_" + schemas.BucketTimers(0)
	for _, other := range c.Servers[1:] {
		other.Stop()
	}
	c.WaitNoStreamLeader(stream)

	calls := []struct {
		name string
		call func() error
	}{
		{"read at the leader", func() error { _, err := s.Get(t.Context(), id); return err }},
		{"state of a stream", func() error { _, err := s.LastSeq(t.Context(), 0); return err }},
	}
	// A server that knows of no leader may also refuse at once. That is an answer,
	// and the caller's to repeat; what may not be is silence.
	answered := make(chan string, len(calls))
	for _, call := range calls {
		go func() {
			for call.call() != nil && t.Context().Err() == nil {
				time.Sleep(10 * time.Millisecond)
			}
			answered <- call.name
		}()
	}
	seen := make(chan uint64, 1)
	tail, err := s.Tail(t.Context(), 0, 0, func(tm store.Timer) { seen <- tm.Rev })
	if err != nil {
		t.Fatal(err)
	}
	defer tail.Stop()
	// All have asked, most of them in vain: the server that is left may have been
	// given the lead by one that stopped, and hold it for a moment yet.
	<-time.After(time.Second)
	for _, other := range c.Servers[1:] {
		other.Start()
	}
	deadline := time.After(2 * time.Minute)
	for range calls {
		select {
		case <-answered:
		case <-deadline:
			t.Fatal("a call is not answered although the stream has a leader again")
		}
	}
	select {
	case got := <-seen:
		if got != rev {
			t.Fatalf("the tail brought revision %d, want %d", got, rev)
		}
	case <-deadline:
		t.Fatal("the tail is silent although the stream has a leader again")
	}
}
