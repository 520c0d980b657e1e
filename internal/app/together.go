package app

import (
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// maxMaxAhead bounds max-ahead. The TTL of an index entry is longer than the time until
// its timer is due, and must not overflow a time.Duration (292 years).
const maxMaxAhead = 200 * 366 * 24 * time.Hour

// checkTogether returns an error for settings that contradict each other. TestContradictions
// lists every pair.
func (o *Options) checkTogether() error {
	c := o.StoreConfig()
	c.Node = "any"
	if err := c.Validate(); err != nil {
		return err
	}
	geometry := c.Geometry
	if geometry == (schemas.Geometry{}) {
		geometry = schemas.DefaultGeometry()
	}
	err := scheduler.Options{Lease: o.Lease, Heartbeat: o.Heartbeat, Horizon: o.Horizon, SweepDelay: o.SweepDelay, IndexKeep: c.IndexKeep}.Validate(geometry)
	if err != nil {
		return err
	}
	or := func(d, def time.Duration) time.Duration {
		if d == 0 {
			return def
		}
		return d
	}
	retention, sweep := or(o.Retention, store.DefaultRetention), or(o.SweepDelay, scheduler.DefaultSweepDelay)
	fired := or(o.FiredMaxAge, store.DefaultFiredMaxAge)
	dedup := store.DedupWindowFor(retention)
	switch {
	case sweep < dedup:
		return badConfig("sweep-delay is %s; it must be at least the dedup window of timers.fired, %s with a retention of %s: within it JetStream drops an event that the sweeper fires again as a duplicate", sweep, dedup, retention)
	case fired <= sweep:
		return badConfig("fired-max-age is %s; it must be longer than sweep-delay, %s: the sweeper searches TIMERS_FIRED for the events of unfinished timers, and would fire missing ones twice", fired, sweep)
	case o.Limits.MaxHorizon < 0 || o.Limits.MaxHorizon > maxMaxAhead:
		return badConfig("max-ahead is %s; it must be 1ms to %s", o.Limits.MaxHorizon, maxMaxAhead)
	}
	return nil
}
