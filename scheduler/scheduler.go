package scheduler

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Scheduler runs every shard of the store on one node: it stands by for each,
// and fires the timers of those that it owns.
type Scheduler struct {
	o      Options
	shards []*shard

	mu     sync.Mutex
	cancel context.CancelFunc
	done   chan struct{}
}

// New checks the options; it starts nothing.
func New(o Options) (*Scheduler, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("scheduler: register metrics: %w", err)
	}
	s := &Scheduler{o: o}
	for n := range o.Store.Geometry().Shards {
		s.shards = append(s.shards, newShard(n, &s.o, m))
	}
	return s, nil
}

// Start waits for the cluster's time and starts the shards' loops. They live
// until Stop, whatever becomes of ctx.
func (s *Scheduler) Start(ctx context.Context) error {
	if err := s.o.Time.Ready(ctx); err != nil {
		return fmt.Errorf("scheduler: the cluster's time is not known: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done != nil {
		return nil
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel, s.done = cancel, make(chan struct{})
	var wg sync.WaitGroup
	for _, sh := range s.shards {
		wg.Go(func() { sh.run(run) })
	}
	go func() {
		wg.Wait()
		close(s.done)
	}()
	return nil
}

// Stop releases the shards and waits until all is drained, or ctx ends. It may
// be called more than once, and without Start.
func (s *Scheduler) Stop(ctx context.Context) error {
	s.mu.Lock()
	cancel, done := s.cancel, s.done
	s.mu.Unlock()
	if done == nil {
		return nil
	}
	cancel()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("scheduler: shards still draining: %w", context.Cause(ctx))
	}
}

// ShardStatus is what one node knows of a shard.
type ShardStatus struct {
	Shard int `json:"shard"`
	// State is standby, owner, or suspended (the lease ran out, the store is silent).
	State string    `json:"state"`
	Mark  time.Time `json:"mark"`
}

// Status reports every shard as this node sees it.
func (s *Scheduler) Status() []ShardStatus {
	out := make([]ShardStatus, 0, len(s.shards))
	for _, sh := range s.shards {
		state := [...]string{"standby", "owner", "suspended"}[sh.state.Load()]
		out = append(out, ShardStatus{Shard: sh.n, State: state, Mark: time.UnixMilli(sh.markMs.Load()).UTC()})
	}
	return out
}
