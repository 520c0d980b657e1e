package schemas

import (
	"cmp"
	"math"
)

// Record is the stored state of a timer, the value of its key in the shard's KV bucket. It
// is authoritative: streams, indexes and caches follow it. Every change is a
// compare-and-set on the key's revision. Times are Unix milliseconds of the cluster's
// clock; 0 means that the event has not happened yet.
//
// A one-shot timer has one run, and both are in one record: a change of either is one
// message.
type Record struct {
	Definition
	RunState
	// Moves counts reschedules, pauses and resumes; it is 0 in the record that created the
	// timer.
	Moves uint32
	// History holds the last control operations, oldest first, at most MaxHistory.
	// Record.Note adds to it. Format 1 does not store it.
	History []Operation
	// PauseNote says why a one-shot timer is paused, at most MaxPauseNote bytes. A schedule
	// has its note in Progress. Format 1 does not store it.
	PauseNote string
	// LatestDueMs is the latest due time with which the record has waited, if that is after DueMs: the
	// timer was moved to an earlier time since. Otherwise it is 0, or before DueMs. Format 1 does not store it.
	LatestDueMs int64
	// Schedule makes the timer recur; nil for a one-shot timer.
	Schedule *Schedule
	// Origin names the schedule whose run the record describes; nil for all other records.
	Origin *Origin
	// Ext holds the extensions that this version does not interpret. They are
	// written back unchanged. Format 1 does not store them.
	Ext []Extension
}

// NewRecord returns the first record of a timer, in state pending. addedMs is the time of
// the add, body the event as the user sent it. The first run of a schedule is set by package
// internal/recurrence.
func NewRecord(spec *Spec, body Body, addedMs int64) Record {
	r := Record{
		Definition: spec.definition(addedMs, spec.Hash),
		RunState:   RunState{State: StatePending, Queued: true, Run: 1, MaxAttempt: spec.MaxAttempts, DueMs: spec.DueMs, ScheduledMs: spec.DueMs},
	}
	r.Body = body
	if spec.Callback != "" {
		r.Retry = spec.Shared()
	}
	if spec.Recurrence != nil {
		r.Schedule = &Schedule{Recurrence: *spec.Recurrence, Progress: Progress{AnchorMs: cmp.Or(spec.Recurrence.StartMs, addedMs)}}
	}
	return r
}

// definition returns the definition of an event, without Retry and Body.
func (s *Spec) definition(addedMs int64, hash [16]byte) Definition {
	return Definition{
		AddedMs: addedMs, Hash: hash, Service: s.Service, Group: s.Group, Callback: s.Callback,
		Source: s.Source, EventID: s.EventID, Type: s.Type, Key: s.Key,
	}
}

// Definition is what the user asked for. Neither firing nor calling changes it; only the
// end of the timer removes its Body.
type Definition struct {
	// AddedMs is the time at which the add's stream stored the event.
	AddedMs int64
	// Hash is the hash of the event: equal for a repeated add, different for a conflicting
	// one.
	Hash     [16]byte
	Service  string
	Group    string
	Callback string
	Source   string
	EventID  string
	Type     string
	// Key is the ordering key; "" for none. Format 1 does not store it.
	Key string
	// Retry is the retry policy of a timer with a callback, nil if the record does not have
	// it: see RetryPolicy. Records share policies; never change one.
	Retry *RetryPolicy
	// Body is the event; empty in a final state.
	Body Body
}

// TimerID returns the id of the timer, or of the schedule whose run has this definition.
func (d *Definition) TimerID() TimerID {
	return NewTenantTimerID(TenantOf(d.Service), d.Source, d.EventID)
}

// RunState is one occurrence of a timer and what became of it.
type RunState struct {
	State State
	// Queued is true while the record waits in the wheel, with an index entry for DueMs:
	// in state pending, in state retrying if the delay is long, and in state paused if a run
	// of the paused schedule was asked for.
	Queued bool
	// Run is the number of the occurrence, from 1.
	Run uint32
	// Attempt counts finished callback attempts of this run.
	Attempt uint32
	// MaxAttempt is the attempt after which the run is dead-lettered; a replay
	// raises it.
	MaxAttempt uint32
	// Replayed is the value of Attempt at the last replay; 0 if the run was not replayed. Format 1 does
	// not store it.
	Replayed uint32
	// Unattempted counts the requests since the last replay that no worker took, so that no attempt was made.
	// UnattemptedInRow counts those since the last attempt. Format 1 does not store them.
	Unattempted, UnattemptedInRow uint32
	// DueMs is the time at which the wheel acts on the record next.
	DueMs int64
	// ScheduledMs is the due time that the user asked for, the attribute timerscheduled.
	ScheduledMs int64
	// FiredMs is the time of the last claim, DoneMs that of the final state.
	FiredMs int64
	DoneMs  int64
	// FirstFiredMs is the time of the claim that first published the run, if FiredMs is that
	// of a later claim, such as of a retry that waited in the wheel; otherwise 0. Format 1 does
	// not store it.
	FirstFiredMs int64
	// NextMs is the time of the next callback attempt in state retrying.
	NextMs int64
	// Epoch is the clock epoch of the owner that claimed the run.
	Epoch uint64
	// Outcome is the result of the last attempt.
	Outcome Outcome
	// Attempts holds the last attempts of the run, oldest first, at most MaxKeptAttempts.
	// AddAttempt adds to it. Format 1 does not store it.
	Attempts []Attempt
	// Deferral is the wait for a slot of the flow key, and what remains of it after the call;
	// nil for a run that never waited, and in a final state. Format 1 does not store it.
	Deferral *Deferral
}

// Outcome is the result of a callback attempt.
type Outcome struct {
	// Code is the HTTP status, or 0 without one.
	Code int32
	// Error is the reason of a failure, at most MaxOutcomeError bytes.
	Error string
	// Response is the start of the answer's body, at most MaxOutcomeResponse bytes.
	Response []byte
}

// Limits of an Outcome, in bytes.
const (
	MaxOutcomeError    = 512
	MaxOutcomeResponse = 1024
)

// Pending reports whether the run waits in the wheel.
func (r *RunState) Pending() bool {
	return r.State == StatePending || (r.State == StateRetrying || r.State == StatePaused) && r.Queued
}

// Reclaim stores the time of the last claim as that of the first firing, unless the record has
// one. Call it before a claim changes FiredMs. Of a run that was never published, a replay sets
// FiredMs; it is not a time of firing.
func (r *RunState) Reclaim() {
	published := r.State != StateRetrying || r.Attempt > 0
	if r.FirstFiredMs == 0 && published {
		r.FirstFiredMs = r.FiredMs
	}
}

// FirstMs returns the time at which the run fired first, 0 if it has not fired. Retries do not
// change it.
func (r *RunState) FirstMs() int64 { return cmp.Or(r.FirstFiredMs, r.FiredMs) }

// LateFromMs returns the time from which the lateness of the record's run counts, in Unix
// milliseconds: the due time or, if that was in the past, the time of the add, reschedule
// or resume.
func (r *Record) LateFromMs() int64 {
	from := max(r.DueMs, r.AddedMs)
	for i := range r.History {
		if op := &r.History[i]; op.Kind == OperationReschedule || op.Kind == OperationResume {
			from = max(from, op.AtMs)
		}
	}
	return from
}

// MovedFrom notes the due time that an operation has replaced; see LatestDueMs. Call it after DueMs is set.
func (r *Record) MovedFrom(dueMs int64) {
	if r.LatestDueMs = max(r.LatestDueMs, dueMs); r.LatestDueMs <= r.DueMs {
		r.LatestDueMs = 0
	}
}

// LastWaitMs returns the latest due time with which the record, or an earlier revision of it, has waited, in Unix
// milliseconds. A build without LatestDueMs may have moved the timer; LastWaitMs then is at least DueMs.
func (r *Record) LastWaitMs() int64 { return max(r.DueMs, r.LatestDueMs) }

// Fired returns the attributes that Belfry adds to the event of the record's run. attempt
// is the number of finished or, for an event that is about to be called back, begun
// attempts. noCallback is Fired.NoCallback.
func (r *Record) Fired(attempt uint32, noCallback bool) Fired {
	f := Fired{ScheduledMs: r.ScheduledMs, FiredMs: r.FiredMs, Run: max(r.Run, 1), Attempt: attempt, NoCallback: noCallback}
	if o := r.Origin; o != nil {
		f.Missed, f.Trigger = min(o.Missed, math.MaxInt32), o.Trigger // an integer of CloudEvents
	}
	return f
}
