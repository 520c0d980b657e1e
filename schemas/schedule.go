package schemas

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
)

// Schedule is the part of a record that makes its timer recur: what the user asked for, and
// how far the schedule has come. Records may share a Schedule; never change one, but a copy
// from Clone.
//
// The record of a schedule has the progress of the schedule itself: Record.Run is the
// number of the next run, Record.ScheduledMs its nominal time, Record.DueMs the time at
// which the scheduler acts on the schedule next. A run with a callback has a record of its
// own; see Origin.
type Schedule struct {
	Recurrence
	Progress
}

// Recurrence is what the user asked for: the attributes of a schedule. Exactly one of Cron
// and Every is set. Times are Unix milliseconds; 0 and "" mean that the attribute is absent.
type Recurrence struct {
	Cron, Every string   // timercron, timerevery
	Zone        string   // timertz, "" for UTC
	StartMs     int64    // timerstart, inclusive
	EndMs       int64    // timerend, inclusive
	Limit       uint32   // timerlimit: the number of runs that fire; 0 for no limit
	JitterMs    int64    // timerjitter
	DST, Days   string   // timerdst, timerdays
	Exclude     []string // timerexclude: names of calendars
	ExcludeMode string   // timerexcludeshift
	Misfire     Misfire  // timermisfire
	GraceMs     int64    // timergrace: a run that is later is skipped; 0 for no limit
	Overlap     Overlap  // timeroverlap
	ExpectMs    int64    // timerexpect: a run without success this long after its nominal time is overdue
}

// Misfire says what happens to the nominal times that a schedule has missed: two or more
// are due and none of them has fired. The numbers are part of the stored record.
type Misfire uint8

// The values of timermisfire.
const (
	MisfireOne  Misfire = 0 // the latest fires at once, for all
	MisfireAll  Misfire = 1 // each fires, oldest first, up to MaxCatchUp; the rest as with MisfireOne
	MisfireSkip Misfire = 2 // none fires
)

var misfireNames = [...]string{MisfireOne: "one", MisfireAll: "all", MisfireSkip: "skip"}

// String returns the value of timermisfire.
func (m Misfire) String() string { return nameOf(misfireNames[:], uint8(m), "misfire") }

// ParseMisfire parses a value of timermisfire, or the catchup of a resume. Its errors have
// CodeInvalidAttribute.
func ParseMisfire(word string) (Misfire, error) {
	if i := slices.Index(misfireNames[:], word); i >= 0 {
		return Misfire(i), nil
	}
	return 0, Errorf(CodeInvalidAttribute, "unknown policy %.40q; use one, all or skip", word)
}

// MaxCatchUp bounds the runs that MisfireAll fires one by one.
const MaxCatchUp = 1000

// Overlap says what happens to a run that is due while the callback of the previous run has
// no result. The numbers are part of the stored record.
type Overlap uint8

// The values of timeroverlap.
const (
	OverlapSkip    Overlap = 0 // the run is skipped
	OverlapQueue   Overlap = 1 // the run waits; a later one takes its place
	OverlapAllow   Overlap = 2 // the run fires
	OverlapReplace Overlap = 3 // as OverlapQueue, and the previous run gets no further attempt
)

var overlapNames = [...]string{OverlapSkip: "skip", OverlapQueue: "queue", OverlapAllow: "allow", OverlapReplace: "replace"}

// String returns the value of timeroverlap.
func (o Overlap) String() string { return nameOf(overlapNames[:], uint8(o), "overlap") }

// ParseOverlap parses a value of timeroverlap. Its errors have CodeInvalidAttribute.
func ParseOverlap(word string) (Overlap, error) {
	if i := slices.Index(overlapNames[:], word); i >= 0 {
		return Overlap(i), nil
	}
	return 0, Errorf(CodeInvalidAttribute, "unknown policy %.40q; use skip, queue, allow or replace", word)
}

// Trigger says why a run fires. The numbers are part of the stored record.
type Trigger uint8

// The triggers.
const (
	TriggerSchedule Trigger = 0 // the nominal time was due
	TriggerManual   Trigger = 1 // somebody asked for a run now
	TriggerBackfill Trigger = 2 // somebody asked for the runs of a past period
)

var triggerNames = [...]string{TriggerSchedule: "schedule", TriggerManual: "manual", TriggerBackfill: "backfill"}

// String returns the name of the trigger in the API, and in the attribute timertrigger.
func (t Trigger) String() string {
	if int(t) < len(triggerNames) {
		return triggerNames[t]
	}
	return fmt.Sprintf("trigger(%d)", uint8(t))
}

// ParseTrigger parses the name of a trigger. Its errors have CodeInvalidAttribute.
func ParseTrigger(s string) (Trigger, error) {
	if i := slices.Index(triggerNames[:], s); i >= 0 {
		return Trigger(i), nil
	}
	return 0, Errorf(CodeInvalidAttribute, "unknown trigger %.40q; use schedule, manual or backfill", s)
}

// Progress is how far a schedule has come. Each change of it is one compare-and-set, which
// claims a run or skips nominal times and plans the next in one step.
type Progress struct {
	// AnchorMs is the instant from which timerevery counts: timerstart, or the time of the
	// add.
	AnchorMs int64
	// NextMs is the first nominal time that is not decided; 0 if none is left.
	NextMs int64
	// NextDueMs is NextMs plus jitter.
	NextDueMs int64
	// Fired counts the runs that count towards Limit: those of nominal times.
	Fired uint32
	// Missed counts the nominal times that the next run of MisfireOne stands for so far.
	Missed uint32
	// CaughtUp counts the runs that MisfireAll has fired without a pause.
	CaughtUp uint32
	// CatchUp replaces Misfire until the schedule has caught up, after a resume.
	CatchUp *Misfire
	// Last is the run that was claimed last.
	Last LastRun
	// PauseNote says why the schedule is paused, at most MaxPauseNote bytes. PausedUntilMs is
	// the time of the last resume: nominal times up to it that are skipped then were due
	// during the pause.
	PauseNote     string
	PausedUntilMs int64
	// KnownFromMs is the first nominal time about which Decisions is complete; older ranges
	// were dropped. 0 if none was.
	KnownFromMs int64
	// Waiting is the run that OverlapQueue holds back; nil for none.
	Waiting *WaitingRun
	// Manual has the runs that were asked for and have not fired, oldest first, at most
	// MaxManual.
	Manual []ManualRun
	// Backfill is the backfill under way; nil for none.
	Backfill *Backfill
	// Decisions says what became of the last nominal times, oldest first, at most
	// MaxDecisions.
	Decisions []Decision
}

// LastRun is the claim of a run.
type LastRun struct {
	Run       uint32 // 0 before the first
	NominalMs int64
	DueMs     int64 // the tick whose index entry named the schedule when the run was claimed
	ClaimedMs int64
	Epoch     uint64 // of the owner that claimed it
	// Before is the revision of the schedule's record that the claim replaced. A new owner
	// needs to look for the run's event if its clock may be older than the claim: the
	// due tick is after the low watermark, or Before is after the applied offset.
	Before  uint64
	Missed  uint32
	Trigger Trigger
}

// WaitingRun is a run that waits until the previous one has concluded.
type WaitingRun struct {
	Run              uint32
	NominalMs, DueMs int64
	Missed           uint32
}

// ManualRun is a run that somebody asked for.
type ManualRun struct {
	AtMs int64
	// Allow fires the run also while the previous run's callback has no result.
	Allow bool
}

// Backfill fires the nominal times of a past period.
type Backfill struct {
	// NextMs is the first nominal time left, ToMs the last one, inclusive.
	NextMs, ToMs int64
	// EveryMs is the least time between two runs; 0 for none. DueMs is when the next is due.
	EveryMs, DueMs int64
	// Again fires nominal times that have fired already; Allow is as in ManualRun.
	Again, Allow bool
	// Fired and Skipped count the nominal times that are done.
	Fired, Skipped uint32
}

// Limits of the progress. Together they keep it below 4 kB.
const (
	MaxManual    = 16
	MaxDecisions = 40
	MaxPauseNote = 256
)

// Decision says what became of a range of nominal times. Neighbouring ranges of the same
// kind are one.
type Decision struct {
	Kind DecisionKind
	// FromMs and ToMs are the first and the last nominal time, Count is their number.
	FromMs, ToMs int64
	Count        uint32
	// Run is the number of the first run of the range if it fired; for DecisionCoalesced
	// the run that fired instead; for DecisionOverlap the run that had no result.
	Run uint32
	// AtMs is the time of the last decision of the range.
	AtMs int64
}

// DecisionKind is what became of a nominal time. The numbers are part of the stored record.
type DecisionKind uint8

// The kinds. All but the first three are reasons for a skip.
const (
	DecisionFired      DecisionKind = 1  // the runs fired
	DecisionTriggered  DecisionKind = 2  // runs that were asked for; FromMs and ToMs are their times
	DecisionBackfilled DecisionKind = 3  // runs of a backfill
	DecisionCoalesced  DecisionKind = 4  // missed; a later run fired for them
	DecisionMisfire    DecisionKind = 5  // missed, and timermisfire is skip
	DecisionGrace      DecisionKind = 6  // later than timergrace
	DecisionOverlap    DecisionKind = 7  // the previous run's callback had no result
	DecisionQueue      DecisionKind = 8  // a later run took the waiting run's place
	DecisionPaused     DecisionKind = 9  // the schedule was paused
	DecisionUpdated    DecisionKind = 10 // an update changed the schedule before the time was due
	DecisionCancelled  DecisionKind = 11 // the schedule was cancelled while the run waited
)

var decisionNames = [...]string{
	DecisionFired: "fired", DecisionTriggered: "triggered", DecisionBackfilled: "backfilled", DecisionCoalesced: "coalesced",
	DecisionMisfire: "misfire", DecisionGrace: "grace", DecisionOverlap: "overlap", DecisionQueue: "queue", DecisionPaused: "paused", DecisionUpdated: "updated",
	DecisionCancelled: "cancelled",
}

// String returns the name of the kind in the API and in metrics.
func (k DecisionKind) String() string { return nameOf(decisionNames[:], uint8(k), "decision") }

// nameOf returns the name of a stored number, or the number for one without a name.
func nameOf(names []string, n uint8, kind string) string {
	if int(n) < len(names) && names[n] != "" {
		return names[n]
	}
	return fmt.Sprintf("%s(%d)", kind, n)
}

// Fires reports whether a run fired.
func (k DecisionKind) Fires() bool {
	return k == DecisionFired || k == DecisionTriggered || k == DecisionBackfilled
}

// Clone returns a copy that shares nothing that changes.
func (s *Schedule) Clone() *Schedule {
	c := *s
	c.Exclude, c.Manual, c.Decisions = slices.Clone(s.Exclude), slices.Clone(s.Manual), slices.Clone(s.Decisions)
	if s.CatchUp != nil {
		v := *s.CatchUp
		c.CatchUp = &v
	}
	if s.Waiting != nil {
		v := *s.Waiting
		c.Waiting = &v
	}
	if s.Backfill != nil {
		v := *s.Backfill
		c.Backfill = &v
	}
	return &c
}

// Decide adds a decision, and joins it to the last one if both are of one kind and follow
// each other. It drops the oldest beyond MaxDecisions.
func (p *Progress) Decide(d Decision) {
	if n := len(p.Decisions); n > 0 {
		last := &p.Decisions[n-1]
		same := last.Kind == d.Kind && d.FromMs > last.ToMs
		switch {
		case !same:
		case d.Kind.Fires() && d.Run == last.Run+last.Count, !d.Kind.Fires() && d.Run == last.Run:
			last.ToMs, last.AtMs = d.ToMs, d.AtMs
			last.Count += d.Count
			return
		}
	}
	drop := max(0, len(p.Decisions)-MaxDecisions+1)
	for _, old := range p.Decisions[:drop] {
		if old.Kind != DecisionTriggered && old.Kind != DecisionBackfilled {
			p.KnownFromMs = max(p.KnownFromMs, old.ToMs+1)
		}
	}
	keep := p.Decisions[drop:]
	p.Decisions = append(append(make([]Decision, 0, len(keep)+1), keep...), d)
}

// Origin is the part of a run's record that names its schedule. The record is that of an
// ordinary timer with one run, under the timer id RunTimer(schedule, run).
type Origin struct {
	Schedule TimerID
	Missed   uint32
	Trigger  Trigger
	// Waited is true if the schedule may hold a run back until this one has concluded.
	Waited bool
}

// RunTimer returns the timer id under which the record of a schedule's run is stored. It
// is in the same shard as the schedule for every number of shards, because its first eight
// bytes, from which the shard follows, are those of the schedule's id. The others are a
// hash of the schedule's id and the run.
func RunTimer(schedule TimerID, run uint32) TimerID {
	var in [len(schedule) + 4]byte
	copy(in[:], schedule[:])
	binary.BigEndian.PutUint32(in[len(schedule):], run)
	sum := sha256.Sum256(in[:])
	id := schedule
	copy(id[8:], sum[:8])
	return id
}

// RunID identifies a run: the timer or schedule, and the number of the run.
type RunID struct {
	Timer TimerID
	Run   uint32
}

// RunID returns the identity of the run that the record with this timer id describes: for a
// run of a schedule it names the schedule.
func (r *Record) RunID(id TimerID) RunID {
	if r.Origin != nil {
		id = r.Origin.Schedule
	}
	return RunID{id, max(r.Run, 1)}
}

// String returns the run's Nats-Msg-Id, <timer id>.<run>, which is also the idempotency key
// of its callback.
func (r RunID) String() string { return r.Timer.MsgID(r.Run) }

// RetryMsgID returns the Nats-Msg-Id of a retry of the run.
func (r RunID) RetryMsgID(attempt uint32) string { return r.Timer.RetryMsgID(r.Run, attempt) }

// ParseRunID parses <timer id>.<run>. Its errors have CodeInvalidTimerID.
func ParseRunID(s string) (RunID, error) {
	if len(s) > TimerIDLength+1 && s[TimerIDLength] == '.' {
		id, err := ParseTimerID(s[:TimerIDLength])
		n, bad := strconv.ParseUint(s[TimerIDLength+1:], 10, 32)
		if err == nil && bad == nil && n > 0 {
			return RunID{id, uint32(n)}, nil
		}
	}
	return RunID{}, Errorf(CodeInvalidTimerID, "run %.50q is not a timer id, a dot and the number of a run", s)
}

// MayHaveFired reports whether a run of the nominal time fired, or may have: the decisions
// about it may have been dropped.
func (p *Progress) MayHaveFired(nominalMs int64) bool {
	if nominalMs < p.KnownFromMs {
		return true
	}
	for i := range p.Decisions {
		d := &p.Decisions[i]
		if (d.Kind == DecisionFired || d.Kind == DecisionBackfilled) && d.FromMs <= nominalMs && nominalMs <= d.ToMs {
			return true
		}
	}
	return false
}
