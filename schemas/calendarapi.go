package schemas

import "time"

// This file has the requests and answers of timers.api.calendar.

// MaxCalendarUsers bounds the schedules that the refusal of a calendar's deletion names.
const MaxCalendarUsers = 5

// CalendarPutRequest is the body of timers.api.calendar.put. It replaces all dates of a
// calendar, or makes a new one. By is as in CancelRequest.
type CalendarPutRequest struct {
	Name string `json:"name"`
	// Dates are 2027-12-25, or *-12-25 for every year, at most 4,000.
	Dates []string `json:"dates"`
	// Revision is the revision that the calendar must have; 0 for any.
	Revision uint64 `json:"revision,omitempty"`
	// DryRun only counts the schedules whose next runs would move.
	DryRun bool   `json:"dry_run,omitempty"`
	By     string `json:"by,omitempty"`
}

// CalendarPutReply is the answer to a CalendarPutRequest. The change is in force: every run
// that is claimed after the answer follows it.
type CalendarPutReply struct {
	Calendar CalendarInfo `json:"calendar"`
	// Schedules is the number of schedules that exclude the calendar, Moved that of those whose
	// next run moves. Partial is true if there was no time to read all schedules, or if
	// some have a newer format than the node reads.
	Schedules int  `json:"schedules"`
	Moved     int  `json:"moved"`
	Partial   bool `json:"partial,omitempty"`
}

// CalendarRequest is the body of timers.api.calendar.get and timers.api.calendar.delete.
type CalendarRequest struct {
	Name string `json:"name"`
	// Revision is the revision that a calendar to be deleted must have; 0 for any.
	Revision uint64 `json:"revision,omitempty"`
	By       string `json:"by,omitempty"`
}

// CalendarInfo describes a calendar. A list has no Dates, and has Error for a calendar that cannot be
// read: the schedules that exclude it wait.
type CalendarInfo struct {
	Name     string    `json:"name"`
	Revision uint64    `json:"revision"`
	Count    int       `json:"count"`
	Dates    []string  `json:"dates,omitempty"`
	Changed  time.Time `json:"changed,omitzero"`
	By       string    `json:"by,omitempty"`
	Error    string    `json:"error,omitempty"`
}

// CalendarListReply has all calendars, by name.
type CalendarListReply struct {
	Calendars []CalendarInfo `json:"calendars"`
}
