package router_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestScheduleOfDeletedCalendar: get and list say that a schedule waits for a calendar that does not
// exist. An update to a schedule without the calendar is possible, and lets it run again.
func TestScheduleOfDeletedCalendar(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	waittest.Until(t, "format 2", func() bool { return f.store.RecordFormat() == schemas.RecordFormat2 })
	s := f.scheduled("held", daily, func(r *schemas.Record) { r.Schedule.Exclude = []string{"gone"} })
	f.scheduled("sound", daily, nil)
	f.scheduled("over", daily, func(r *schemas.Record) {
		r.Schedule.Exclude, r.State, r.Queued = []string{"gone"}, schemas.StateCancelled, false
	})
	var page schemas.ListReply
	if code, text := f.answer("list", []byte(`{"schedule":true}`), &page); code != "" || len(page.Timers) != 3 {
		t.Fatal(code, text, page)
	}
	for _, timer := range append(page.Timers, f.op("get", "held", ""), f.op("get", "sound", ""), f.op("get", "over", "")) {
		if names := strings.Contains(timer.Schedule.Problem, "there is no calendar gone: make it with "); names != (timer.ID == "held") {
			t.Errorf("%s: the problem is %q", timer.ID, timer.Schedule.Problem)
		}
	}
	if _, code, text := f.updateSchedule("held", `"timercron":"0 6 * * *","timerexclude":"gone,other"`, nil); code != "invalid_attribute" || !strings.Contains(text, "gone") {
		t.Errorf("an update that keeps the calendar: %s %q", code, text)
	}
	got, code, text := f.updateSchedule("held", `"timercron":"30 2 * * *","timertz":"Europe/Berlin"`, nil)
	if code != "" {
		t.Fatal(code, text)
	}
	if u := got.Timer.Schedule; u.Problem != "" || len(u.Exclude) > 0 || u.Next.UnixMilli() != s.Record.ScheduledMs || len(got.After) != schemas.UpdateTimes {
		t.Errorf("updated: %+v, then %v", u, got.After)
	}
}

// TestCalendarOfNewerFormat: a calendar is not deleted while a record has a newer format than this
// node reads, because it may be a schedule that excludes the calendar. A new set of dates is stored;
// the answer says that it does not count all schedules.
func TestCalendarOfNewerFormat(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	waittest.Until(t, "format 2", func() bool { return f.store.RecordFormat() == schemas.RecordFormat2 })
	put := func(date string) (reply schemas.CalendarPutReply) {
		t.Helper()
		if code, text := f.answer("calendar.put", fmt.Appendf(nil, `{"name":"c","dates":[%q]}`, date), &reply); code != "" {
			t.Fatal(code, text)
		}
		return reply
	}
	if put("2030-12-25").Partial {
		t.Error("an answer is partial although all schedules can be read")
	}
	w := f.scheduled("newer", daily, nil)
	w.Record.Schedule.Exclude = []string{"c"}
	bucket := fmt.Sprintf("KV_%s", schemas.BucketTimers(f.store.Geometry().Shard(w.ID)))
	storetest.Overwrite(t, f.store, bucket, "timer."+w.ID.String(), w.Record.AppendFormat(nil, schemas.RecordFormatTest))
	code, text := f.answer("calendar.delete", []byte(`{"name":"c"}`), new(schemas.CalendarInfo))
	if code != "unavailable" || !strings.Contains(text, "1 records have a newer format than this node reads") {
		t.Errorf("the calendar of a schedule that cannot be read: %q %q", code, text)
	}
	if !put("2030-12-26").Partial {
		t.Error("an answer is not partial although a schedule cannot be read")
	}
}

// TestPauseWithoutCalendar: a schedule that waits for a deleted calendar can be paused, by name or
// with its group. A resume of the group leaves it paused and resumes the others; once the calendar
// is there, the others can be resumed too.
func TestPauseWithoutCalendar(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	waittest.Until(t, "format 2", func() bool { return f.store.RecordFormat() == schemas.RecordFormat2 })
	held := func(r *schemas.Record) { r.Schedule.Exclude, r.Group = []string{"gone"}, "g" }
	f.scheduled("named", daily, held)
	f.scheduled("grouped", daily, held)
	f.scheduled("sound", daily, func(r *schemas.Record) { r.Group = "g" })
	if p := f.op("schedule.pause", "named", `,"note":"n"`); p.State != schemas.StatePaused {
		t.Errorf("paused by name: %+v", p)
	}
	group := func(verb string, changed, refused int) {
		t.Helper()
		var reply schemas.GroupReply
		if code, text := f.answer(verb, []byte(`{"group":"g"}`), &reply); code != "" || reply.Changed != changed || reply.Refused != refused {
			t.Errorf("%s: %s %s %+v, want %d changed and %d refused", verb, code, text, reply, changed, refused)
		}
	}
	group("schedule.pause", 2, 0)
	group("schedule.resume", 1, 2)
	if code, text := f.answer("schedule.resume", []byte(`{"id":"named","source":"/test"}`), new(schemas.TimerInfo)); code != "invalid_attribute" || !strings.Contains(text, "there is no calendar gone") {
		t.Errorf("a resume without the calendar: %s %q", code, text)
	}
	if code, text := f.answer("calendar.put", []byte(`{"name":"gone","dates":["2020-01-01"]}`), new(schemas.CalendarPutReply)); code != "" {
		t.Fatal(code, text)
	}
	group("schedule.resume", 2, 0)
	for _, id := range []string{"named", "grouped", "sound"} {
		if p := f.op("get", id, ""); p.State != schemas.StatePending {
			t.Errorf("%s resumed: %s, want pending", id, p.State)
		}
	}
}

// TestEveryDateExcluded: a schedule whose remaining dates are all excluded is not completed; get and
// why say that no run is left. An add or update to such a schedule is refused.
func TestEveryDateExcluded(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	waittest.Until(t, "format 2", func() bool { return f.store.RecordFormat() == schemas.RecordFormat2 })
	year := time.Now().UTC().Year() + 1
	put := func(date string) {
		t.Helper()
		if code, text := f.answer("calendar.put", fmt.Appendf(nil, `{"name":"holidays","dates":[%q]}`, date), new(schemas.CalendarPutReply)); code != "" {
			t.Fatal(code, text)
		}
	}
	put("2020-01-01")
	attributes := fmt.Sprintf(`"timercron":"0 9 24 12 *","timerend":"%d-12-31T00:00:00Z","timerstart":"%d-01-01T00:00:00Z","timerexclude":"holidays"`, year, year)
	if code, text := f.answer("add", add("yearly", attributes), new(schemas.AddReply)); code != "" {
		t.Fatal(code, text)
	}
	if p := f.op("get", "yearly", ""); p.Schedule.Problem != "" {
		t.Errorf("the problem is %q", p.Schedule.Problem)
	}
	put(fmt.Sprintf("%d-12-24", year))
	last := fmt.Sprintf("%d-12-24T09:00:00", year)
	if p := f.op("get", "yearly", ""); p.State != schemas.StatePending || !strings.Contains(p.Schedule.Problem, "holidays exclude all remaining dates, the last of them with "+last) {
		t.Errorf("%s, the problem is %q", p.State, p.Schedule.Problem)
	}
	var why schemas.WhyReply
	if code, text := f.answer("schedule.why", []byte(`{"id":"yearly","source":"/test"}`), &why); code != "" || len(why.Answers) != 1 {
		t.Fatal(code, text, why)
	}
	if a := why.Answers[0]; a.Fate != schemas.FateNone || !strings.Contains(a.Text, "excluded by holidays") || !strings.Contains(strings.Join(a.Notes, " "), "No run is left") {
		t.Errorf("why: %+v", a)
	}
	const want = "check timerstart, timerend and timerexclude"
	if code, text := f.answer("add", add("another", attributes), nil); code != "invalid_attribute" || !strings.Contains(text, want) {
		t.Errorf("an add without a run left: %s %q", code, text)
	}
	f.scheduled("daily", daily, nil)
	if _, code, text := f.updateSchedule("daily", attributes, nil); code != "invalid_attribute" || !strings.Contains(text, want) {
		t.Errorf("an update without a run left: %s %q", code, text)
	}
	put("2020-01-01")
	if p := f.op("get", "yearly", ""); p.Schedule.Problem != "" {
		t.Errorf("after the correction, the problem is %q", p.Schedule.Problem)
	}
}
