package scheduler

import (
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Event is something that happened to a shard; see the Ev types.
type Event interface{ event() }

// EvTick says only that time has passed.
type EvTick struct{}

// EvTail is a record that the tail brought, in stream order.
type EvTail struct{ Timer store.Timer }

// EvLoaded answers ActLoad.
type EvLoaded struct {
	Load store.Load
	Err  error
}

// EvScanned is one record found by ActScan.
type EvScanned struct{ Timer store.Timer }

// EvScanDone ends the answer to ActScan.
type EvScanDone struct{ Err error }

// EvClaimed answers ActClaim.
type EvClaimed struct {
	ID  schemas.TimerID
	Rev uint64
	Err error
}

// EvPublished answers ActPublish.
type EvPublished struct {
	ID        schemas.TimerID
	Duplicate bool
	Err       error
}

// EvFinished answers ActFinish.
type EvFinished struct {
	Finish ActFinish
	Err    error
}

// EvReread answers ActReread. Err is schemas.ErrNotFound if the record is gone.
type EvReread struct {
	ID    schemas.TimerID
	Timer store.Timer
	Err   error
}

// EvConfirmed answers ActConfirm: the Msg-Ids that were found published.
type EvConfirmed struct {
	Found map[string]struct{}
	Err   error
}

// EvSwept is what the sweeper found behind the mark: a record that should have
// been fired (Refire false), or whose fired event is gone (Refire true).
type EvSwept struct {
	Timer  store.Timer
	Refire bool
}

// EvDeadLettered answers ActDeadLetter. Err is never permanent, because a dead letter
// always fits.
type EvDeadLettered struct {
	ID  schemas.TimerID
	Err error
}

// EvFailed answers ActFail.
type EvFailed struct {
	ID  schemas.TimerID
	Err error
}

// EvCounted answers ActCount; see store.Count for the fields.
type EvCounted struct {
	Round   int // of the ActCount
	Waiting []uint64
	Unread  int64
	Last    uint64
	Err     error
}

// EvRecount says that the shard has lost messages, so that the number of waiting timers
// is unknown until they are counted again.
type EvRecount struct{}

// EvIndexed answers ActIndex.
type EvIndexed struct {
	ID  schemas.TimerID
	Err error
}

// EvGone says that a record of a newer format, up to revision Rev, is gone.
type EvGone struct {
	ID  schemas.TimerID
	Rev uint64
}

func (EvGone) event()      {}
func (EvTick) event()      {}
func (EvTail) event()      {}
func (EvLoaded) event()    {}
func (EvScanned) event()   {}
func (EvScanDone) event()  {}
func (EvClaimed) event()   {}
func (EvPublished) event() {}
func (EvFinished) event()  {}
func (EvReread) event()    {}
func (EvConfirmed) event() {}
func (EvSwept) event()     {}
func (EvIndexed) event()   {}
func (EvCounted) event()   {}
func (EvRecount) event()   {}

func (EvDeadLettered) event() {}
func (EvFailed) event()       {}

// Action is something that the shell has to do; see the Act types.
type Action interface{ action() }

// ActLoad asks for the records of some ticks; one is outstanding at a time.
type ActLoad struct {
	Ticks []int64
	Limit int
	After uint64
	Seen  uint64 // refuse a replica that is behind this sequence
	Delay time.Duration
}

// ActScan asks for every queued record due by ThroughMs, without the index.
type ActScan struct {
	ThroughMs int64
	Delay     time.Duration
}

// ActClaim asks for a compare-and-set; its record says delivered.
type ActClaim struct {
	ID     schemas.TimerID
	Rev    uint64
	Record *schemas.Record
}

// ActPublish asks for a message on timers.fired or timers.retry.
type ActPublish struct {
	ID  schemas.TimerID
	Msg store.Msg
	// LateMs is how long after schemas.Record.LateFromMs the claim was made.
	LateMs  int64
	Service string
}

// ActFinish asks for the final record of a timer without a callback. Nothing
// waits for it: the sweeper finishes what is left. It is answered by EvFinished.
type ActFinish struct {
	ID     schemas.TimerID
	Rev    uint64
	Record *schemas.Record
	// Fails is how often it failed.
	Fails int
}

// ActDeadLetter requests a dead letter, in a form that fits: JetStream will never store
// the event itself. Every owner computes the same message id.
type ActDeadLetter struct {
	ID  schemas.TimerID
	Msg store.Msg
}

// ActFail requests the final record of a timer whose dead letter is stored.
type ActFail struct {
	ID     schemas.TimerID
	Rev    uint64
	Record *schemas.Record
}

// ActReread asks for a leader's read of one record.
type ActReread struct {
	ID    schemas.TimerID
	Delay time.Duration
}

// ActConfirm asks which Msg-Ids were published since a time.
type ActConfirm struct {
	Subjects []string
	SinceMs  int64
	IDs      map[string]struct{}
	Delay    time.Duration
}

// ActCount asks which records in state pending have a revision up to Through.
type ActCount struct {
	Round   int
	Through uint64
	Delay   time.Duration
}

// ActMissing reports that a count has found fewer timers than an earlier owner had
// counted, although none of their records can have expired.
type ActMissing struct {
	Missing int64
}

// ActIndex asks for an index entry in a tick that the sweeper has yet to come to.
type ActIndex struct {
	ID    schemas.TimerID
	Tick  int64
	Delay time.Duration
}

func (ActLoad) action()    {}
func (ActScan) action()    {}
func (ActClaim) action()   {}
func (ActPublish) action() {}
func (ActFinish) action()  {}
func (ActReread) action()  {}
func (ActConfirm) action() {}
func (ActCount) action()   {}
func (ActMissing) action() {}
func (ActIndex) action()   {}

func (ActDeadLetter) action() {}
func (ActFail) action()       {}
