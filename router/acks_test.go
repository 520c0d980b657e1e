package router

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestAcksHoldTheNewestBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var sent []uint64
		k := newAcks(func(a *add) {
			mu.Lock()
			defer mu.Unlock()
			sent = append(sent, a.seq)
		}, ackHold)
		want := func(seqs ...uint64) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(sent, seqs) {
				t.Fatalf("acknowledged %v, not %v", sent, seqs)
			}
		}
		k.ack(&add{seq: 5})
		want()
		k.ack(&add{seq: 3}) // of an older batch
		want(3)
		k.ack(&add{seq: 6})
		want(3, 5)
		k.ack(&add{seq: 6}) // delivered twice
		want(3, 5, 6)
		time.Sleep(ackHold - 1)
		want(3, 5, 6)
		time.Sleep(time.Nanosecond)
		want(3, 5, 6, 6)
		k.ack(&add{seq: 7})
		k.close()
		want(3, 5, 6, 6, 7)
		k.ack(&add{seq: 8})
		want(3, 5, 6, 6, 7, 8)
	})
}
