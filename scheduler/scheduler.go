package scheduler

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

var _ Store = (*store.Store)(nil)

// Scheduler divides the shards of the store with the schedulers of other nodes, and fires
// the timers of the shards that it owns. Create it with New.
type Scheduler struct {
	o      Options
	shards []*shard

	mu    sync.Mutex
	leave chan struct{}      // closed by Stop: release all shards
	drop  context.CancelFunc // ends the terms without a release
	done  chan struct{}      // closed when no shard is left
}

// nearBytes bounds the memory of a node for timers that are due soon; see store.Near. It is for some 120,000 timers with 400
// bytes of data.
const nearBytes = 64 << 20

// New checks the options and registers the metrics. The scheduler does nothing until Start.
func New(o Options) (*Scheduler, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	m := newMetrics()
	if err := m.register(o.Registerer); err != nil {
		return nil, fmt.Errorf("scheduler: register metrics: %w", err)
	}
	s := &Scheduler{o: o}
	p, b, near := &precision{spare: o.Spare}, &Backlog{}, store.NewNearMemory(nearBytes)
	for n := range o.Store.Geometry().Shards {
		s.shards = append(s.shards, newShard(n, &s.o, p, b, near, m))
	}
	return s, nil
}

// Start waits for the cluster's time and starts to take shards. The scheduler then runs
// until Stop, even if ctx ends earlier.
func (s *Scheduler) Start(ctx context.Context) error {
	if err := s.o.Time.Ready(ctx); err != nil {
		return fmt.Errorf("scheduler: the cluster's time is not known: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done != nil {
		return nil
	}
	s.announce(store.SchedulerActive)
	run, drop := context.WithCancel(context.WithoutCancel(ctx))
	s.leave, s.drop, s.done = make(chan struct{}), drop, make(chan struct{})
	go func() {
		defer close(s.done)
		s.coordinate(run, s.leave)
	}()
	return nil
}

// announce sets the scheduler's state in the node's presence and sends a heartbeat at once.
func (s *Scheduler) announce(state string) {
	s.o.Store.Announce(func(p *store.Presence) { p.Scheduler = state })
	s.o.Time.Resample()
}

// Stop hands all shards over and waits until that is done. If ctx ends first, Stop drops
// the remaining shards: nothing is lost, but their next owners wait until the lease expires.
// Stop may be called more than once, and without Start.
func (s *Scheduler) Stop(ctx context.Context) error {
	s.mu.Lock()
	leave, drop, done := s.leave, s.drop, s.done
	if leave != nil {
		select {
		case <-leave:
		default:
			s.announce(store.SchedulerLeaving)
			close(leave)
		}
	}
	s.mu.Unlock()
	if done == nil {
		return nil
	}
	select {
	case <-done:
	case <-ctx.Done():
		s.o.Log.Warn().Err(context.Cause(ctx)).Msg("shards were not handed over in time: their next owners wait until the lease expires")
		drop()
		<-done
	}
	drop()
	return nil
}

// States of ShardStatus.
const (
	StateStandby   = "standby"
	StateOwner     = "owner"
	StateSuspended = "suspended"
)

// ShardStatus is one node's view of a shard.
type ShardStatus struct {
	Shard int `json:"shard"`
	// State is StateStandby, StateOwner, or StateSuspended (the lease has expired because
	// the store does not answer).
	State string `json:"state"`
	// Mark is the low watermark: every timer due before it has been fired.
	Mark time.Time `json:"mark"`
	// NewerRecords counts records of a newer format than this node reads. They hold Mark
	// back. Only the owner sets it.
	NewerRecords int64 `json:"newer_records,omitempty"`
	// DamagedRecords counts records that cannot be decoded. Loss describes the shard's
	// messages that the server has lost. Only the owner sets them.
	DamagedRecords int    `json:"damaged_records,omitempty"`
	Loss           string `json:"loss,omitempty"`
}

// Status reports every shard as this node sees it.
func (s *Scheduler) Status() []ShardStatus {
	out := make([]ShardStatus, 0, len(s.shards))
	for _, sh := range s.shards {
		state := [...]string{StateStandby, StateOwner, StateSuspended}[sh.state.Load()]
		st := ShardStatus{Shard: sh.n, State: state, Mark: time.UnixMilli(sh.watermarkMs.Load()).UTC(), NewerRecords: sh.newer.Load()}
		if d := sh.damage.Load(); d != nil {
			st.DamagedRecords, st.Loss = d.records, d.loss
		}
		out = append(out, st)
	}
	return out
}
