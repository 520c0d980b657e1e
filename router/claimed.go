package router

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

const (
	// claimTimeout bounds the reads about a claim, so that they do not use up the time of the request.
	claimTimeout = 2 * time.Second
	// claimSlack bounds the time by which, because clocks differ, the publish time of an event may lie
	// before its claim.
	claimSlack = 100 * time.Millisecond
)

// claimOf returns the node that claimed a timer and the position of its event; nil for a schedule and
// for a timer that has not fired. It leaves out parts that cannot be read. Firing stores nothing for it: the
// message id finds the event, and the store has the owners of the shard's last terms.
func (s *Service) claimOf(ctx context.Context, t *store.Timer) *schemas.ClaimInfo {
	r := &t.Record
	if r.Schedule != nil || r.FiredMs == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	info := &schemas.ClaimInfo{Epoch: r.Epoch, Message: r.RunID(t.ID).String()}
	var err error
	if s.scope.Tenant == "" { // a tenant sees no nodes
		info.Node, err = s.termOwner(ctx, s.o.Store.Geometry().Shard(t.ID), r.Epoch)
	}
	if err == nil {
		info.Sequence, err = s.o.Store.FindFired(ctx, r.Service, info.Message, time.UnixMilli(r.FirstMs()).Add(-claimSlack))
	}
	if err != nil {
		s.o.Log.Debug().Err(err).Stringer("timer", t.ID).Msg("the claim of a timer could not be read")
	}
	return info
}

// termOwner returns the owner of a shard in an epoch; "" if it is not known any more.
func (s *Service) termOwner(ctx context.Context, shard int, epoch uint64) (string, error) {
	clock, _, err := s.o.Store.ReadClock(ctx, shard)
	if err != nil || clock.Epoch == epoch && clock.Owner != "" {
		return clock.Owner, err
	}
	return s.o.Store.TermOwner(ctx, shard, epoch)
}
