package console

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/schemas"
)

const (
	// The page of a calendar lists at most upcomingDates next dates, from the next upcomingYears years.
	// A 29th of February may be eight years away.
	upcomingDates = 20
	upcomingYears = 9
)

// listCalendars is the page of all calendars.
func listCalendars(q *request) (view, error) {
	list, err := q.ops.CalendarList(q.Context(), struct{}{})
	return view{name: "calendars", title: "Calendars", data: list.Calendars}, err
}

// calendarPage is the page of a calendar.
type calendarPage struct {
	schemas.CalendarInfo
	// Next are the next dates, from today in UTC.
	Next []string
	// Text has all dates, one a line.
	Text string
}

// showCalendar is the page of a calendar, with its next dates.
func showCalendar(q *request) (view, error) {
	c, err := q.ops.CalendarGet(q.Context(), schemas.CalendarRequest{Name: q.PathValue("name")})
	page := calendarPage{c, nextDates(c.Dates, schemas.TimeOf(q.console.o.NowMs())), strings.Join(c.Dates, "\n")}
	return view{name: "calendar", title: "Calendar " + c.Name, data: page}, err
}

// nextDates returns the next dates of a calendar from the day of now in UTC, with their days of the
// week.
func nextDates(dates []string, now time.Time) (out []string) {
	today := now.UTC().Format(time.DateOnly)
	var all []string
	for _, d := range dates {
		rest, yearly := strings.CutPrefix(d, "*")
		if !yearly {
			all = append(all, d)
			continue
		}
		for year := now.UTC().Year(); year < now.UTC().Year()+upcomingYears; year++ {
			all = append(all, fmt.Sprintf("%04d%s", year, rest))
		}
	}
	slices.Sort(all)
	for _, d := range slices.Compact(all) {
		if at, err := time.Parse(time.DateOnly, d); err == nil && d >= today && len(out) < upcomingDates {
			out = append(out, at.Format("Mon 2006-01-02"))
		}
	}
	return out
}

// calendarChangePage shows the effect of a change of a calendar on schedules, and asks for a
// confirmation.
type calendarChangePage struct {
	Name, Revision, Text string
	Reply                *schemas.CalendarPutReply
	Problem              string
}

// setCalendar replaces all dates of a calendar if the form confirms it. Otherwise it shows a
// calendarChangePage, with the number of schedules whose next runs move.
func setCalendar(q *request) (view, error) {
	page := calendarChangePage{Name: q.text("name"), Revision: q.text("revision"), Text: q.text("dates")}
	revision, err := q.revision()
	if err != nil {
		return view{}, err
	}
	ask := schemas.CalendarPutRequest{Name: page.Name, Dates: datesOf(page.Text), Revision: revision, DryRun: q.text("confirm") != "yes"}
	reply, err := q.ops.CalendarPut(q.Context(), ask, q.caller())
	code := schemas.CodeOf(err)
	switch {
	case err == nil && !ask.DryRun:
		return view{location: "/calendars/" + page.Name, notice: "dated"}, nil
	case err == nil:
		page.Reply = &reply
		return view{name: "calendarchange", title: "Store calendar " + page.Name + "?", data: page}, nil
	case code != schemas.CodeBadRequest && code != schemas.CodeInvalidAttribute:
		return view{}, err
	}
	page.Problem = err.Error()
	status, _, _ := httpapi.Explain(err)
	return view{status: status, name: "calendarchange", title: "Store a calendar", data: page}, nil
}

// datesOf reads dates from a text: several in a line are separated by spaces or commas, and text after # is
// a comment, as in a file of belfry calendar put.
func datesOf(text string) (dates []string) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		dates = append(dates, strings.FieldsFunc(line, func(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\r' || r == '\n' })...)
	}
	return dates
}

// deleteCalendar deletes a calendar that no schedule excludes.
func deleteCalendar(q *request) (view, error) {
	revision, err := q.revision()
	if err == nil {
		_, err = q.ops.CalendarDelete(q.Context(), schemas.CalendarRequest{Name: q.PathValue("name"), Revision: revision}, q.caller())
	}
	return view{location: "/calendars", notice: "undated"}, err
}
