package schemas

import (
	"encoding/hex"
	"strconv"
	"strings"
)

// Claim is the content of HeaderClaim. With it functions can write the result of a run by
// one compare-and-set, without reading the record first. See Record for the fields.
type Claim struct {
	// Timer is the id of the claimed record: for a run of a schedule, that of the run's own
	// record; see RunTimer.
	Timer TimerID
	// Revision is the KV revision at which the scheduler claimed the record: there the
	// record's state is delivered.
	Revision   uint64
	Run        uint32
	Attempt    uint32 // attempts finished before this message
	MaxAttempt uint32
	AddedMs    int64
	FiredMs    int64
	Epoch      uint64
	Hash       [16]byte
	// Schedule is the schedule of the run, and Waited is Origin.Waited. Both are zero for a
	// one-shot timer.
	Schedule TimerID
	Waited   bool
	// DeadlineMs is Origin.DeadlineMs.
	DeadlineMs int64
	// Deferred is Deferral.Count.
	Deferred uint32
}

// NewClaim returns the claim of a run whose record has this timer id and revision.
func NewClaim(id TimerID, revision uint64, r *Record) Claim {
	c := Claim{
		Timer: id, Revision: revision, Run: max(r.Run, 1), Attempt: r.Attempt, MaxAttempt: r.MaxAttempt,
		AddedMs: r.AddedMs, FiredMs: r.FiredMs, Epoch: r.Epoch, Hash: r.Hash, Deferred: r.Deferrals(),
	}
	if o := r.Origin; o != nil {
		c.Schedule, c.Waited, c.DeadlineMs = o.Schedule, o.Waited, o.DeadlineMs
	}
	return c
}

// RunID returns the identity of the claimed run.
func (c Claim) RunID() RunID {
	if !c.Schedule.IsZero() {
		return RunID{c.Schedule, c.Run}
	}
	return RunID{c.Timer, c.Run}
}

// Record rebuilds the claimed record from its event, without Body and Retry: neither is in
// the claim. A record with more than the claim has is marked by HeaderExtended.
func (c Claim) Record(spec *Spec, fired Fired) Record {
	r := Record{
		Definition: spec.definition(c.AddedMs, c.Hash),
		RunState: RunState{
			State: StateDelivered, Run: c.Run, Attempt: c.Attempt, MaxAttempt: c.MaxAttempt,
			DueMs: fired.ScheduledMs, ScheduledMs: fired.ScheduledMs, FiredMs: c.FiredMs, Epoch: c.Epoch,
		},
	}
	if !c.Schedule.IsZero() {
		r.Origin = &Origin{Schedule: c.Schedule, Missed: fired.Missed, Trigger: fired.Trigger, Waited: c.Waited, DeadlineMs: c.DeadlineMs}
	}
	return r
}

// String returns the header's value: the fields separated by spaces, in the order of the
// struct. Schedule, Waited and DeadlineMs are present only for a run of a schedule: Waited only
// if it is true, as claimWaited, and DeadlineMs only if it is not 0, after claimDeadline.
// Deferred is present only if it is not 0, after claimDeferred.
func (c Claim) String() string {
	b := make([]byte, 0, 160)
	b = c.Timer.AppendTo(b)
	for _, n := range [...]uint64{c.Revision, uint64(c.Run), uint64(c.Attempt), uint64(c.MaxAttempt), uint64(c.AddedMs), uint64(c.FiredMs), c.Epoch} {
		b = append(b, ' ')
		b = strconv.AppendUint(b, n, 10)
	}
	b = append(b, ' ')
	b = hex.AppendEncode(b, c.Hash[:])
	if !c.Schedule.IsZero() {
		b = c.Schedule.AppendTo(append(b, ' '))
		if c.Waited {
			b = append(append(b, ' '), claimWaited...)
		}
		if c.DeadlineMs != 0 {
			b = strconv.AppendInt(append(append(b, ' '), claimDeadline...), c.DeadlineMs, 10)
		}
	}
	if c.Deferred != 0 {
		b = strconv.AppendUint(append(append(b, ' '), claimDeferred...), uint64(c.Deferred), 10)
	}
	return string(b)
}

// claimWaited is a field of a claim with Waited; claimDeadline and claimDeferred begin those of
// claims with DeadlineMs and Deferred.
const (
	claimWaited   = "waited"
	claimDeadline = "deadline="
	claimDeferred = "deferred="
)

// ParseClaim parses a value of HeaderClaim. Its errors have CodeBadRequest.
func ParseClaim(s string) (Claim, error) {
	var c Claim
	bad := func() error { return Errorf(CodeBadRequest, "header %s %.200q is malformed", HeaderClaim, s) }
	f := strings.Fields(s)
	if len(f) < 9 || len(f) > 13 {
		return Claim{}, bad()
	}
	var err error
	if c.Timer, err = ParseTimerID(f[0]); err != nil {
		return Claim{}, bad()
	}
	var n [7]uint64
	for i := range n {
		bits := 64
		switch i {
		case 1, 2, 3:
			bits = 32
		case 4, 5:
			bits = 63
		}
		if n[i], err = strconv.ParseUint(f[i+1], 10, bits); err != nil {
			return Claim{}, bad()
		}
	}
	c.Revision, c.Run, c.Attempt, c.MaxAttempt = n[0], uint32(n[1]), uint32(n[2]), uint32(n[3])
	c.AddedMs, c.FiredMs, c.Epoch = int64(n[4]), int64(n[5]), n[6]
	h, err := hex.DecodeString(f[8])
	if err != nil || len(h) != len(c.Hash) {
		return Claim{}, bad()
	}
	copy(c.Hash[:], h)
	if n, ok := strings.CutPrefix(f[len(f)-1], claimDeferred); ok {
		deferred, err := strconv.ParseUint(n, 10, 32)
		if err != nil || deferred == 0 || len(f) < 10 {
			return Claim{}, bad()
		}
		c.Deferred, f = uint32(deferred), f[:len(f)-1]
	}
	if len(f) > 9 {
		if c.Schedule, err = ParseTimerID(f[9]); err != nil || c.Schedule.IsZero() {
			return Claim{}, bad()
		}
	}
	if len(f) <= 10 {
		return c, nil
	}
	more := f[10:]
	if c.Waited = more[0] == claimWaited; c.Waited {
		more = more[1:]
	}
	if len(more) > 0 {
		at, ok := strings.CutPrefix(more[0], claimDeadline)
		if c.DeadlineMs, err = strconv.ParseInt(at, 10, 64); !ok || err != nil || c.DeadlineMs <= 0 || len(more) > 1 {
			return Claim{}, bad()
		}
	}
	return c, nil
}
