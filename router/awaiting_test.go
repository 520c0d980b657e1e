package router

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/waittest"
)

// heldStore is a Store in which adds stay on their way until release is closed. Calls beyond most do not wait.
type heldStore struct {
	Store
	waiting, most atomic.Int64
	longest       atomic.Int64 // the time of the last call
	release       chan struct{}
}

func (s *heldStore) AwaitAdds(_ context.Context, most time.Duration) bool {
	s.longest.Store(int64(most))
	if s.waiting.Add(1) <= s.most.Load() {
		<-s.release
	}
	return true
}

// TestAwaitingIsBounded: of the operations that find no timer, only some wait for adds on their way, and a tenant has a
// quarter of them, so that further operations have permits.
func TestAwaitingIsBounded(t *testing.T) {
	t.Parallel()
	st := &heldStore{release: make(chan struct{})}
	s := &Service{engine: &engine{o: Options{Store: st}, awaiting: newPermits(maxAwaiting)}}
	settled := make(chan bool, maxAwaiting)
	begin := func(n int, tenant string) {
		st.most.Add(int64(n))
		for range n {
			go func() { settled <- s.awaitAdds(t.Context(), tenant) }()
		}
	}
	begin(maxAwaiting/tenantShare, "shop")
	waittest.Until(t, "the operations of the tenant wait", func() bool { return st.waiting.Load() == maxAwaiting/tenantShare })
	if s.awaitAdds(t.Context(), "shop") {
		t.Error("one more operation of the tenant has waited")
	}
	begin(maxAwaiting-maxAwaiting/tenantShare, "")
	waittest.Until(t, "all wait", func() bool { return st.waiting.Load() == maxAwaiting })
	if s.awaitAdds(t.Context(), "") {
		t.Error("one more operation has waited")
	}
	close(st.release)
	for range maxAwaiting {
		if !<-settled {
			t.Error("an operation has not waited")
		}
	}
	if !s.awaitAdds(t.Context(), "shop") {
		t.Error("the permits were not returned")
	}
	if got := time.Duration(st.longest.Load()); got != awaitMost {
		t.Errorf("without tenants an operation waits %s, want %s", got, awaitMost)
	}
	s.o.Accounts = map[string]string{"SHOP": "shop"}
	s.awaitAdds(t.Context(), "")
	if got := time.Duration(st.longest.Load()); got != awaitTenants {
		t.Errorf("with tenants an operation waits %s, want %s", got, awaitTenants)
	}
	if maxAwaiting > MaxOperations/2 {
		t.Errorf("%d of %d operations may wait: the others need more room", maxAwaiting, MaxOperations)
	}
}
