package schemas

import "time"

// Answer says what became, or will become, of a time of a schedule or of a one-shot timer.
// Programs read Fate and Reason, people read Text. Of a one-shot timer At is the scheduled
// time, Local the same in UTC, Due the due time, and Decided the end of the timer, if any.
type Answer struct {
	// At is the time in question. Local is At in the schedule's zone, with its offset.
	At    time.Time `json:"at"`
	Local string    `json:"local"`
	// Fate is one of the constants below.
	Fate string `json:"fate"`
	// Reason says why a time was skipped, a DecisionKind by name, or why there is no run, a
	// code of the calendar or one of the Reason constants. Of a run that waits because somebody
	// asked for it, it is ReasonRequested. Otherwise it is empty.
	Reason string `json:"reason,omitempty"`
	// Run is the run that fired, or will. Of a skip it is the run that Text names.
	Run uint32 `json:"run,omitempty"`
	// Due is At plus jitter, zero if At is no nominal time.
	Due time.Time `json:"due,omitzero"`
	// Decided is the time of the decision, of the last one of many; zero if there is none, or
	// it is not known.
	Decided time.Time `json:"decided,omitzero"`
	// Overdue is the time of the overdue event for At (timerexpect), zero if there was none, or
	// none is known.
	Overdue time.Time `json:"overdue,omitzero"`
	// Before and After are the nearest nominal times if At is none; zero if there is none.
	Before time.Time `json:"before,omitzero"`
	After  time.Time `json:"after,omitzero"`
	// Text are one or two English sentences. Notes explain the time itself: why it was shifted
	// for daylight saving, for example.
	Text  string   `json:"text"`
	Notes []string `json:"notes,omitempty"`
}

// The fates of a time.
const (
	FateFired   = "fired"
	FateSkipped = "skipped"
	FateWaiting = "waiting" // its run waits until the previous one has a result
	FatePlanned = "planned" // it is in the future, or due now
	FateNone    = "none"    // the schedule has no run then
	FateUnknown = "unknown" // the schedule keeps no decision that old
)

// ReasonRequested is the reason of FateWaiting for a run that somebody asked for: At is the time
// of the request, not a nominal time.
const ReasonRequested = "requested"

// ReasonCalendar is the reason of FateWaiting for a schedule that excludes a calendar which does
// not exist, or cannot be read: nothing of the schedule fires until it can.
const ReasonCalendar = "calendar"

// The reasons of FateNone that are not codes of the calendar.
const (
	ReasonNotNominal  = "not-nominal"  // the expression or period does not name the time
	ReasonBeforeStart = "before-start" // the schedule did not exist, or timerstart is later
	ReasonAfterEnd    = "after-end"    // timerend is earlier
	ReasonLimit       = "limit"        // timerlimit runs have fired
	ReasonEnded       = "ended"        // the schedule was cancelled
	ReasonUpdated     = "updated"      // an update changed the schedule later
)

// MarshalJSON implements json.Marshaler.
func (a Answer) MarshalJSON() ([]byte, error) {
	type plain Answer
	return marshal(struct {
		At milliTime `json:"at"`
		plain
		Due     milliTime `json:"due,omitzero"`
		Decided milliTime `json:"decided,omitzero"`
		Overdue milliTime `json:"overdue,omitzero"`
		Before  milliTime `json:"before,omitzero"`
		After   milliTime `json:"after,omitzero"`
	}{milliTime(a.At), plain(a), milliTime(a.Due), milliTime(a.Decided), milliTime(a.Overdue), milliTime(a.Before), milliTime(a.After)})
}
