package router

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// TestBatcher: groups from the stream run as they came. A single add runs together with
// all waiting adds. At most maxParallel groups run at a time, and both entries wait for
// that. The end waits for all groups.
func TestBatcher(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		var mu sync.Mutex
		var sizes []int
		b := newBatcher(func(group []*Add) {
			mu.Lock()
			sizes = append(sizes, len(group))
			mu.Unlock()
			<-hold
		})
		expect := func(what string, want ...int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(sizes, want) {
				t.Errorf("%s: groups of %v, want %v", what, sizes, want)
			}
			sizes = nil
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b.loop()
		}()
		group := func(n int) []*Add {
			g := make([]*Add, n)
			for i := range g {
				g[i] = &Add{}
			}
			return g
		}
		b.put(&Add{})
		expect("a caller alone", 1)
		for n := range maxParallel - 1 {
			_ = b.run(t.Context(), group(2+n))
			expect("a group of the stream", 2+n)
		}
		// All permits are in use.
		ran := make(chan struct{})
		go func() {
			_ = b.run(t.Context(), group(7))
			close(ran)
		}()
		expect("a group that waits")
		select {
		case <-ran:
			t.Error("a group was accepted without a permit")
		default:
		}
		hold <- struct{}{}
		<-ran
		expect("its turn", 7)
		for range 5 {
			b.put(&Add{})
		}
		expect("callers that wait")
		hold <- struct{}{}
		expect("the adds that waited, in one group", 5)
		for range 2*MaxBatch + 1 {
			go b.put(&Add{})
		}
		expect("a crowd that waits")
		close(hold)
		synctest.Wait()
		b.close()
		<-ended
		mu.Lock()
		defer mu.Unlock()
		total := 0
		for _, n := range sizes {
			if total += n; n > MaxBatch {
				t.Errorf("a group of %d, more than %d", n, MaxBatch)
			}
		}
		if total != 2*MaxBatch+1 {
			t.Errorf("%d of %d were run when the batcher had ended", total, 2*MaxBatch+1)
		}
	})
}

// TestBatcherEnd: the end waits for groups in progress.
func TestBatcherEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		b := newBatcher(func([]*Add) { <-hold })
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b.loop()
		}()
		_ = b.run(t.Context(), []*Add{{}})
		b.put(&Add{})
		b.close()
		synctest.Wait()
		select {
		case <-ended:
			t.Error("the batcher has ended while a group was running")
		default:
		}
		close(hold)
		<-ended
	})
}

// TestBatcherIsFair: an add of a quiet tenant is in the next group, whatever number of adds of other
// tenants wait before it. The adds of one tenant keep their order.
func TestBatcherIsFair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		var mu sync.Mutex
		var groups [][]*Add
		b := newBatcher(func(group []*Add) {
			mu.Lock()
			groups = append(groups, group)
			mu.Unlock()
			<-hold
		})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b.loop()
		}()
		for range maxParallel {
			_ = b.run(t.Context(), []*Add{{}})
		}
		synctest.Wait()
		const flood = MaxBatch + 1
		for n := range flood {
			b.put(&Add{Tenant: "globex", Seq: uint64(n)})
		}
		for n := range 3 {
			go b.put(&Add{Tenant: "", Seq: uint64(n)})
			synctest.Wait()
			go b.put(&Add{Tenant: "acme", Seq: uint64(n)})
			synctest.Wait()
		}
		hold <- struct{}{}
		synctest.Wait()
		close(hold)
		synctest.Wait()
		b.close()
		<-ended
		next := map[string]uint64{}
		for i, group := range groups[maxParallel:] {
			for _, a := range group {
				if a.Seq != next[a.Tenant] {
					t.Errorf("tenant %q: add %d, want %d", a.Tenant, a.Seq, next[a.Tenant])
				}
				next[a.Tenant]++
			}
			if i == 0 && (next["acme"] != 3 || next[""] != 3 || len(group) != MaxBatch) {
				t.Errorf("the next group of %d has %d adds of acme and %d of the default tenant, want all 3 of each", len(group), next["acme"], next[""])
			}
		}
		if next["globex"] != flood {
			t.Errorf("%d adds of globex, want %d", next["globex"], flood)
		}
	})
}
