package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/schemas"
)

// tailBuffer is that of the tail's iterator.
const tailBuffer = 2048

// TestTailDropped: heartbeats fill what is left of the iterator's buffer while
// the reader is away, and the client drops the last record. It comes all the same.
func TestTailDropped(t *testing.T) {
	t.Parallel()
	dropped := make(chan struct{}, tailBuffer)
	nc := natstest.Run(t).InProcess(nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) { dropped <- struct{}{} }))
	s := open(t, nc)
	away, back := make(chan struct{}), make(chan struct{})
	got := make(chan schemas.TimerID, 2*tailBuffer)
	tail, err := s.Tail(t.Context(), 0, 0, func(tm store.Timer) {
		if len(got) == 0 {
			close(away)
			<-back
		}
		got <- tm.ID
	})
	if err != nil {
		t.Fatal(err)
	}
	defer tail.Stop()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "KV_"+schemas.BucketTimers(0))
	if err != nil {
		t.Fatal(err)
	}
	seed := 0
	add := func(count int) {
		t.Helper()
		var writes []store.Write
		for ; len(writes) < count; seed++ {
			w := store.Write{ID: schemas.NewTimerID("/dropped", fmt.Sprint(seed)), Record: storetest.Pending(time.Now().Add(time.Hour).UnixMilli())}
			if s.Geometry().Shard(w.ID) == 0 {
				writes = append(writes, w)
			}
		}
		storetest.CreateAll(t, s, writes)
	}
	add(1)
	<-away
	add(tailBuffer - 2) // one more was asked for, so the server sends heartbeats
	<-dropped           // one of them: the buffer is full
	add(1)
	storetest.Eventually(t, "the last record to be sent", func() bool {
		for info := range stream.ListConsumers(t.Context()).Info() {
			if info.Delivered.Consumer == tailBuffer {
				return nc.Flush() == nil
			}
		}
		return false
	})
	close(back)
	storetest.Eventually(t, "every record", func() bool { return len(got) == tailBuffer })
}
