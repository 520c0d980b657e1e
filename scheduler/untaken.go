package scheduler

import (
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/throttle"
)

// untakenEvery is the interval of the log lines about shards that this node does not take.
const untakenEvery = time.Minute

// Untaken returns the shards that this node has not taken although their owners may be dead.
//
// late are those whose owner has been silent for two leases, most of which did not count because this node's
// heartbeats were late. refused are those whose clock the server has not let this node change for longer than a
// lease, because the clock has a revision that no membership snapshot shows.
func (k *Coordinator) Untaken(now time.Duration) (late, refused []int) {
	if k.leaving {
		return nil, nil
	}
	for n := range k.shards {
		s := &k.shards[n]
		switch {
		case s.ownership == ownershipHeld || s.ownership == ownershipReleasing || !s.seen || s.newer:
		case s.refused && now-s.refusedSince > k.cfg.Lease:
			refused = append(refused, n)
		case s.clock.Owner != "" && now-s.changed > 2*k.cfg.Lease && k.lastLate > s.changed && now-k.lastLate < k.cfg.Lease:
			late = append(late, n)
		}
	}
	return late, refused
}

// untakenLog logs the results of Coordinator.Untaken at intervals. It is not safe for concurrent use.
type untakenLog struct{ late, refused throttle.Log }

// write writes a line for each kind that is not empty. now is the monotonic clock, age the time since this
// node's last heartbeat.
func (l *untakenLog) write(log zerolog.Logger, now, age time.Duration, late, refused []int) {
	l.late.Every, l.refused.Every = untakenEvery, untakenEvery
	at := time.Unix(0, 0).Add(now)
	if len(late) > 0 {
		if _, ok := l.late.Allow(at); ok {
			log.Warn().Ints("shards", late).Dur("heartbeat_age_ms", age).Msg("shards of silent owners are not taken: this node's heartbeats are late, so the store may be slow for their owners, too")
		}
	}
	if len(refused) > 0 {
		if _, ok := l.refused.Allow(at); ok {
			log.Warn().Ints("shards", refused).Msg("shards are not taken: the server refuses each attempt, because their clocks have changed and the replica that this node reads does not show it")
		}
	}
}
