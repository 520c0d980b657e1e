package schemas

import (
	"encoding/binary"
	"math"
	"time"
)

// Bounds of the attempts in a record. They take at most 3 kB, which PayloadReserve
// includes: raise none of them without room there, because an event that was accepted
// must fit in a message together with them.
const (
	// MaxKeptAttempts is the number of attempts that a record keeps; it drops older ones.
	MaxKeptAttempts = 10
	// MaxAttemptError and MaxAttemptResponse bound the error and the start of the answer
	// of all attempts except the newest, in bytes. Record.Outcome holds those of the
	// newest, within MaxOutcomeError and MaxOutcomeResponse.
	MaxAttemptError    = 128
	MaxAttemptResponse = 128
)

// Attempt is one callback attempt of a run. Record.AddAttempt adds it to a record.
type Attempt struct {
	// Number counts the attempts of the run from 1.
	Number uint32
	// AtMs is the time at which the call began, in Unix milliseconds of the cluster's
	// clock. TookMs is its duration in milliseconds.
	AtMs   int64
	TookMs uint32
	// Outcome is the result. It is empty in the newest attempt of a record, because
	// Record.Outcome has it.
	Outcome Outcome
}

// AddAttempt records an attempt that began at atMs (Unix milliseconds) and took so long.
// It increments Attempt, sets Outcome, and drops the oldest attempts beyond MaxKeptAttempts.
// It never changes a slice that another copy of the record shares.
func (r *RunState) AddAttempt(atMs int64, took time.Duration, out Outcome) {
	keep := r.attemptsWithOutcome()
	keep = keep[max(0, len(keep)-MaxKeptAttempts+1):]
	r.Attempt++
	tookMs := min(max(took.Milliseconds(), 0), math.MaxUint32)
	r.Attempts = append(append(make([]Attempt, 0, len(keep)+1), keep...), Attempt{Number: r.Attempt, AtMs: atMs, TookMs: uint32(tookMs)})
	r.Outcome = out
}

// SetOutcome sets Outcome to a failure that is not the result of an attempt.
func (r *RunState) SetOutcome(out Outcome) {
	r.Attempts = r.attemptsWithOutcome()
	r.Outcome = out
}

// attemptsWithOutcome returns a copy of the attempts in which the newest also has its
// outcome, cut to the bounds of older attempts.
func (r *RunState) attemptsWithOutcome() []Attempt {
	last := len(r.Attempts) - 1
	if last < 0 || !r.outcomeIsOf(&r.Attempts[last]) {
		return r.Attempts
	}
	all := append([]Attempt(nil), r.Attempts...)
	out := r.Outcome
	if len(out.Error) > MaxAttemptError {
		out.Error = clip(out.Error, MaxAttemptError-len("…"))
	}
	out.Response = append([]byte(nil), out.Response[:min(len(out.Response), MaxAttemptResponse)]...)
	all[last].Outcome = out
	return all
}

// outcomeIsOf reports whether Record.Outcome is the result of the attempt. A node of a
// build that does not know the attempts counts its own attempts in Attempt, replaces
// Outcome and leaves the attempts as they are: then it is not.
func (r *RunState) outcomeIsOf(a *Attempt) bool {
	return a.Number == r.Attempt && a.Outcome.empty()
}

func (o *Outcome) empty() bool { return o.Code == 0 && o.Error == "" && len(o.Response) == 0 }

// hasOutcome is the byte after an encoded attempt's duration if its outcome follows.
const hasOutcome = 1

// append appends the encoded attempt: number, time (zig-zag) and duration as varints, a
// byte, and after hasOutcome the outcome as in the record.
func (a *Attempt) append(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(a.Number))
	dst = binary.AppendVarint(dst, a.AtMs)
	dst = binary.AppendUvarint(dst, uint64(a.TookMs))
	if a.Outcome.empty() {
		return append(dst, 0)
	}
	return a.Outcome.append(append(dst, hasOutcome))
}

// readAttempts decodes an extension's value; false if it is malformed.
func readAttempts(value []byte) ([]Attempt, bool) {
	d := decoder{b: value}
	var all []Attempt
	for len(d.b) > 0 {
		a := Attempt{Number: d.uint32(), AtMs: d.varint(), TookMs: d.uint32()}
		switch kind := d.take(1); {
		case len(kind) == 0:
		case kind[0] == hasOutcome:
			a.Outcome = d.outcome()
		case kind[0] != 0:
			d.bad = true
		}
		if d.bad {
			return nil, false
		}
		all = append(all, a)
	}
	return all, len(all) > 0
}

// AttemptInfo is an Attempt in the API.
type AttemptInfo struct {
	// Attempt counts the attempts of the run from 1.
	Attempt uint32 `json:"attempt"`
	// At is the cluster's time at which the call began, to the millisecond.
	At time.Time `json:"at"`
	// TookMs is the duration of the call in milliseconds.
	TookMs uint32 `json:"took_ms"`
	// Status is as OutcomeInfo.Code.
	Status int32 `json:"status,omitempty"`
	// Error says why the attempt failed. It is empty for a success, and for an attempt
	// whose outcome was lost to a node of an older version.
	Error string `json:"error,omitempty"`
	// Response is the start of the answer, or the handler's result.
	Response string `json:"response,omitempty"`
}

// Text is as OutcomeInfo.Text.
func (a AttemptInfo) Text() string { return resultText(a.Status, a.Error) }

// attemptInfos describes the attempts of a record, oldest first.
func attemptInfos(r *Record) []AttemptInfo {
	if len(r.Attempts) == 0 {
		return nil
	}
	infos := make([]AttemptInfo, 0, len(r.Attempts))
	for i := range r.Attempts {
		a := &r.Attempts[i]
		out := &a.Outcome
		if r.outcomeIsOf(a) {
			out = &r.Outcome
		}
		infos = append(infos, AttemptInfo{
			Attempt: a.Number, At: TimeOf(a.AtMs), TookMs: a.TookMs,
			Status: out.Code, Error: out.Error, Response: cleanText(string(out.Response)),
		})
	}
	return infos
}
