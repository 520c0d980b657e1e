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
	// Tick is the first of the requested ticks whose index entries name the record. The
	// record is due in that tick, in the same slot of a later revolution of the wheel, or
	// was moved away from it.
	Tick int64
}

// Result is the outcome of one write. Rev is the new revision.
type Result struct {
	Rev uint64
	Err error
}

// Write replaces a record. Rev 0 creates.
type Write struct {
	ID     schemas.TimerID
	Rev    uint64
	Record *schemas.Record
	// TTL is the life of the record: more than 0 for a final record, which would never
	// expire otherwise, and 0 for any other, which must not expire while it has work
	// left. See Check.
	TTL time.Duration
}

// Check returns an error for a TTL that does not fit the record's state. That is a defect
// of the caller: a pending timer with a TTL would be lost.
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
	// TimeMs is the low-water mark, the end of the last tick that is done.
	TimeMs int64 `json:"time"`
	// Owner is the node that may fire; empty after a graceful release.
	Owner string `json:"owner"`
	// Epoch grows by one with every change of owner.
	Epoch uint64 `json:"epoch"`
	// Tail is the stream sequence up to which every record is beyond the horizon
	// and indexed, in a tick after TimeMs, or done.
	Tail uint64 `json:"tail"`
	// Seen is the last sequence that the owner had read when it wrote: Tail, or
	// later where Tail is held back by a record that is not done.
	Seen uint64 `json:"seen"`
	// LeaseMs is the owner's lease in milliseconds: another node may take the shard only
	// after the clock has not changed for that long. 0 comes from an older build, which
	// does not state its lease.
	LeaseMs int64 `json:"lease,omitempty"`
	// Needs is the lowest FormatLevel that a node must read to own the shard: an owner
	// found a record of a newer format and raised it. Nodes below it own the shard only
	// while no node that reads it is alive. No owner lowers it; 0 is no requirement.
	Needs FormatLevel `json:"needs,omitempty"`
	// SweptMs is the sweeper's own mark.
	SweptMs int64 `json:"swept"`
	// Pending is the number of timers in state pending, unless PendingUnknown.
	Pending int64 `json:"pending"`
	// PendingUnknown is true if an owner died without releasing the shard, so that its
	// last claims are not in Pending, until the timers have been counted.
	PendingUnknown bool `json:"pending_unknown,omitempty"`
	// Counted is true if Pending results from a count of the shard's records, or from its
	// first clock. Builds before the field kept a number that could drift; they drop it.
	Counted bool `json:"counted,omitempty"`
	// Msgs is the number of messages in the shard's stream at MsgsMs, in Unix
	// milliseconds. The next owner compares it with the stream.
	Msgs   uint64 `json:"msgs,omitempty"`
	MsgsMs int64  `json:"msgs_at,omitempty"`
}

// States of Presence.Scheduler.
const (
	SchedulerActive  = "active"  // takes part in spreading the shards
	SchedulerLeaving = "leaving" // is about to release its shards
)

// Presence is what a node says of itself in node.<node>, with every beat. The
// key expires a minute after the last one.
type Presence struct {
	Version int `json:"v"`
	// Release is the program's version.
	Release string `json:"release,omitempty"`
	// Roles that run on the node.
	Roles []string `json:"roles,omitempty"`
	// Started is the start of the process, by its host's clock.
	Started time.Time `json:"started,omitzero"`
	// Scheduler is SchedulerActive, SchedulerLeaving, or empty for a node that
	// schedules nothing, or is of a version that did not say.
	Scheduler string `json:"scheduler,omitempty"`
	// InFlight is how many callbacks the node works on.
	InFlight int `json:"in_flight,omitempty"`
	// Reads is the newest FormatLevel that the node reads; 0 for builds before
	// LevelRecord2. A level covers records, index entries, settings of services and
	// headers of events.
	Reads FormatLevel `json:"reads,omitempty"`
	// Sync is what the node knows of its server's setting: SyncAlways,
	// SyncInterval, or empty where it cannot know.
	Sync string `json:"sync,omitempty"`
	// Profile is the durability profile that the node runs with ("safe" or "fast");
	// empty from versions that did not announce it.
	Profile string `json:"profile,omitempty"`
	// Zones is the release of the time zone data that the node uses; empty from versions
	// that did not announce it. doctor compares them.
	Zones string `json:"zones,omitempty"`
	// Settings has the settings that all nodes of a store should share, by name. doctor
	// compares them.
	Settings map[string]string `json:"settings,omitempty"`
}

// Values of Presence.Sync.
const (
	SyncAlways   = "always"   // each write is synced before it is acknowledged
	SyncInterval = "interval" // writes are synced every now and then
)

// Member is a node's presence as it was read.
type Member struct {
	Node string
	// Rev grows with every beat; StoredMs is the leader's timestamp of the last.
	Rev      uint64
	StoredMs int64
	Presence Presence
}

// ClockAt is a shard's clock as it was read.
type ClockAt struct {
	Shard    int
	Rev      uint64 // 0 if the clock is gone
	StoredMs int64
	// Clock is the clock. If Err is ErrDamaged, it is the state to resume the shard from.
	Clock Clock
	// Err is nil, schemas.ErrDamaged (the value is not a clock, or gone) or
	// schemas.ErrNewer (it is of a newer version, whose nodes own the shard).
	Err error
}

// Cluster is one look at all clocks and nodes. A replica may have answered that
// is behind: it is for deciding whether to try, the compare-and-set decides.
type Cluster struct {
	Clocks []ClockAt // by shard
	Nodes  []Member  // by name
	// Alien lists foreign keys in bucket clock, as subjects. A store opened by Open reads
	// only the clocks of its own shards.
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
	MsgID   string
	// Service names the service that is called back for this message. Its feed is woken
	// before the message is published; see Events. Empty if nobody is called back.
	Service string
}

// Load is what LoadTicks found: the records that the index names, whatever
// their state.
type Load struct {
	Timers []Timer
	// Newer lists the records of newer formats that may have to fire.
	Newer []NewerRecord
	// Complete is false if there was more than the limit: the caller asks again
	// with fewer ticks, or pages with After.
	Complete bool
	// Next is the cursor for the following page of a single tick, 0 at its end.
	Next uint64
}
