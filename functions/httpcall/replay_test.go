package httpcall

import (
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestOneCallAnAttempt: an attempt on a reused connection that ends without an answer is one call of
// the target, however many idle connections there are.
func TestOneCallAnAttempt(t *testing.T) {
	t.Parallel()
	const conns = 8
	var calls atomic.Int64
	var together sync.WaitGroup
	together.Add(conns)
	var keys sync.Map
	target := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if calls.Add(1) <= conns {
			together.Done()
			together.Wait() // so that each call has a connection of its own
			return
		}
		keys.Store(r.Header.Get("Idempotency-Key"), true)
		panic(http.ErrAbortHandler)
	})
	i := newInvoker(t, Config{Guard: Guard{AllowLoopback: true}, MaxConns: conns})
	var opened sync.WaitGroup
	for range conns {
		opened.Go(func() {
			if out := call(t, i, target, time.Minute); !out.Success {
				t.Errorf("got %+v, want a success", out)
			}
		})
	}
	opened.Wait()
	if out := call(t, i, target, time.Minute); out.Success || !out.Retryable {
		t.Errorf("got %+v, want a retryable failure", out)
	}
	if n := calls.Load() - conns; n != 1 {
		t.Errorf("one attempt made %d calls", n)
	}
	if _, ok := keys.Load("tid.1"); !ok {
		t.Error("the call has no Idempotency-Key")
	}
}
