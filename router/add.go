package router

import (
	"sync/atomic"

	"github.com/belfryio/belfry/internal/quota"
	"github.com/belfryio/belfry/internal/tracing"
	"github.com/belfryio/belfry/schemas"
)

// Add is one add on its way through the router. It must not be copied.
type Add struct {
	// Header and Data are the CloudEvent, in structured or binary mode.
	Header map[string][]string
	Data   []byte
	// AddedMs is the time from which timerafter counts, in Unix milliseconds.
	AddedMs int64
	// Seq is the sequence in TIMERS_ADD. Such an add may have been delivered before, and
	// is published to timers.rejected if it is rejected. It is 0 for an add whose caller
	// waits for the outcome.
	Seq uint64
	// Tenant is the tenant that adds the timer, "" for the default tenant. Account is its account
	// if the add came from the stream.
	Tenant, Account string
	// Returned is true for an add of the stream that was delivered before.
	Returned bool
	// Old is true for an add of the stream whose timer may have had a record that has expired, see store.Add. Such an add
	// writes no record, and is rejected if there is none.
	Old bool
	// Receiver receives the outcome.
	Receiver Receiver

	// Spec and Record are set by validation.
	Spec   schemas.Spec
	Record schemas.Record

	suspect bool // see Writer.dedup
	// rev is the revision of the record that the add has stored. reserved is the amount that the add has
	// reserved in the quota.Ledger.
	rev      uint64
	reserved quota.Amount
	refusal  error // the reason why the store will never store the add's record; nil for none
	waited   bool  // the lingerer has kept it
	settled  atomic.Bool
	span     *tracing.Span // nil without traces
}

// Receiver receives the outcome of an add. For an add of the stream it acknowledges the message, for
// an add of a caller it answers the caller.
type Receiver interface {
	// Settle is called once for each add, from any goroutine. It must not block.
	Settle(Outcome)
}

// Result is the kind of an add's outcome.
type Result uint8

// The results.
const (
	// Stored: the timer is new.
	Stored Result = iota
	// Duplicate: an earlier add has stored the same timer.
	Duplicate
	// Rejected: the add is invalid, conflicts with another timer, or exceeds a limit. With
	// Add.Seq it is on timers.rejected. Outcome.Err is the reason.
	Rejected
	// Delayed: the add could not be stored now. It may have been; repeating it is safe.
	// Outcome.Err is the reason.
	Delayed
)

// String returns the value of the metrics' label result.
func (r Result) String() string {
	return [...]string{"accepted", "duplicate", "rejected", "delayed"}[r]
}

// Outcome is the outcome of an add.
type Outcome struct {
	Result Result
	Err    error // of Rejected and Delayed, with a schemas.Code
	// The record of a Stored or Duplicate timer.
	Timer          schemas.TimerID
	State          schemas.State
	DueMs, AddedMs int64
}

// Reply converts the outcome to the answer of the API.
func (o Outcome) Reply() (schemas.AddReply, error) {
	if o.Err != nil {
		return schemas.AddReply{}, o.Err
	}
	reply := schemas.AddReply{Timer: o.Timer, Due: schemas.TimeOf(o.DueMs), Duplicate: o.Result == Duplicate, State: o.State}
	if !reply.Duplicate {
		reply.Remark = schemas.PastDueRemark(o.DueMs, o.AddedMs)
	}
	return reply, nil
}

// take reports whether this is the first call. Only the first caller may settle the add.
func (a *Add) take() bool { return a.settled.CompareAndSwap(false, true) }
