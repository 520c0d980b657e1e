package store

import (
	"time"

	"github.com/belfryio/belfry/schemas"
)

// Timer is a record with its identity and revision.
type Timer struct {
	ID  schemas.TimerID
	Rev uint64 // sequence in the shard's stream
	// StoredMs is the leader's timestamp of this revision, 0 where unknown.
	StoredMs int64
	Record   schemas.Record
	// Unread says why Record is not set; Readable if it is.
	Unread Unread
}

// Unread says whether this build can read a record. Only Tail, ScanQueued and Audit
// return timers whose record they cannot read.
type Unread uint8

const (
	// Readable is a record that this build reads.
	Readable Unread = iota
	// UnreadOpen is a record of a newer format (schemas.ErrNewer) that may have to fire.
	UnreadOpen
	// UnreadFinal is a record of a newer format that needs no work. Such a record has a
	// TTL, which only final records have, whatever their format.
	UnreadFinal
)

// NewerRecord is a record of a newer format that an index entry names.
type NewerRecord struct {
	ID  schemas.TimerID
	Rev uint64
	// Tick is set by LoadTicks: the first of the requested ticks whose index entries name
	// the record. The record may be due in that tick, in the same slot of a later revolution
	// of the wheel, or, if the timer was moved, in any other tick.
	Tick int64
}

// Result is the outcome of one write. Rev is the new revision.
type Result struct {
	Rev uint64
	Err error
}

// Write is one write of a record. It replaces revision Rev; with Rev 0 it creates the record.
type Write struct {
	ID     schemas.TimerID
	Rev    uint64
	Record *schemas.Record
	// TTL is the time after which the server removes the record. It is more than 0 for a
	// final record, and 0 for every other record, which must not expire. See Check.
	TTL time.Duration
}

// Check returns an error of schemas.CodeBadRequest if the TTL does not fit the record's
// state. The error is a defect of the caller: a pending timer with a TTL would be lost, and
// a final record without a TTL would stay for good.
func (w *Write) Check() error {
	switch final := w.Record.State.Final(); {
	case !final && w.TTL != 0:
		return schemas.Errorf(schemas.CodeBadRequest, "write of timer %s refused: a record that is %s must not expire (TTL %s)", w.ID, w.Record.State, w.TTL)
	case final && w.TTL <= 0:
		return schemas.Errorf(schemas.CodeBadRequest, "write of timer %s refused: a record that is %s needs a TTL", w.ID, w.Record.State)
	}
	return nil
}

// Clock is the value of clock.<shard>: the whole recovery state of a shard.
type Clock struct {
	Version int `json:"v"`
	// TimeMs is the low watermark in Unix milliseconds, the start of a tick: every record
	// due before it has been fired, except records that the tail has not delivered yet.
	TimeMs int64 `json:"time"`
	// Owner is the node that may fire; empty after a graceful release.
	Owner string `json:"owner"`
	// Epoch grows by one with every take-over of the shard.
	Epoch uint64 `json:"epoch"`
	// Tail is the applied offset: every record up to this sequence of the shard's stream is
	// done, or is due after TimeMs, so that the index leads to it. The next owner follows the
	// stream from here.
	Tail uint64 `json:"tail"`
	// Seen is the last sequence that the owner had read when it wrote the clock. It is
	// greater than Tail while a record pins the offset.
	Seen uint64 `json:"seen"`
	// EarlierTail is not above Tail. Owners of the epochs up to EarlierEpoch may have claimed runs or overdue events of
	// schedules after EarlierTail, and may have died before they published them. EarlierEpoch is 0 if there are no such
	// claims. scheduler.Core.earlierClaims has the rule. Older builds write neither field.
	EarlierEpoch uint64 `json:"earlier_epoch,omitempty"`
	EarlierTail  uint64 `json:"earlier_tail,omitempty"`
	// LeaseMs is the owner's lease in milliseconds: another node may take the shard only
	// after the clock has not changed for that long. Older builds do not state it; it is 0
	// then.
	LeaseMs int64 `json:"lease,omitempty"`
	// Needs is the FormatLevel that an owner of the shard should read; 0 for any. An owner
	// raises it when it finds a record of a newer format, WriteClock when the layout allows far
	// entries, and no owner lowers it. A node that reads less owns the shard only while no node that reads Needs is alive.
	Needs FormatLevel `json:"needs,omitempty"`
	// SweptMs is the sweeper's position in Unix milliseconds: it has audited every tick
	// before it. 0 before the first owner.
	SweptMs int64 `json:"swept"`
	// Pending is the number of timers in state pending or paused, unless PendingUnknown. The
	// runs of a schedule do not count.
	Pending int64 `json:"pending"`
	// PendingUnknown is true after an owner has died without releasing the shard: Pending may
	// include timers that it claimed after its last write of the clock. It becomes false when
	// an owner has counted the pending timers.
	PendingUnknown bool `json:"pending_unknown,omitempty"`
	// Counted is true if Pending is exact because it started from a count of the shard's
	// records, or from an empty shard. Older builds do not write the field, and their Pending
	// may be wrong.
	Counted bool `json:"counted,omitempty"`
	// Msgs is the number of messages in the shard's stream at MsgsMs (Unix milliseconds).
	// The next owner compares it with the stream to notice lost messages.
	Msgs   uint64 `json:"msgs,omitempty"`
	MsgsMs int64  `json:"msgs_at,omitempty"`
	// Basis identifies the zone data and the revision of the calendars with which an owner
	// has planned the next runs of all schedules of the shard; see scheduler/replan.go. An owner
	// with another basis plans them again. Older builds do not write it; it is empty then.
	Basis string `json:"basis,omitempty"`
	// Ended is the revision up to which the shard's list of ended timers is complete; see endedlist.go. The next owner
	// lists the final records after it. Older builds do not write it; it is 0 then.
	Ended uint64 `json:"ended,omitempty"`
}

// Misses reports whether the event of a claim may be missing: the claim may have been made after the clock was written, whose
// owner may have died before it published the event. rev is the revision of the record in which the claim was found. See
// schemas.LastRun.After.
func (c *Clock) Misses(g schemas.Geometry, l *schemas.LastRun, rev uint64) bool {
	applied := c.Tail
	if c.EarlierEpoch != 0 && l.Epoch <= c.EarlierEpoch && rev > c.Tail {
		applied = min(applied, c.EarlierTail)
	}
	return l.After(g, g.Tick(c.TimeMs), applied)
}

// MissesAny is Misses for the last run and the last overdue event of a schedule.
func (c *Clock) MissesAny(g schemas.Geometry, s *schemas.Schedule, rev uint64) bool {
	return c.Misses(g, &s.Last, rev) || c.Misses(g, &s.Alarm, rev)
}

// States of Presence.Scheduler.
const (
	SchedulerActive  = "active"  // shards may be assigned to the node
	SchedulerLeaving = "leaving" // the node is about to release its shards
)

// Presence is the value of the key node.<node>: what the node announces with each
// heartbeat. The key expires a minute (nodeTTL) after the last heartbeat.
type Presence struct {
	Version int `json:"v"`
	// Release is the program's version.
	Release string `json:"release,omitempty"`
	// Instance identifies the process; empty from versions that did not announce it.
	Instance string `json:"instance,omitempty"`
	// Shared is true if this process has seen, within nodeTTL, the presence of another process with its node
	// name. Only one of them fires the shards of that name.
	Shared bool `json:"shared,omitempty"`
	// Roles lists the roles that the node runs.
	Roles []string `json:"roles,omitempty"`
	// Started is the time at which the process started, by its host's clock.
	Started time.Time `json:"started,omitzero"`
	// Scheduler is SchedulerActive or SchedulerLeaving. It is empty for a node without a
	// scheduler, and for versions that did not announce it.
	Scheduler string `json:"scheduler,omitempty"`
	// InFlight is the number of callbacks that the node is making.
	InFlight int `json:"in_flight,omitempty"`
	// Reads is the newest FormatLevel that the node reads; 0 for builds before
	// LevelRecord2. A level covers records, index entries, settings of services and
	// headers of events.
	Reads FormatLevel `json:"reads,omitempty"`
	// Sync says when the node's server syncs writes: SyncAlways or SyncInterval. It is empty
	// if the node cannot find out.
	Sync string `json:"sync,omitempty"`
	// Profile is the durability profile that the node runs with ("safe" or "fast");
	// empty from versions that did not announce it.
	Profile string `json:"profile,omitempty"`
	// Zones is the release of the time zone data that the node uses; empty from versions
	// that did not announce it. doctor compares them.
	Zones string `json:"zones,omitempty"`
	// Waits lists calendars that do not exist, for which schedules of the node's shards wait; at
	// most MaxCalendarWaits.
	Waits []CalendarWait `json:"waits,omitempty"`
	// Search is the state of the node's search index; nil without one.
	Search *SearchState `json:"search,omitempty"`
	// Settings has the settings that all nodes of a store should share, by name. doctor
	// compares them.
	Settings map[string]string `json:"settings,omitempty"`
}

// SearchState is how complete a node's search index is.
type SearchState struct {
	// AsOfMs: each timer that has not changed since this time, in Unix milliseconds, is in the index in
	// its current state. 0 before it is known.
	AsOfMs int64 `json:"as_of_ms"`
	// Behind is an upper bound of the changes that it lacks, Entries the number of its entries.
	Behind  uint64 `json:"behind,omitempty"`
	Entries int64  `json:"entries,omitempty"`
	// CountsOnly is true while it only counts, CatchingUp while it
	// reads missed changes: those before a start, while it counted, or while the machine was busy.
	CountsOnly bool `json:"counts_only,omitempty"`
	CatchingUp bool `json:"catching_up,omitempty"`
	// Failing is true while it cannot be written; the node's log has the reason.
	Failing bool `json:"failing,omitempty"`
}

// Problem describes in one sentence why searches on a node lack changes; "" if they do not.
func (s *SearchState) Problem(node string) string {
	switch {
	case s.Failing:
		return "the search index of " + node + " cannot be written, so searches lack what changed since: see the log of the node; the file can be deleted while the node is down"
	case s.CountsOnly:
		return "timers change faster than the search index of " + node + " can be written: it counts only, and searches lack the last changes until the load falls"
	}
	return ""
}

// MaxCalendarWaits bounds Presence.Waits.
const MaxCalendarWaits = 8

// CalendarWait is a calendar that does not exist, and one of the due schedules that exclude it.
type CalendarWait struct {
	Calendar string          `json:"calendar"`
	Schedule schemas.TimerID `json:"schedule"`
}

// Values of Presence.Sync.
const (
	SyncAlways   = "always"   // the server syncs each write before it acknowledges it
	SyncInterval = "interval" // the server acknowledges writes and syncs them later
)

// Member is a node with its presence.
type Member struct {
	Node string
	// Rev is the revision of the presence; it grows with every heartbeat. StoredMs is the
	// leader's timestamp of the last heartbeat, in Unix milliseconds.
	Rev      uint64
	StoredMs int64
	Presence Presence
}

// ClockAt is a shard's clock with its revision.
type ClockAt struct {
	Shard    int
	Rev      uint64 // 0 if the key is gone
	StoredMs int64  // the leader's timestamp of this revision, in Unix milliseconds
	// Clock is the clock. If Err is schemas.ErrDamaged, it is the state from which to resume
	// the shard.
	Clock Clock
	// Err is nil, schemas.ErrDamaged (the key is gone, or its value is not a clock) or
	// schemas.ErrNewer (only nodes of a newer version can read the clock and own the shard).
	Err error
}

// Cluster is a membership snapshot: the clocks of all shards and the presences of all nodes,
// read together. Any replica may have answered, and be behind. A node may decide by it to
// try a take-over; only the compare-and-set on the clock decides whether it succeeds.
type Cluster struct {
	Clocks []ClockAt // by shard
	Nodes  []Member  // by name
	// Alien lists the subjects of keys in bucket clock that Belfry has not written: clocks of
	// shards that do not exist, and presences that cannot be decoded. A Store reads only the
	// clocks of its shards, so only a View finds alien clocks.
	Alien []string
}

// Stamp is one reading of the JetStream leader's clock: the leader stamped a
// message at ServerNs (Unix nanoseconds), some time between Sent and Received
// on this process's monotonic clock.
type Stamp struct {
	Sent, Received time.Time
	ServerNs       int64
}

// Msg is a message to publish.
type Msg struct {
	Subject string
	Header  map[string][]string
	Data    []byte
	MsgID   string // for the stream's dedup window; empty for none
	// Service is the service that makes a callback for this message; empty if none does.
	// Events wakes its feed before it publishes the message.
	Service string
}

// Load is the result of LoadTicks.
type Load struct {
	// Timers lists the records that the index entries of the ticks name, in any state. A
	// timer that was moved or is done is still in its old entry. Records of newer formats
	// are not in the list.
	Timers []Timer
	// Newer lists the records of newer formats that may have to fire.
	Newer []NewerRecord
	// Complete is false, and Timers empty, if several ticks together have more timers than
	// the limit: call LoadTicks again with fewer ticks. It is true for a single tick.
	Complete bool
	// Next is the cursor of the next page of a single tick; 0 after the last page.
	Next uint64
	// Named is the number of timers that the index entries name; some may have no record any more.
	Named int
}
