package schemas

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
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
	// NextMs is the first nominal time that is not decided, beside that of Waiting; 0 if none
	// is left.
	NextMs int64
	// NextDueMs is NextMs plus jitter.
	NextDueMs int64
	// Zones is the release of the zone data with which NextMs was planned, "" if it is not
	// known. NextKey says which run it was planned for, whatever the zone data is: the local
	// time that a cron expression asks for, or the number of the period, from 1; 0 for a
	// schedule that follows real time. With both, a build with newer zone data plans the same
	// run at another instant.
	Zones   string
	NextKey int64
	// DoneKey is the key of the last run that was decided before newer zone data moved the plan,
	// for a schedule that excludes calendars; otherwise 0. When a calendar changes, the next run
	// has a greater key: the new data may put the local time of a decided run after its run.
	DoneKey int64
	// ChangedMs is the first nominal time after the last update that changed the nominal
	// times; 0 if none did. Decisions about earlier times follow an older recurrence.
	ChangedMs int64
	// Fired counts the runs that count towards Limit: those of nominal times.
	Fired uint32
	// Counted is the number of nominal times from NextMs to CountedMs, which are due but not
	// decided: more are due than one turn looks at. Later turns go on counting.
	Counted   uint32
	CountedMs int64
	// CaughtUp counts the runs that MisfireAll has fired without a pause.
	CaughtUp uint32
	// CatchUp decides the nominal times that were due during the pause, after a resume; nil
	// if none are left.
	CatchUp *Misfire
	// Last is the run that was claimed last.
	Last LastRun
	// PauseNote says why the schedule is paused, at most MaxPauseNote bytes. PausedUntilMs is
	// the time of the last resume: CatchUp decides the nominal times that were due until
	// then.
	PauseNote     string
	PausedUntilMs int64
	// ForgottenMs and KnownFromMs bound the nominal times of the ranges that Decisions has
	// dropped: those in [ForgottenMs, KnownFromMs) that no range contains. Both are 0 if
	// none was dropped.
	ForgottenMs, KnownFromMs int64
	// PassedMs is the time up to which every time on an excluded date is in Decisions; 0 without
	// Exclude. Calendars is the revision of the calendars that the last turn followed.
	PassedMs  int64
	Calendars uint64
	// Waiting is the run that OverlapQueue holds back; nil for none.
	Waiting *WaitingRun
	// Manual has the runs that were asked for and have not fired, oldest first, at most
	// MaxManual.
	Manual []ManualRun
	// Requests has the ids of the last triggers and backfills, oldest first, at most MaxRequests. A
	// request that is stored is not stored again; see RequestID.
	Requests []uint64
	// Backfill is the backfill under way; nil for none.
	Backfill *Backfill
	// Expected has the nominal times that wait for a success (timerexpect), in the order of
	// their deadlines, at most MaxExpected.
	Expected []Expected
	// Alarm is the claim of the last overdue event, in the fields of a run: Run counts the
	// overdue events from 1, NominalMs is the last nominal time of the event, and Missed counts
	// its other nominal times. Overdue describes the last overdue events, oldest first, at most
	// MaxOverdue; the last one is that of Alarm.
	Alarm   LastRun
	Overdue []Overdue
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
	// Before is the revision of the schedule's record that the claim replaced, or a later
	// sequence below the claim's. A new owner needs to look for the run's event if its clock
	// may be older than the claim; see After.
	Before  uint64
	Missed  uint32
	Trigger Trigger
}

// After reports whether the run may have been claimed after a clock was written, whose first
// tick that is not done is tick and whose applied offset is applied: the clock's owner may
// have died before it published the run.
func (l *LastRun) After(g Geometry, tick int64, applied uint64) bool {
	return l.Run != 0 && (g.Tick(l.DueMs) >= tick || l.Before > applied)
}

// AlarmIsLast reports whether an overdue event was claimed after the last run.
func (p *Progress) AlarmIsLast() bool { return p.Alarm.Run != 0 && p.Alarm.Before > p.Last.Before }

// WaitingRun is a nominal time whose run waits until the previous run has concluded. The run
// gets its number when it fires. DueMs is the time from which its lateness counts.
type WaitingRun struct {
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
	// Except are the nominal times in between that do not fire, in order: they had fired when
	// the backfill began. The ranges of Progress may have been dropped by now.
	Except []Span
	// Allow is as in ManualRun.
	Allow bool
	// Fired counts the runs so far.
	Fired uint32
}

// Span is a span of nominal times, both inclusive.
type Span struct{ FromMs, ToMs int64 }

// Limits of the progress. Together they keep it below MaxScheduleBytes.
const (
	MaxManual    = 16
	MaxRequests  = 16
	MaxDecisions = 40
	MaxPauseNote = 256
	// MaxExpected bounds Progress.Expected. It is above MaxExpectTimes, because neighbouring
	// days may have more nominal times than the days that the check of an add looks at.
	MaxExpected = 64
	// MaxExpectTimes bounds the nominal times within timerexpect, so that each of them can have
	// a deadline of its own.
	MaxExpectTimes = 60
	MaxOverdue     = 8
)

// Decision says what became of a range of nominal times. Neighbouring ranges of the same
// kind are one.
type Decision struct {
	Kind DecisionKind
	// FromMs and ToMs are the first and the last nominal time, Count is their number.
	FromMs, ToMs int64
	Count        uint32
	// Run is the number of the first run of the range if it fired; for DecisionCoalesced
	// the run that fired instead; for DecisionOverlap, DecisionQueue and
	// DecisionTriggerOverlap the run that had no result. For DecisionExcluded bit n is set if
	// calendar n of Exclude contains the dates; 0 if that is not known.
	Run uint32
	// AtMs is the time of the last decision of the range.
	AtMs int64
}

// DecisionKind is what became of a nominal time. The numbers are part of the stored record.
type DecisionKind uint8

// The kinds. All but the first three are reasons for a skip. The times of DecisionTriggered,
// DecisionTriggerOverlap and DecisionTriggerCancelled are those of the requests; all others
// are nominal times.
const (
	DecisionFired      DecisionKind = 1  // the runs fired
	DecisionTriggered  DecisionKind = 2  // runs that were asked for
	DecisionBackfilled DecisionKind = 3  // runs of a backfill
	DecisionCoalesced  DecisionKind = 4  // missed; a later run fired for them
	DecisionMisfire    DecisionKind = 5  // missed, and timermisfire is skip
	DecisionGrace      DecisionKind = 6  // later than timergrace
	DecisionOverlap    DecisionKind = 7  // the previous run's callback had no result
	DecisionQueue      DecisionKind = 8  // the run waited for the previous one, and a later run took its place
	DecisionPaused     DecisionKind = 9  // the schedule was paused
	DecisionUpdated    DecisionKind = 10 // an update changed the schedule before the time was due
	DecisionCancelled  DecisionKind = 11 // the schedule was cancelled while the run waited
	// DecisionTriggerOverlap: somebody asked for a run while the previous run's callback had
	// no result.
	DecisionTriggerOverlap DecisionKind = 12
	// DecisionTriggerCancelled: the schedule was cancelled before a run that somebody asked
	// for had fired.
	DecisionTriggerCancelled DecisionKind = 13
	// DecisionExcluded: a calendar of timerexclude contains the date.
	DecisionExcluded DecisionKind = 14
)

var decisionNames = [...]string{
	DecisionFired: "fired", DecisionTriggered: "triggered", DecisionBackfilled: "backfilled", DecisionCoalesced: "coalesced",
	DecisionMisfire: "misfire", DecisionGrace: "grace", DecisionOverlap: "overlap", DecisionQueue: "queue", DecisionPaused: "paused", DecisionUpdated: "updated",
	DecisionCancelled: "cancelled", DecisionTriggerOverlap: "trigger_overlap",
	DecisionTriggerCancelled: "trigger_cancelled", DecisionExcluded: "excluded",
}

// Requested reports whether the times of the kind are not nominal times.
func (k DecisionKind) Requested() bool {
	return k == DecisionTriggered || k == DecisionTriggerOverlap || k == DecisionTriggerCancelled
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

// Known reports whether k is one of the kinds.
func (k DecisionKind) Known() bool { return int(k) < len(decisionNames) && decisionNames[k] != "" }

// Fires reports whether a run fired.
func (k DecisionKind) Fires() bool {
	return k == DecisionFired || k == DecisionTriggered || k == DecisionBackfilled
}

// Clone returns a copy to change. It shares what no one changes: Exclude, CatchUp and Waiting
// are replaced as a whole, and Decide and AddManual copy the lists.
func (s *Schedule) Clone() *Schedule {
	c := *s
	if s.Backfill != nil {
		v := *s.Backfill
		c.Backfill = &v
	}
	return &c
}

// AddManual adds a run that somebody asked for, by the request with an id; 0 for none. The
// caller checks MaxManual.
func (p *Progress) AddManual(m ManualRun, request uint64) {
	p.Manual = append(slices.Clip(p.Manual), m)
	p.AddRequest(request)
}

// AddRequest remembers a trigger or a backfill by its id; 0 for none.
func (p *Progress) AddRequest(request uint64) {
	if request != 0 {
		p.Requests = append(slices.Clip(p.Requests[max(0, len(p.Requests)-MaxRequests+1):]), request)
	}
}

// RequestID returns the id under which a schedule remembers a request with a name: a hash
// that is not 0.
func RequestID(name string) uint64 {
	sum := sha256.Sum256([]byte(name))
	return max(binary.BigEndian.Uint64(sum[:]), 1)
}

// Decide adds a decision. It extends the last range if that has the same kind, and no other
// nominal time can be between; ranges of a backfill are extended by Extend only. It drops
// the oldest range beyond MaxDecisions. It copies Decisions, because copies of the record
// may share it.
func (p *Progress) Decide(d Decision) {
	if p.joins(&d) {
		p.Extend(d)
		return
	}
	drop := max(0, len(p.Decisions)-MaxDecisions+1)
	for i := range p.Decisions[:drop] {
		p.forget(&p.Decisions[i])
	}
	keep := p.Decisions[drop:]
	p.Decisions = append(append(make([]Decision, 0, len(keep)+1), keep...), d)
}

// Extend adds a decision to the last range. It copies Decisions.
func (p *Progress) Extend(d Decision) {
	p.Decisions = slices.Clone(p.Decisions)
	last := &p.Decisions[len(p.Decisions)-1]
	last.ToMs, last.AtMs = d.ToMs, d.AtMs
	last.Count = uint32(min(uint64(last.Count)+uint64(d.Count), math.MaxUint32))
}

// joins reports whether a decision extends the last range. The nominal times are decided
// in order, so a time between the two is that of Waiting, or is in a range that ends after
// the last one.
func (p *Progress) joins(d *Decision) bool {
	n := len(p.Decisions)
	if n == 0 {
		return false
	}
	last := &p.Decisions[n-1]
	run := last.Run
	if d.Kind.Fires() {
		run += last.Count
	}
	switch {
	case d.Kind != last.Kind || d.Run != run || d.FromMs <= last.ToMs || d.Kind == DecisionBackfilled:
		return false
	case d.Kind.Requested():
		return true
	case p.Waiting != nil && last.ToMs < p.Waiting.NominalMs && p.Waiting.NominalMs < d.FromMs:
		return false
	}
	// Between two times before ChangedMs another update may lie, after which nothing was decided.
	return last.ToMs == p.DecidedMs() && last.ToMs >= p.ChangedMs
}

// ExcludedBy returns the names of the calendars that a decision of DecisionExcluded names, or
// all calendars of the schedule if it does not say which.
func (s *Schedule) ExcludedBy(d *Decision) []string {
	var names []string
	for n, name := range s.Exclude {
		if d.Run == 0 || d.Run&(1<<n) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// Renumber makes the decisions of DecisionExcluded name the calendars by their places in
// Exclude, after an update has replaced the list was. It copies Decisions.
func (s *Schedule) Renumber(was []string) {
	if slices.Equal(was, s.Exclude) {
		return
	}
	s.Decisions = slices.Clone(s.Decisions)
	for i := range s.Decisions {
		d := &s.Decisions[i]
		if d.Kind != DecisionExcluded {
			continue
		}
		old := d.Run
		d.Run = 0
		for n, name := range was {
			if at := slices.Index(s.Exclude, name); at >= 0 && old&(1<<n) != 0 {
				d.Run |= 1 << at
			}
		}
	}
}

// DecidedMs returns the last nominal time that is decided, beside those of backfills; 0 if
// none is.
func (p *Progress) DecidedMs() int64 {
	decided := int64(0)
	if p.KnownFromMs != 0 {
		decided = p.KnownFromMs - 1
	}
	for i := range p.Decisions {
		if d := &p.Decisions[i]; d.Kind != DecisionBackfilled && !d.Kind.Requested() {
			decided = max(decided, d.ToMs)
		}
	}
	return decided
}

// forget notes that a range is dropped.
func (p *Progress) forget(d *Decision) {
	if d.Kind.Requested() {
		return
	}
	if p.KnownFromMs == 0 || d.FromMs < p.ForgottenMs {
		p.ForgottenMs = d.FromMs
	}
	p.KnownFromMs = max(p.KnownFromMs, d.ToMs+1)
}

// Origin is the part of a run's record that names its schedule. The record is that of an
// ordinary timer with one run, under the timer id RunTimer(schedule, run).
type Origin struct {
	Schedule TimerID
	Missed   uint32
	Trigger  Trigger
	// Waited is true if the schedule may hold a run back until this one has concluded.
	Waited bool
	// DeadlineMs is the time by which the schedule expects a success of the run
	// (timerexpect); 0 for none. A record of a success is kept until then at least.
	DeadlineMs int64
}

// RunTimer returns the timer id under which the record of a schedule's run is stored. It
// is in the same shard as the schedule for every number of shards, because its first eight
// bytes, from which the shard follows, are those of the schedule's id. The others are a
// hash of the schedule's id and the run.
func RunTimer(schedule TimerID, run uint32) TimerID {
	return derivedTimer(schedule, run, "")
}

func derivedTimer(schedule TimerID, n uint32, kind string) TimerID {
	in := make([]byte, 0, len(schedule)+4+len("overdue"))
	in = append(in, schedule[:]...)
	in = binary.BigEndian.AppendUint32(in, n)
	sum := sha256.Sum256(append(in, kind...))
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

// RetryMsgIDAfter returns the Nats-Msg-Id of a retry, or of the first attempt, of a run that
// was deferred so many times: RetryMsgID, for a run that was, with the number after a dot.
func (r RunID) RetryMsgIDAfter(attempt, deferrals uint32) string {
	id := r.RetryMsgID(attempt)
	if deferrals > 0 {
		id += "." + strconv.FormatUint(uint64(deferrals), 10)
	}
	return id
}

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

// Of returns the range that contains a nominal time, nil for none. A range in which a run
// fired comes first: a backfill fires nominal times that were skipped.
func (p *Progress) Of(nominalMs int64) *Decision {
	var found *Decision
	for i := range p.Decisions {
		d := &p.Decisions[i]
		if d.FromMs <= nominalMs && nominalMs <= d.ToMs && !d.Kind.Requested() && (found == nil || !found.Kind.Fires()) {
			found = d
		}
	}
	return found
}

// Forgotten reports whether the decision about a nominal time may have been dropped.
func (p *Progress) Forgotten(nominalMs int64) bool {
	return p.ForgottenMs <= nominalMs && nominalMs < p.KnownFromMs && p.Of(nominalMs) == nil
}

// MayHaveFired reports whether a run of the nominal time fired, or may have: the decision
// about it may have been dropped.
func (p *Progress) MayHaveFired(nominalMs int64) bool {
	if d := p.Of(nominalMs); d != nil {
		return d.Kind.Fires()
	}
	return p.Forgotten(nominalMs)
}

// LimitReached reports whether the schedule has fired all runs that Limit allows.
func (s *Schedule) LimitReached() bool { return s.Limit > 0 && s.Fired >= s.Limit }

// RunsLeft returns how many of the next n nominal times may fire, according to Limit.
func (s *Schedule) RunsLeft(n int) int {
	if s.Limit == 0 {
		return n
	}
	return int(min(int64(n), max(int64(s.Limit)-int64(s.Fired), 0)))
}
