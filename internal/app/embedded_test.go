package app

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// TestServerHangs: a server that does not answer since its disk was full ends the node
// with ErrHung, and not before there is room; without a full disk it is only slow.
func TestServerHangs(t *testing.T) {
	t.Parallel()
	var free atomic.Int64
	free.Store(maxNeedBytes)
	failed := make(chan error, 1)
	e := &embedded{
		o: &Options{Data: "/data"}, log: zerolog.Nop(), fail: func(err error) { failed <- err },
		room: func() (int64, int64) { return free.Load(), maxNeedBytes }, answerWithin: 10 * time.Millisecond,
	}
	e.mu.Lock() // the server does not answer
	defer e.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.watch(ctx)
	}()
	await(t, func() (string, bool) {
		_, answered := e.ask(ctx, false)
		return "the server answers", !answered
	})
	if e.Trouble() != "" {
		t.Errorf("a slow server is in trouble: %s", e.Trouble())
	}
	free.Store(0)
	await(t, func() (string, bool) {
		return "trouble is " + e.Trouble(), strings.Contains(e.Trouble(), "is full: 0 MB free, needs 16 MB")
	})
	select {
	case err := <-failed:
		t.Fatalf("the node ended without room: %v", err)
	default:
	}
	free.Store(maxNeedBytes)
	select {
	case err := <-failed:
		if !errors.Is(err, ErrHung) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v", err)
		}
	case <-time.After(bound):
		t.Fatal("the node does not end")
	}
	cancel()
	<-done
}
