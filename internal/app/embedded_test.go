package app

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/waittest"
)

// TestServerHangs: a server that has not answered since its disk was full ends the node
// with ErrHung once there is room again. Without a full disk it only counts as slow.
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
	waittest.Until(t, "the server does not answer", func() bool {
		_, answered := e.ask(ctx, false)
		return !answered
	})
	if e.Trouble() != "" {
		t.Errorf("the server is slow and the disk not full: got trouble %q, want none", e.Trouble())
	}
	free.Store(0)
	waittest.Until(t, "a full disk is reported", func() bool {
		return strings.Contains(e.Trouble(), "is full: 0 MB free, needs 16 MB")
	}, e.Trouble)
	select {
	case err := <-failed:
		t.Fatalf("the node ended with %v, want it to wait until the disk has space", err)
	default:
	}
	free.Store(maxNeedBytes)
	if err := waittest.Receive(t, "the node ends", failed); !errors.Is(err, ErrHung) || strings.Contains(err.Error(), "\n") {
		t.Errorf("got error %v, want ErrHung in one line", err)
	}
	cancel()
	<-done
}
