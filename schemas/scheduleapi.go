package schemas

import (
	"cmp"
	"time"
)

// This file has the requests and answers of timers.api.schedule.

// Limits of the operations on schedules.
const (
	// MaxPreview bounds the runs of a preview, DefaultPreview is their number if the request
	// has none.
	MaxPreview     = 1000
	DefaultPreview = 10
	// MaxRuns bounds the runs on one page of a schedule's runs, DefaultRuns is their number if
	// the request has none.
	MaxRuns     = 100
	DefaultRuns = 20
	// MaxAnswers bounds the answers of one why.
	MaxAnswers = 100
	// UpdateTimes is the number of next runs, before and after, in the answer to an update.
	UpdateTimes = 5
)

// Headers of timers.api.schedule.update, whose body is an event as in an add.
const (
	// HeaderIfMatch is the revision that the schedule must have. Without it the update
	// replaces any revision.
	HeaderIfMatch = "Belfry-If-Match"
	// HeaderBy is the caller's name for the timer's history; see CancelRequest.
	HeaderBy = "Belfry-By"
)

// ScheduleInfo describes a schedule in the answers of the API.
type ScheduleInfo struct {
	// The attributes of the schedule. Exactly one of Cron and Every is set.
	Cron         string    `json:"cron,omitempty"`
	Every        string    `json:"every,omitempty"`
	Zone         string    `json:"tz"`
	Start        time.Time `json:"start,omitzero"`
	End          time.Time `json:"end,omitzero"`
	Limit        uint32    `json:"limit,omitempty"`
	JitterMs     int64     `json:"jitter_ms,omitempty"`
	DST          string    `json:"dst,omitempty"`
	Days         string    `json:"days,omitempty"`
	Exclude      []string  `json:"exclude,omitempty"`
	ExcludeShift string    `json:"excludeshift,omitempty"`
	Misfire      string    `json:"misfire"`
	GraceMs      int64     `json:"grace_ms,omitempty"`
	Overlap      string    `json:"overlap"`
	ExpectMs     int64     `json:"expect_ms,omitempty"`
	// Next is the next nominal time that is not decided, zero if none is left.
	Next time.Time `json:"next,omitzero"`
	// Fired counts the runs of nominal times that have fired, which Limit bounds.
	Fired uint32 `json:"fired"`
	// Last is the run that fired last, nil before the first.
	Last *LastRunInfo `json:"last,omitempty"`
	// Waiting is the nominal time whose run waits until the previous one has concluded, zero
	// for none.
	Waiting time.Time `json:"waiting,omitzero"`
	// Triggered counts the runs that were asked for and have not fired.
	Triggered int `json:"triggered,omitempty"`
	// Backfill is the backfill under way, nil for none.
	Backfill *BackfillInfo `json:"backfill,omitempty"`
	// Overdue are the last overdue events, oldest first, at most MaxOverdue. Deadline is the next
	// time at which a success is missing if there is none by then, zero for none.
	Overdue  []OverdueInfo `json:"overdue,omitempty"`
	Deadline time.Time     `json:"deadline,omitzero"`
	// Problem says why no run fires although the schedule has not ended: a calendar that it
	// excludes does not exist or cannot be read, or, in the answer of Get, the calendars exclude
	// all remaining dates. Get and List set it.
	Problem string `json:"problem,omitempty"`
}

// OverdueInfo describes an overdue event: nominal times of a schedule without a success by their
// deadline.
type OverdueInfo struct {
	From     time.Time `json:"from"`
	To       time.Time `json:"to"`
	Count    uint32    `json:"count"`
	Deadline time.Time `json:"deadline"`
	At       time.Time `json:"at"`            // time of the event
	Run      uint32    `json:"run,omitempty"` // the run without a success; 0 if there is none
}

// LastRunInfo is the run of a schedule that fired last. Scheduled is its nominal time.
type LastRunInfo struct {
	Run       uint32    `json:"run"`
	Scheduled time.Time `json:"scheduled"`
	Fired     time.Time `json:"fired"`
	// Missed counts the missed nominal times for which the run fired, too.
	Missed uint32 `json:"missed,omitempty"`
	// Trigger says why the run fired: manual or backfill, or empty if it was due.
	Trigger string `json:"trigger,omitempty"`
}

// BackfillInfo is a backfill under way: Next is the first nominal time left, To the last.
type BackfillInfo struct {
	Next  time.Time `json:"next"`
	To    time.Time `json:"to"`
	Fired uint32    `json:"fired"`
}

// OriginInfo names the schedule of a run.
type OriginInfo struct {
	Schedule TimerID `json:"schedule"`
	Missed   uint32  `json:"missed,omitempty"`
	Trigger  string  `json:"trigger,omitempty"`
}

// info describes a schedule.
func (s *Schedule) info() *ScheduleInfo {
	i := &ScheduleInfo{
		Cron: s.Cron, Every: s.Every, Zone: cmp.Or(s.Zone, "UTC"), Start: optionalTime(s.StartMs), End: optionalTime(s.EndMs), Limit: s.Limit, JitterMs: s.JitterMs,
		DST: s.DST, Days: s.Days, Exclude: s.Exclude, ExcludeShift: s.ExcludeMode, Misfire: s.Misfire.String(), GraceMs: s.GraceMs, Overlap: s.Overlap.String(), ExpectMs: s.ExpectMs,
		Next: optionalTime(s.NextMs), Fired: s.Fired, Triggered: len(s.Manual),
	}
	if l := &s.Last; l.Run != 0 {
		i.Last = &LastRunInfo{Run: l.Run, Scheduled: TimeOf(l.NominalMs), Fired: TimeOf(l.ClaimedMs), Missed: l.Missed, Trigger: triggerName(l.Trigger)}
	}
	if w := s.Waiting; w != nil {
		i.Waiting = TimeOf(w.NominalMs)
	}
	if b := s.Backfill; b != nil {
		i.Backfill = &BackfillInfo{TimeOf(b.NextMs), TimeOf(b.ToMs), b.Fired}
	}
	for _, o := range s.Overdue {
		i.Overdue = append(i.Overdue, OverdueInfo{TimeOf(o.FromMs), TimeOf(o.ToMs), o.Count, TimeOf(o.DeadlineMs), TimeOf(o.AtMs), o.Run})
	}
	if len(s.Expected) > 0 {
		i.Deadline = TimeOf(s.Expected[0].DeadlineMs)
	}
	return i
}

// info describes the origin of a run.
func (o *Origin) info() *OriginInfo {
	return &OriginInfo{o.Schedule, o.Missed, triggerName(o.Trigger)}
}

// triggerName returns the name of a trigger, "" for a run that was due.
func triggerName(t Trigger) string {
	if t == TriggerSchedule {
		return ""
	}
	return t.String()
}

// PauseRequest is the body of timers.api.schedule.pause. It names a timer or schedule, or a
// Group: then it pauses a page of the pending timers and schedules of the group, and the
// answer is a GroupReply. By is as in CancelRequest.
type PauseRequest struct {
	TimerRef
	Group string `json:"group,omitempty"`
	// Note says why, at most MaxPauseNote bytes of printable text.
	Note   string `json:"note,omitempty"`
	By     string `json:"by,omitempty"`
	Cursor string `json:"cursor,omitempty"` // of a group: that of the previous page
}

// ResumeRequest is the body of timers.api.schedule.resume. Its other fields are as in
// PauseRequest.
type ResumeRequest struct {
	TimerRef
	Group string `json:"group,omitempty"`
	// CatchUp says what happens to the nominal times that a schedule missed during the pause:
	// skip (the default), one or all. A one-shot timer that came due fires at once.
	CatchUp string `json:"catchup,omitempty"`
	By      string `json:"by,omitempty"`
	Cursor  string `json:"cursor,omitempty"`
}

// GroupReply is the answer to an operation on a page of a group. Cursor is empty on the last
// page. A page may have no timers and still have a cursor.
type GroupReply struct {
	// Changed counts the timers and schedules that the operation changed.
	Changed int `json:"changed"`
	// Refused counts the timers that could not be changed: they fired or ended meanwhile, or are
	// schedules that exclude a calendar which does not exist and cannot be resumed.
	Refused int    `json:"refused"`
	Cursor  string `json:"cursor,omitempty"`
}

// TriggerRequest is the body of timers.api.schedule.trigger.
type TriggerRequest struct {
	TimerRef
	// Allow fires the run also while the previous one has no result, whatever timeroverlap
	// says.
	Allow bool   `json:"allow,omitempty"`
	By    string `json:"by,omitempty"`
	// Request names the request: up to MaxRequestName bytes. A repeated request with the same
	// name starts no second run while the first one is among the schedule's last MaxRequests triggers
	// and backfills. Without a name each request is a run.
	Request string `json:"request,omitempty"`
}

// MaxRequestName bounds TriggerRequest.Request, in bytes.
const MaxRequestName = 128

// BackfillRequest is the body of timers.api.schedule.backfill. From and To are RFC 3339
// times, both inclusive.
type BackfillRequest struct {
	TimerRef
	From string `json:"from"`
	To   string `json:"to"`
	// Rate is the least time between two runs, a duration; none by default.
	Rate string `json:"rate,omitempty"`
	// Again also fires nominal times that have fired. Allow is as in TriggerRequest.
	Again bool `json:"again,omitempty"`
	Allow bool `json:"allow,omitempty"`
	// DryRun changes nothing and answers with the nominal times.
	DryRun bool   `json:"dry_run,omitempty"`
	By     string `json:"by,omitempty"`
}

// BackfillReply is the answer to a backfill.
type BackfillReply struct {
	Timer TimerInfo `json:"timer"`
	// Count is the number of nominal times that fire.
	Count int `json:"count"`
	// Times are these nominal times, only of a dry run. If they do not fit one message, the
	// last ones are missing.
	Times []time.Time `json:"times,omitempty"`
}

// UpdateReply is the answer to timers.api.schedule.update: the schedule, and the next
// UpdateTimes nominal times before and after the update.
type UpdateReply struct {
	Timer  TimerInfo   `json:"timer"`
	Before []time.Time `json:"before"`
	After  []time.Time `json:"after"`
}

// PreviewRequest is the body of timers.api.schedule.preview. It names a stored schedule, or
// has the Attributes of a schedule that need not exist.
type PreviewRequest struct {
	TimerRef
	// Attributes are extension attributes of an event, such as timercron. H and jitter are
	// derived from ID and Source, if they are set.
	Attributes map[string]string `json:"attributes,omitempty"`
	// From is an RFC 3339 time, now by default. N is the number of runs, at most MaxPreview;
	// DefaultPreview by default.
	From string `json:"from,omitempty"`
	N    int    `json:"n,omitempty"`
}

// PreviewReply shows when a schedule runs, and why then.
type PreviewReply struct {
	// Description says in words when the schedule runs. Resolved is the cron expression with
	// each H replaced. Zones is the release of the time zone data.
	Description string       `json:"description"`
	Resolved    string       `json:"resolved,omitempty"`
	Zones       string       `json:"zones"`
	Warnings    []string     `json:"warnings,omitempty"`
	Runs        []PreviewRun `json:"runs"`
}

// PreviewRun is a nominal time. If it is skipped, no run fires.
type PreviewRun struct {
	At time.Time `json:"at"`
	// Local is the local time in the schedule's zone, with its offset.
	Local string `json:"local"`
	// Due is At plus jitter, zero without jitter.
	Due     time.Time    `json:"due,omitzero"`
	Skipped bool         `json:"skipped,omitempty"`
	Why     []ReasonInfo `json:"why"`
}

// ReasonInfo says why a run is when it is: a code for programs and a text for people.
type ReasonInfo struct {
	Code string `json:"code"`
	Text string `json:"text"`
}

// WhyRequest is the body of timers.api.schedule.why, which answers for schedules and for
// one-shot timers.
type WhyRequest struct {
	TimerRef
	// At is an RFC 3339 time, or in the schedule's zone a date such as 2027-03-28 or a local
	// time such as 2027-03-28T02:30. A date asks about each of its nominal times. Empty asks
	// about the last nominal time that is decided, and the next one. It must be empty for a
	// one-shot timer.
	At string `json:"at,omitempty"`
}

// WhyReply is the answer to timers.api.schedule.why: at most MaxAnswers, by time. More is true
// if there are others.
type WhyReply struct {
	Answers []Answer `json:"answers"`
	More    bool     `json:"more,omitempty"`
}

// RunsRequest is the body of timers.api.schedule.runs.
type RunsRequest struct {
	TimerRef
	Limit  int    `json:"limit,omitempty"`  // runs per page, at most MaxRuns; 0 for DefaultRuns
	Cursor string `json:"cursor,omitempty"` // that of the previous page
}

// RunInfo is one run of a schedule.
type RunInfo struct {
	Run uint32 `json:"run"`
	// ID is <schedule id>.<run>, the idempotency key of the run. Timer is the timer id of the
	// run's own record, zero if it has none or the record has expired.
	ID    string  `json:"id"`
	Timer TimerID `json:"timer,omitzero"`
	// Scheduled is the nominal time, zero if it is not known any more.
	Scheduled time.Time `json:"scheduled,omitzero"`
	Missed    uint32    `json:"missed,omitempty"`
	Trigger   string    `json:"trigger,omitempty"`
	// State is the state of the run's record, or success for a run without a callback. It is
	// absent if the record has expired.
	State    State        `json:"state,omitempty"`
	Fired    time.Time    `json:"fired,omitzero"`
	Done     time.Time    `json:"done,omitzero"`
	Attempts uint32       `json:"attempts,omitempty"`
	Outcome  *OutcomeInfo `json:"outcome,omitempty"`
	// Overdue is true if the run had no success by its deadline (timerexpect), also if it
	// succeeded later.
	Overdue bool `json:"overdue,omitempty"`
}

// DecisionInfo says what became of a range of nominal times.
type DecisionInfo struct {
	// Kind is fired, triggered, backfilled, or the reason why the times were skipped:
	// coalesced, misfire, grace, overlap, queue, paused, updated, cancelled or excluded. The times of
	// triggered, trigger_overlap and trigger_cancelled are those of the requests.
	Kind  string    `json:"kind"`
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	Count uint32    `json:"count"`
	// Run is the first run of times that fired. Of coalesced times it is the run that fired
	// for them, and of overlap, queue and trigger_overlap the run that had no result.
	Run uint32 `json:"run,omitempty"`
	// Calendars are the calendars that excluded the dates.
	Calendars []string `json:"calendars,omitempty"`
	// At is the time of the last decision of the range.
	At time.Time `json:"at"`
}

// RunsReply is one page of the runs of a schedule, newest first. Decisions are on the first
// page, newest first, too. Cursor is empty on the last page.
type RunsReply struct {
	Decisions []DecisionInfo `json:"decisions,omitempty"`
	Runs      []RunInfo      `json:"runs"`
	Cursor    string         `json:"cursor,omitempty"`
}

// Info describes a decision of a schedule.
func (s *Schedule) Info(d *Decision) DecisionInfo {
	i := DecisionInfo{Kind: d.Kind.String(), From: TimeOf(d.FromMs), To: TimeOf(d.ToMs), Count: d.Count, Run: d.Run, At: TimeOf(d.AtMs)}
	if d.Kind == DecisionExcluded {
		i.Run, i.Calendars = 0, s.ExcludedBy(d)
	}
	return i
}

// The JSON of the types below has times with milliseconds.

// MarshalJSON implements json.Marshaler.
func (s ScheduleInfo) MarshalJSON() ([]byte, error) {
	type plain ScheduleInfo
	return marshal(struct {
		plain
		Start   milliTime `json:"start,omitzero"`
		End     milliTime `json:"end,omitzero"`
		Next    milliTime `json:"next,omitzero"`
		Waiting milliTime `json:"waiting,omitzero"`

		Deadline milliTime `json:"deadline,omitzero"`
	}{plain(s), milliTime(s.Start), milliTime(s.End), milliTime(s.Next), milliTime(s.Waiting), milliTime(s.Deadline)})
}

// MarshalJSON implements json.Marshaler.
func (o OverdueInfo) MarshalJSON() ([]byte, error) {
	type plain OverdueInfo
	return marshal(struct {
		plain
		From     milliTime `json:"from"`
		To       milliTime `json:"to"`
		Deadline milliTime `json:"deadline"`
		At       milliTime `json:"at"`
	}{plain(o), milliTime(o.From), milliTime(o.To), milliTime(o.Deadline), milliTime(o.At)})
}

// MarshalJSON implements json.Marshaler.
func (l LastRunInfo) MarshalJSON() ([]byte, error) {
	type plain LastRunInfo
	return marshal(struct {
		plain
		Scheduled milliTime `json:"scheduled"`
		Fired     milliTime `json:"fired"`
	}{plain(l), milliTime(l.Scheduled), milliTime(l.Fired)})
}

// MarshalJSON implements json.Marshaler.
func (b BackfillInfo) MarshalJSON() ([]byte, error) {
	type plain BackfillInfo
	return marshal(struct {
		plain
		Next milliTime `json:"next"`
		To   milliTime `json:"to"`
	}{plain(b), milliTime(b.Next), milliTime(b.To)})
}

// MarshalJSON implements json.Marshaler.
func (b BackfillReply) MarshalJSON() ([]byte, error) {
	type plain BackfillReply
	return marshal(struct {
		plain
		Times []milliTime `json:"times,omitempty"`
	}{plain(b), milliTimes(b.Times)})
}

// MarshalJSON implements json.Marshaler.
func (u UpdateReply) MarshalJSON() ([]byte, error) {
	type plain UpdateReply
	return marshal(struct {
		plain
		Before []milliTime `json:"before"`
		After  []milliTime `json:"after"`
	}{plain(u), milliTimes(u.Before), milliTimes(u.After)})
}

// MarshalJSON implements json.Marshaler.
func (p PreviewRun) MarshalJSON() ([]byte, error) {
	type plain PreviewRun
	return marshal(struct {
		At milliTime `json:"at"`
		plain
		Due milliTime `json:"due,omitzero"`
	}{milliTime(p.At), plain(p), milliTime(p.Due)})
}

// MarshalJSON implements json.Marshaler.
func (r RunInfo) MarshalJSON() ([]byte, error) {
	type plain RunInfo
	return marshal(struct {
		plain
		Scheduled milliTime `json:"scheduled,omitzero"`
		Fired     milliTime `json:"fired,omitzero"`
		Done      milliTime `json:"done,omitzero"`
	}{plain(r), milliTime(r.Scheduled), milliTime(r.Fired), milliTime(r.Done)})
}

// MarshalJSON implements json.Marshaler.
func (d DecisionInfo) MarshalJSON() ([]byte, error) {
	type plain DecisionInfo
	return marshal(struct {
		plain
		From milliTime `json:"from"`
		To   milliTime `json:"to"`
		At   milliTime `json:"at"`
	}{plain(d), milliTime(d.From), milliTime(d.To), milliTime(d.At)})
}

func milliTimes(times []time.Time) []milliTime {
	out := make([]milliTime, len(times))
	for i, t := range times {
		out[i] = milliTime(t)
	}
	return out
}
