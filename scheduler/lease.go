package scheduler

import (
	"context"
	"errors"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// leaseMargin is the part of a lease that an owner does not rely on: it covers
// the time between its last look at the clock and the write that follows.
const leaseMargin = 10 // a tenth

// tenure is one epoch of ownership: the clock as last written, and until when
// it may be relied on.
type tenure struct {
	clock store.Clock
	rev   uint64
	until time.Time // monotonic
}

func (s *shard) leaseFrom(start time.Time) time.Time {
	return start.Add(s.o.Lease - s.o.Lease/leaseMargin)
}

// standBy waits until the shard is free, and takes it. It returns false when
// ctx ends. Silence counts only while this node's own readings of the cluster's
// time succeed: when the store is silent, nobody can renew, and that says
// nothing about the owner.
func (s *shard) standBy(ctx context.Context) (tenure, bool) {
	var lastRev uint64
	silentSince := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return tenure{}, false
		case <-timer.C:
			timer.Reset(s.o.Tick / 4)
		}
		c, rev, err := s.o.Store.ReadClock(ctx, s.n)
		now := time.Now()
		if err != nil || s.o.Time.Age() > 2*s.o.Tick+time.Second {
			s.logChange("read clock", err)
			silentSince = now
			continue
		}
		s.logChange("read clock", nil)
		if rev != lastRev {
			lastRev, silentSince = rev, now
		}
		free := c.Owner == "" || c.Owner == s.o.Node && s.o.NodeExclusive
		if !free && now.Sub(silentSince) < s.o.Lease {
			continue
		}
		if t, ok := s.take(ctx, c, rev); ok {
			return t, true
		}
	}
}

func (s *shard) take(ctx context.Context, c store.Clock, rev uint64) (tenure, bool) {
	start := time.Now()
	from := c.Owner
	c.Owner = s.o.Node
	c.Epoch++
	newRev, err := s.o.Store.WriteClock(ctx, s.n, c, rev)
	if err != nil {
		// Lost to another node, or not answered: the next look at the clock tells.
		if !errors.Is(err, store.ErrRevision) {
			s.m.storeErrs.WithLabelValues("take_clock").Inc()
		}
		return tenure{}, false
	}
	s.m.takeovers.Inc()
	s.log.Info().Str("from", from).Uint64("epoch", c.Epoch).Time("mark", time.UnixMilli(c.TimeMs)).Uint64("tail", c.Tail).Msg("shard taken")
	return tenure{clock: c, rev: newRev, until: s.leaseFrom(start)}, true
}

type renewal struct {
	start time.Time
	clock store.Clock
	rev   uint64
	err   error
}

// renew writes the clock once. A conflict with our own earlier write, whose
// answer was lost, is found out by reading.
func (s *shard) renew(ctx context.Context, c store.Clock, rev uint64) renewal {
	r := renewal{start: time.Now(), clock: c}
	r.rev, r.err = s.o.Store.WriteClock(ctx, s.n, c, rev)
	if !errors.Is(r.err, store.ErrRevision) {
		return r
	}
	was, wasRev, err := s.o.Store.ReadClock(ctx, s.n)
	switch {
	case err != nil:
		r.err = err
	case was.Owner == c.Owner && was.Epoch == c.Epoch:
		r.start = time.Now()
		r.rev, r.err = s.o.Store.WriteClock(ctx, s.n, c, wasRev)
	}
	return r
}
