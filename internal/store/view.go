package store

import (
	"context"
	"errors"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// View reads the state of a store for operators: clocks, nodes, streams, consumers and
// damage. It works without an open Store, also where the recorded layout is damaged, and
// changes nothing, except Repair with apply. Safe for concurrent use, except Repair.
type View struct {
	Health
	DamageReports
	*LetterCounts

	jet    *jet.Client
	log    zerolog.Logger
	nodes  *Nodes
	clocks *Clocks
	share  *FiredShare
}

// Look opens a View of the store on a connection. It sends no request. timeout bounds each
// request; 0 is DefaultTimeout. The connection stays the caller's.
func Look(nc *jet.Conn, timeout time.Duration) (*View, error) {
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	c, err := jet.New(nc, jet.Options{Timeout: timeout, Window: 1, MapError: MapError})
	if err != nil {
		return nil, err
	}
	v := &View{
		Health: Health{jet: c}, DamageReports: DamageReports{jet: c}, LetterCounts: &LetterCounts{jet: c},
		jet: c, log: zerolog.Nop(), nodes: newNodes(c, "", NewestLevel),
	}
	shards := newShards(c, schemas.Geometry{})
	v.clocks = newClocks(c, shards, v.nodes, layoutRecord{jet: c, log: v.log}, v.log, v.of(newDecoder(shards, NewestLevel, v.log)))
	v.share = newFiredShare(c, v.log, v.nodes.first.Load, v.nodes.carriedMs)
	return v, nil
}

// ReadCluster reads all clocks and presences; see Clocks.ReadCluster.
func (v *View) ReadCluster(ctx context.Context) (Cluster, error) { return v.clocks.ReadCluster(ctx) }

// ReadTrimmed reads the recorded trims of TIMERS_FIRED; see FiredShare.ReadTrimmed.
func (v *View) ReadTrimmed(ctx context.Context) ([]Trimmed, error) { return v.share.ReadTrimmed(ctx) }

// ReadCalendars reads all calendars. A store of a version without calendars has none. Errors:
// schemas.ErrUnavailable.
func (v *View) ReadCalendars(ctx context.Context) (*CalendarSet, error) {
	set, err := newCalendars(v.jet, nil, v.log).RefreshCalendars(ctx)
	if errors.Is(err, jet.ErrNoStream) {
		return newCalendarSet(), nil
	}
	return set, err
}

// ReadFlows reads all limits of flow keys. A store of a version without flow control has none.
// Errors: schemas.ErrUnavailable.
func (v *View) ReadFlows(ctx context.Context) (*FlowSet, error) {
	set, err := newFlows(v.jet, false, nil, nil, nil, nil, nil, v.log).RefreshFlows(ctx)
	if errors.Is(err, jet.ErrNoStream) {
		return newFlowSet(), nil
	}
	return set, err
}

// EachSchedule reads all records, shard by shard, and passes those of schedules in state
// pending or paused to fn, with the pauses of Reader.EachSchedule, which leave the server time
// for the nodes. Errors: those of fn, schemas.ErrUnavailable, schemas.ErrDamaged for a damaged
// layout.
func (v *View) EachSchedule(ctx context.Context, fn func(Timer) error) error {
	rd, err := v.reader(ctx)
	if err != nil {
		return err
	}
	for n := range rd.shards.Geometry().Shards {
		if err := rd.EachSchedule(ctx, n, 0, func(t Timer) (bool, error) { return true, fn(t) }); err != nil {
			return err
		}
	}
	return nil
}

// reader returns a reader of the records. Errors: as EachSchedule.
func (v *View) reader(ctx context.Context) (*Reader, error) {
	m, _, err := layoutRecord{jet: v.jet, log: v.log}.read(ctx)
	if err != nil {
		return nil, err
	}
	shards := newShards(v.jet, m.Geometry)
	return newReader(v.jet, shards, v.clocks, newDecoder(shards, NewestLevel, v.log), v.log), nil
}

// Close ends calls in flight. It leaves the connection open. It may be called twice.
func (v *View) Close() { v.jet.Close() }
