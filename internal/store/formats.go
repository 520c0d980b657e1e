package store

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/schemas"
)

// FormatLevel numbers the changes of the stored formats that older builds cannot read. Each
// node announces in its presence the level that it reads. A node writes at most the lowest
// level among the live nodes, so that nodes can be upgraded one at a time.
type FormatLevel int

// The levels. Each includes those before it.
const (
	// LevelFirst is the level of builds before the first change.
	LevelFirst FormatLevel = 0
	// LevelSharedIndex adds index entries that name several timers.
	LevelSharedIndex FormatLevel = 1
	// LevelRecord2 adds schemas.RecordFormat2.
	LevelRecord2 FormatLevel = 2
	// LevelRestingServices adds services at rest, which publishers must wake.
	LevelRestingServices FormatLevel = 3
	// LevelSealedCallback adds events whose callback is in schemas.HeaderCallback.
	LevelSealedCallback FormatLevel = 4
	// LevelSchedules adds records of schedules and of their runs (schemas.Schedule,
	// schemas.Origin), and the claims of these runs.
	LevelSchedules FormatLevel = 5
	// LevelFlow adds limits of flow keys, which every node must obey, and records of events that
	// wait for their slot (schemas.Deferral).
	LevelFlow FormatLevel = 6
	// LevelTenants adds services of tenants (schemas.TenantService), which every node must be
	// able to wake and serve.
	LevelTenants FormatLevel = 7
	// LevelOrder adds records with an ordering key (schemas.AttrKey), whose events every node
	// must call in order.
	LevelOrder FormatLevel = 8
	// LevelAdds adds limits of adds (schemas.AddsFlowPrefix), which every router must obey.
	LevelAdds FormatLevel = 9
	// LevelPending adds limits of pending timers (flow.Limit.Pending), which every router must obey, and for
	// which every owner of a shard must count.
	LevelPending FormatLevel = 10
	// LevelWebhook adds rates that targets allow (TargetRate), which every node that calls must obey.
	LevelWebhook FormatLevel = 11
	// LevelQuota adds limits of schedules, services and bytes (flow.Limit.Quotas), which every router must
	// obey, and for which every owner of a shard must count.
	LevelQuota FormatLevel = 12
	// LevelTenantFlow adds flow keys of tenants (schemas.FlowKey), which nodes before it take for those of the
	// default tenant, and limits that name a tenant.
	LevelTenantFlow FormatLevel = 13
	// LevelFarIndex adds far entries (far.go). A node before it does not find the timers in them.
	LevelFarIndex FormatLevel = 14
	// NewestLevel is the level that this version reads.
	NewestLevel = LevelFarIndex
	// LevelTest stands for the level of the next build in tests. It adds
	// schemas.RecordFormatTest.
	LevelTest = NewestLevel + 1
)

// Formats says which FormatLevel the nodes of a store write.
type Formats struct {
	// Level is the lowest level among the nodes that are alive.
	Level FormatLevel `json:"level"`
	// Newest is the highest level among them.
	Newest FormatLevel `json:"newest"`
	// HeldBackBy lists the nodes that do not read Newest, by name.
	HeldBackBy []string `json:"held_back_by,omitempty"`
	// Record is the record format of Level.
	Record schemas.RecordFormat `json:"record"`
}

// FormatsOf returns the levels of the given live nodes.
func FormatsOf(nodes []Member) Formats {
	var f Formats
	for i, n := range nodes {
		if l := n.Presence.Reads; i == 0 || l < f.Level {
			f.Level = l
		}
		f.Newest = max(f.Newest, n.Presence.Reads)
	}
	for _, n := range nodes {
		if n.Presence.Reads < f.Newest {
			f.HeldBackBy = append(f.HeldBackBy, n.Node)
		}
	}
	slices.Sort(f.HeldBackBy)
	f.Record = f.Level.recordFormat()
	return f
}

// recordFormat is the newest record format of a level.
func (l FormatLevel) recordFormat() schemas.RecordFormat {
	switch {
	case l >= LevelTest:
		return schemas.RecordFormatTest
	case l >= LevelRecord2:
		return schemas.RecordFormat2
	}
	return schemas.RecordFormat1
}

// decodeRecord reads a record of a format that a process of this level knows. Errors:
// schemas.ErrNewer, schemas.ErrDamaged.
func (l FormatLevel) decodeRecord(b []byte) (schemas.Record, error) {
	r, err := schemas.DecodeRecordUpTo(b, l.recordFormat())
	if err == nil && l < LevelSchedules && (r.Schedule != nil || r.Origin != nil) {
		return schemas.Record{}, schemas.Errorf(schemas.CodeUnknownFormat, "record belongs to a schedule, which a node of format level %d does not know: upgrade this node", l)
	}
	if err == nil && l < LevelFlow && r.Deferral != nil {
		return schemas.Record{}, schemas.Errorf(schemas.CodeUnknownFormat, "record waits for its slot under a flow limit, which a node of format level %d does not know: upgrade this node", l)
	}
	if err == nil && l < LevelTenants && schemas.TenantOf(r.Service) != "" {
		return schemas.Record{}, schemas.Errorf(schemas.CodeUnknownFormat, "record belongs to a tenant, which a node of format level %d does not know: upgrade this node", l)
	}
	if err == nil && l < LevelOrder && r.Key != "" {
		return schemas.Record{}, schemas.Errorf(schemas.CodeUnknownFormat, "record has an ordering key, which a node of format level %d does not know: upgrade this node", l)
	}
	return r, err
}

// layout is the newest layout version of a level.
func (l FormatLevel) layout() int {
	switch {
	case l >= LevelFarIndex:
		return layout3
	case l >= LevelRecord2:
		return layout2
	}
	return layout1
}

const (
	// formatsEvery is the interval at which the levels of the other nodes are read.
	formatsEvery = 2 * time.Second
	// layoutSettle is the time between raising a store's layout version and the first write in
	// the new format. A node of an older build that read the version just before must have
	// written its presence by then.
	layoutSettle = 10 * time.Second
)

// Levels knows the FormatLevel that this node may write: the lowest level among the live
// nodes, limited by the layout version of the store. Safe for concurrent use; reading the
// level is one atomic load.
//
// Open makes the first reading of the presences, so the level of an open store is known. Before that
// reading the level is LevelFirst, which every build reads. A failed reading leaves the level as it is.
type Levels struct {
	nodes  *Nodes
	layout layoutRecord
	log    zerolog.Logger
	// writes is the level, and oldest the live node that holds it back; nil for none.
	writes atomic.Int32
	oldest atomic.Pointer[Member]
	// settled is the newest layout version that the store has had for layoutSettle.
	settled atomic.Int32
	// newest is the newest layout version that this process has read. It never falls.
	newest atomic.Int32
}

func newLevels(nodes *Nodes, layout layoutRecord, log zerolog.Logger) *Levels {
	return &Levels{nodes: nodes, layout: layout, log: log}
}

// Writes returns the FormatLevel that this process writes now: the lowest that the live
// nodes read, as of the last reading.
func (l *Levels) Writes() FormatLevel { return FormatLevel(l.writes.Load()) }

// RecordFormat is the format in which this node writes records now.
func (l *Levels) RecordFormat() schemas.RecordFormat { return l.Writes().recordFormat() }

// clockNeeds returns the level that every clock which this process writes states as needed; see
// Clock.Needs. An older node that owned a shard with far entries would pass their timers by. The
// layout version decides, not the level that is written now: the version is raised before the first
// far entry is written, and it stays when an older node that was paused makes the level fall.
func (l *Levels) clockNeeds() FormatLevel {
	if l.newest.Load() >= layout3 {
		return LevelFarIndex
	}
	return LevelFirst
}

// sawLayout records a layout version that this process has read.
func (l *Levels) sawLayout(version int) {
	for {
		was := l.newest.Load()
		if int32(version) <= was || l.newest.CompareAndSwap(was, int32(version)) {
			return
		}
	}
}

// CanSchedule returns an error of schemas.CodeUnavailable while no schedules may be written,
// because a live node does not read them. The error names that node.
func (l *Levels) CanSchedule() error { return l.can(LevelSchedules, "schedules") }

// CanLimit is CanSchedule for the limits of flow keys.
func (l *Levels) CanLimit() error { return l.can(LevelFlow, "flow limits") }

// CanLimitAdds is CanSchedule for the limits of adds.
func (l *Levels) CanLimitAdds() error { return l.can(LevelAdds, "limits of adds") }

// CanLimitPending is CanSchedule for the limits of pending timers.
func (l *Levels) CanLimitPending() error { return l.can(LevelPending, "limits of pending timers") }

// CanLimitQuotas is CanSchedule for the limits of schedules, services and bytes.
func (l *Levels) CanLimitQuotas() error {
	return l.can(LevelQuota, "limits of schedules, services and bytes")
}

// CanServeTenants is CanSchedule for timers of tenants.
func (l *Levels) CanServeTenants() error { return l.can(LevelTenants, "timers of tenants") }

// CanKeyTenants is CanSchedule for flow keys of tenants: timers with one, and limits.
func (l *Levels) CanKeyTenants() error { return l.can(LevelTenantFlow, "flow keys of tenants") }

// CanOrder is CanSchedule for timers with an ordering key.
func (l *Levels) CanOrder() error { return l.can(LevelOrder, "timers with a timerkey") }

// can returns an error while the writes of a level must not be made. what names them.
func (l *Levels) can(level FormatLevel, what string) error {
	if l.Writes() >= level {
		return nil
	}
	if m := l.oldest.Load(); m != nil {
		return schemas.Errorf(schemas.CodeUnavailable, "%s cannot be stored while node %s runs, because its version (%s) does not know them: upgrade it, then try again", what, m.Node, cmp.Or(m.Presence.Release, "unknown"))
	}
	// No live node holds the level back: the layout was raised less than layoutSettle ago; see allowLayout.
	return schemas.Errorf(schemas.CodeUnavailable, "%s cannot be stored yet, because a node of an older version may have read this store's layout before it was raised: try again in %s", what, layoutSettle)
}

// learn makes the first reading. It repeats a reading that failed, for up to within. It repeats every
// error: schemas.CodeConfig, too, can be temporary, while a process that this one replaces still writes
// the same presence.
func (l *Levels) learn(ctx context.Context, within time.Duration) error {
	var last error
	if waitUntilReady(ctx, l.log, within, func(ctx context.Context) error {
		if last = l.update(ctx); last != nil {
			return schemas.Errorf(schemas.CodeUnavailable, "%w", last)
		}
		return nil
	}) != nil {
		return last
	}
	return nil
}

// run updates the level every formatsEvery until ctx ends.
func (l *Levels) run(ctx context.Context) {
	tick := time.NewTicker(formatsEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := l.update(ctx); err != nil {
			l.log.Debug().Err(err).Msg("the formats that other nodes read are not known")
		}
	}
}

// update sets the level from one reading of all presences. Errors: those of Nodes.Beat; schemas.ErrUnavailable
// also if the replica that answered is too far behind.
func (l *Levels) update(ctx context.Context) error {
	nodes, err := l.nodes.live(ctx)
	if err != nil {
		return err
	}
	if len(nodes) == 0 {
		return schemas.Errorf(schemas.CodeUnavailable, "read presences: the replica that answered does not have this node's presence yet")
	}
	level, oldest := l.nodes.reads, Member{}
	for _, m := range nodes {
		if r := m.Presence.Reads; r < level {
			level, oldest = r, m
		}
	}
	l.oldest.Store(nil)
	if oldest.Node != "" {
		l.oldest.Store(&oldest)
	}
	for _, g := range layoutGates {
		if level < g {
			continue
		}
		switch ok, err := l.allowLayout(ctx, g.layout()); {
		case err != nil:
			return err
		case !ok:
			level = g - 1
		}
	}
	switch was := FormatLevel(l.writes.Swap(int32(level))); {
	case level < was:
		l.log.Warn().Str("node", oldest.Node).Str("release", oldest.Presence.Release).Msg("a node of an older version runs: " + withOlder(level))
	case level > was:
		l.log.Debug().Int("level", int(level)).Msg("every live node reads this format level: it is written from now on")
	}
	return nil
}

// withOlder says what does not happen while a node of a level older than NewestLevel runs.
func withOlder(level FormatLevel) string {
	switch {
	case level >= LevelTenantFlow:
		return "timers that are due in hours do not share index entries, until it stops"
	case level >= LevelQuota:
		return "no timers of tenants with a timerflow are added, and no limits of tenants' flow keys are set, until it stops"
	case level >= LevelWebhook:
		return "it obeys no limits of schedules, services and bytes, and none can be set until it stops"
	case level >= LevelPending:
		return "it asks no targets for their permission, and obeys no rates that they allow, until it stops"
	case level >= LevelAdds:
		return "it obeys no limits of pending timers, and none can be set until it stops"
	case level >= LevelOrder:
		return "it obeys no limits of adds, and none can be set until it stops"
	case level >= LevelTenants:
		return "no timers with a timerkey are added until it stops"
	case level >= LevelFlow:
		return "no timers of tenants are added until it stops"
	case level >= LevelSchedules:
		return "it obeys no flow limits, and none can be changed until it stops"
	case level >= LevelSealedCallback:
		return "no schedules are added until it stops"
	case level >= LevelRecord2:
		return "until it stops, no schedules are added, and fired events contain their callbacks unencrypted"
	}
	return "records are written in the older format, without checksum and history, until it stops"
}

// layoutGates are the levels whose formats a build may write only once the store's layout version keeps
// builds without them out, newest first.
var layoutGates = []FormatLevel{LevelFarIndex, LevelRecord2}

// allowLayout raises the layout version of a store that an older build made. It reports whether the
// formats of that layout may be written.
func (l *Levels) allowLayout(ctx context.Context, layout int) (bool, error) {
	if int(l.settled.Load()) >= layout {
		return true, nil
	}
	m, msg, err := l.layout.read(ctx)
	if err != nil {
		return false, err
	}
	if m.Format < layout {
		m.From, m.Format = m.Format, layout
		// ErrRevision: another node was faster.
		if err := l.layout.replace(ctx, m, msg.Sequence); err != nil && !errors.Is(err, ErrRevision) {
			return false, err
		}
		if err := l.layout.copy(ctx, m); err != nil {
			return false, err
		}
		l.log.Info().Int("layout", layout).Msg("every live node reads the newer formats: this store can no longer be opened by older versions")
		return false, nil
	}
	l.sawLayout(m.Format) // at the latest formatsEvery after it was raised, long before layoutSettle
	now, err := l.nodes.nowMs(ctx)
	if err != nil {
		return false, err
	}
	settled := m.From == 0 || m.From >= layout || time.Duration(now-msg.Time.UnixMilli())*time.Millisecond >= layoutSettle
	if settled {
		l.settled.Store(int32(max(int(l.settled.Load()), layout)))
	}
	return settled, nil
}
