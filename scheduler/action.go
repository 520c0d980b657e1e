package scheduler

import (
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Event is an input of Core.Step, one of the Ev types. Most events are the results of
// actions.
type Event interface{ event() }

// EvTick lets the core act on the time that has passed.
type EvTick struct{}

// EvTail delivers a new record of the shard's stream. Records come in stream order.
type EvTail struct{ Timer store.Timer }

// EvLoaded is the result of ActLoad.
type EvLoaded struct {
	Load store.Load
	Err  error
}

// EvScanned is one record that ActScan, or an audit after a loss of messages, has found.
type EvScanned struct{ Timer store.Timer }

// EvScanDone is the end of ActScan.
type EvScanDone struct{ Err error }

// EvClaimed is the result of ActClaim.
type EvClaimed struct {
	ID  schemas.TimerID
	Rev uint64
	Err error
}

// EvPublished is the result of ActPublish. Duplicate is true if the stream had the message
// already.
type EvPublished struct {
	ID        schemas.TimerID
	Duplicate bool
	Err       error
}

// EvFinished is the result of ActFinish.
type EvFinished struct {
	Finish ActFinish
	Err    error
}

// EvReread is the result of ActReread. Err is schemas.ErrNotFound if the record is gone.
type EvReread struct {
	ID    schemas.TimerID
	Timer store.Timer
	Err   error
}

// EvDedupChecked is the result of ActDedupCheck. Found has the message ids that the streams
// contain.
type EvDedupChecked struct {
	Found map[string]struct{}
	Err   error
}

// EvSwept is a record that the sweeper found behind the low watermark. It is a missed timer
// or a claim whose record was never finished (Redispatch false), or its event has left
// TIMERS_FIRED or is acknowledged, and its callback has no result (Redispatch true).
type EvSwept struct {
	Timer      store.Timer
	Redispatch bool
}

// EvDeadLettered is the result of ActDeadLetter. Err is never permanent, because a dead
// letter always fits.
type EvDeadLettered struct {
	ID  schemas.TimerID
	Err error
}

// EvFailed is the result of ActFail.
type EvFailed struct {
	ID  schemas.TimerID
	Rev uint64 // of the final record
	Err error
}

// EvCounted is the result of ActCount; see store.Count for the fields.
type EvCounted struct {
	Round   int // of the ActCount
	Waiting []uint64
	Late    map[uint64]store.LateRecord
	Unread  int64
	Last    uint64
	Behind  bool
	Err     error
}

// EvRecount reports that the shard has lost messages. The core then counts its pending
// timers again.
type EvRecount struct{}

// EvIndexed is the result of ActIndex, with its fields.
type EvIndexed struct {
	ID     schemas.TimerID
	Record schemas.TimerID
	Tick   int64
	Ahead  bool
	Err    error
}

// EvLooked is the result of ActLook. Open reports whether the run's callback has no result.
// State and DoneMs are those of the run's record; State is 0 if there is no readable record.
type EvLooked struct {
	ID     schemas.TimerID
	Open   bool
	State  schemas.State
	DoneMs int64
	Err    error
}

// EvRunCreated is the result of ActCreateRun. Err is store.ErrRevision if the record exists,
// or has another revision.
type EvRunCreated struct {
	ID  schemas.TimerID
	Rev uint64
	Err error
}

// EvGone reports that a record of a newer format no longer exists, in any revision up to
// Rev.
type EvGone struct {
	ID  schemas.TimerID
	Rev uint64
}

// EvVoid reports that a record was deleted, because its timer had ended long before: a killed server had brought it back. Rev
// is the last revision of the record.
type EvVoid struct {
	ID  schemas.TimerID
	Rev uint64
}

// EvNewer reports a record of a newer format that a read of the whole shard has found, so
// that a node that reads it takes the shard. It need not be due.
type EvNewer struct {
	ID  schemas.TimerID
	Rev uint64
}

func (EvGone) event()         {}
func (EvVoid) event()         {}
func (EvNewer) event()        {}
func (EvTick) event()         {}
func (EvTail) event()         {}
func (EvLoaded) event()       {}
func (EvScanned) event()      {}
func (EvScanDone) event()     {}
func (EvClaimed) event()      {}
func (EvPublished) event()    {}
func (EvFinished) event()     {}
func (EvReread) event()       {}
func (EvDedupChecked) event() {}
func (EvSwept) event()        {}
func (EvIndexed) event()      {}
func (EvCounted) event()      {}
func (EvRecount) event()      {}
func (EvLooked) event()       {}
func (EvRunCreated) event()   {}

func (EvDeadLettered) event() {}
func (EvFailed) event()       {}

// Action is an output of Core.Step, one of the Act types. A Term carries it out, after
// Delay if the action has one, and returns the result as an event.
type Action interface{ action() }

// ActLoad requests the records of some ticks through the index. One ActLoad is in flight at
// a time.
type ActLoad struct {
	Ticks []int64
	Limit int    // limit of store.LoadTicks
	After uint64 // where the page begins: the Next of the previous page, 0 for the first
	Seen  uint64 // refuse a replica that has not applied this stream sequence
	Delay time.Duration
}

// ActScan requests every queued record that is due by ThroughMs. It reads the whole shard
// instead of the index.
type ActScan struct {
	ThroughMs int64
	Delay     time.Duration
}

// ActClaim requests a compare-and-set of a due record to state delivered or, for a schedule,
// to the record after recurrence.Turn.
type ActClaim struct {
	ID     schemas.TimerID
	Rev    uint64
	Record *schemas.Record
}

// ActPublish requests a publish of a claimed event to timers.fired or timers.retry.
type ActPublish struct {
	ID  schemas.TimerID
	Msg store.Msg
	// LateMs is the time from schemas.Record.LateFromMs to the claim.
	LateMs  int64
	Service string
}

// ActFinish requests the final record of a timer without a callback (success) or of a
// schedule whose last run was published (completed). The low watermark does not wait for it: if it
// never succeeds, the sweeper finishes the record.
type ActFinish struct {
	ID     schemas.TimerID
	Rev    uint64
	Record *schemas.Record
	// Fails is the number of attempts that failed or met another revision.
	Fails int
}

// ActDeadLetter requests a dead letter for an event that JetStream will never store. The
// store encloses or splits the letter so that it fits. Every owner computes the same message
// id. Ends is true if no ActFail follows.
type ActDeadLetter struct {
	ID   schemas.TimerID
	Msg  store.Msg
	Ends bool
}

// ActFail requests the final record (fail) of a timer whose dead letter is stored.
type ActFail struct {
	ID     schemas.TimerID
	Rev    uint64
	Record *schemas.Record
}

// ActReread requests one record from the stream's leader.
type ActReread struct {
	ID    schemas.TimerID
	Delay time.Duration
}

// ActDedupCheck requests a search of the streams for message ids that may have been
// published since SinceMs.
type ActDedupCheck struct {
	Subjects []string
	SinceMs  int64
	IDs      map[string]struct{}
	Delay    time.Duration
}

// ActCount requests the records in state pending whose revision is at most Through.
type ActCount struct {
	Round   int
	Through uint64
	Delay   time.Duration
}

// ActMissing reports that a count found fewer timers than the previous owner had counted,
// although none of the records can have expired. It has no result.
type ActMissing struct {
	Missing int64
}

// ActIndex requests an index entry for a record: in a tick that the sweeper has not reached,
// so that it audits the record again, or ahead of a claim in the tick of a schedule's next
// due time. ID is that of the core's entry.
type ActIndex struct {
	ID     schemas.TimerID
	Record schemas.TimerID
	Tick   int64
	Ahead  bool
	Delay  time.Duration
}

// ActLook requests the state of a run from the leader. ID is that of the schedule, Run that
// of the run's record.
type ActLook struct {
	ID  schemas.TimerID
	Run schemas.TimerID
	// Result asks for the result of the run. A record of a newer format is then an error,
	// because its result is not known.
	Result bool
	// Seen is a sequence of the shard that is stored. That the run has no record counts only if a server says so
	// that has this sequence; another may lack a record that was just written. 0 for any server.
	Seen  uint64
	Delay time.Duration
}

// ActOverdue requests the publish of an overdue event for Count nominal times. ID is
// schemas.OverdueTimer of the schedule. Its result is EvPublished.
type ActOverdue struct {
	ID    schemas.TimerID
	Msg   store.Msg
	Count uint32
}

// ActCreateRun requests the record of a schedule's run, with its index entry. A Rev other
// than 0 replaces that revision.
type ActCreateRun struct {
	ID     schemas.TimerID
	Rev    uint64
	Record *schemas.Record
}

// ActEndRun requests that a run gets no further attempt, because run By replaces it. It has
// no result: if it fails, run By waits until the run has concluded.
type ActEndRun struct {
	ID   schemas.TimerID
	By   uint32
	Seen uint64 // see ActLook.Seen
}

// ActSkipped reports the nominal times that a claim has skipped. It has no result.
type ActSkipped struct {
	ID      schemas.TimerID
	Skipped []schemas.Decision
}

// ActUnplanned reports a schedule whose recurrence does not compile. It has no result.
type ActUnplanned struct {
	ID schemas.TimerID
	// Calendar is the calendar for which the schedule waits, because it does not exist; "" for
	// another reason.
	Calendar string
	Err      error
}

func (ActLoad) action()       {}
func (ActScan) action()       {}
func (ActClaim) action()      {}
func (ActPublish) action()    {}
func (ActFinish) action()     {}
func (ActReread) action()     {}
func (ActDedupCheck) action() {}
func (ActCount) action()      {}
func (ActMissing) action()    {}
func (ActIndex) action()      {}
func (ActLook) action()       {}
func (ActOverdue) action()    {}
func (ActCreateRun) action()  {}
func (ActEndRun) action()     {}
func (ActSkipped) action()    {}
func (ActUnplanned) action()  {}

func (ActDeadLetter) action() {}
func (ActFail) action()       {}
