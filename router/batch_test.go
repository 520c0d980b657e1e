package router

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// streamed is a message of the stream; nothing is asked of it.
type streamed struct{ jetstream.Msg }

// TestLinger: an add of the stream that comes just after others waits a little for
// company; a caller does not, nor does a crowd, nor what comes after a pause.
func TestLinger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		type group struct {
			n  int
			at time.Duration
		}
		var mu sync.Mutex
		var got []group
		b := newBatcher(func(batch []*add) {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, group{len(batch), time.Since(begun)})
		})
		var wg sync.WaitGroup
		wg.Go(b.loop)
		expect := func(what string, want ...group) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(got) != len(want) {
				t.Fatalf("%s: %v, want %v", what, got, want)
			}
			for i := range got {
				if got[i] != want[i] {
					t.Errorf("%s: %v, want %v", what, got, want)
				}
			}
			got = nil
		}
		add1 := func() { b.put(&add{msg: streamed{}}) }
		call := func() { b.put(&add{}) }
		since := func() time.Duration { return time.Since(begun) }

		add1()
		expect("one after a pause", group{1, 0})
		add1()
		add1()
		expect("two soon after")
		time.Sleep(linger)
		expect("a little later", group{2, linger})

		add1()
		expect("again")
		call()
		expect("with a caller", group{2, since()})
		call()
		expect("a caller alone", group{1, since()})

		// The hurry of one that is served already is nothing to those after it.
		time.Sleep(time.Second)
		for range 3 {
			add1()
			synctest.Wait()
			time.Sleep(linger)
		}
		synctest.Wait()
		mu.Lock()
		got = nil
		mu.Unlock()
		for range maxBatch {
			add1()
		}
		synctest.Wait()
		mu.Lock()
		n := 0
		for _, g := range got {
			n += g.n
		}
		if len(got) > 3 || n < maxBatch/2 {
			t.Errorf("a crowd: %v", got)
		}
		mu.Unlock()
		b.close()
		wg.Wait()
	})
}
