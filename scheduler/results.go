package scheduler

import "sync"

// results passes the results of functions that Host.Go runs to the next turn.
type results struct {
	mu    sync.Mutex
	calls []func()
}

// put passes a result to the next turn.
func (r *results) put(result func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, result)
}

// take returns the results since the last call.
func (r *results) take() []func() {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return calls
}
