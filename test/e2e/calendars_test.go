//go:build unix

package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/doctor"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// today returns the dates around now in UTC: a test may run over midnight.
func today() []string {
	var dates []string
	for d := range 3 {
		dates = append(dates, time.Now().UTC().AddDate(0, 0, d-1).Format(time.DateOnly))
	}
	return dates
}

// TestCalendars: schedules follow a calendar that changes while they fire. After a change is
// acknowledged, no run is claimed on a date that it excludes, also if the owner dies then. Each
// excluded time is recorded, and why says which calendar excluded it.
func TestCalendars(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	join := func(name string) *app.App {
		return node(t, func(o *app.Options) { o.NATSURL, o.Node = srv.ClientURL(), name })
	}
	first := join("n1")
	c := connect(t, srv.ClientURL())
	client, err := belfry.New(c.nc)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	add := func(id string, opts ...belfry.AddOption) (belfry.TimerID, error) {
		e := cloudevents.New()
		e.SetID(id)
		e.SetSource("/e2e")
		e.SetType("e2e")
		r, err := client.Add(t.Context(), e, opts...)
		return r.Timer, err
	}
	put := func(dates []string, opts ...belfry.CalendarOption) belfry.CalendarChange {
		t.Helper()
		r, err := client.PutCalendar(t.Context(), "holidays", dates, opts...)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	if _, err := add("early", belfry.Cron("* * * * * *"), belfry.Exclude("holidays")); !errors.Is(err, belfry.ErrInvalidAttribute) || !strings.Contains(fmt.Sprint(err), "belfry calendar put holidays") {
		t.Fatalf("an add that names no calendar: %v", err)
	}
	made := put([]string{"2020-01-01", "*-02-29"})
	if made.Calendar.Revision == 0 || made.Schedules != 0 {
		t.Errorf("the new calendar is %+v", made)
	}
	var ids []belfry.TimerID
	for i := range 5 {
		id, err := add(fmt.Sprint("s", i), belfry.Cron("* * * * * *"), belfry.Exclude("holidays"))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	last := func(id belfry.TimerID) (run uint32, claimed time.Time) {
		got, err := client.Get(t.Context(), id)
		if err != nil || got.Schedule == nil {
			t.Fatal(got, err)
		}
		if l := got.Schedule.Last; l != nil {
			return l.Run, l.Fired
		}
		return 0, time.Time{}
	}
	fires := func(what string, after map[belfry.TimerID]uint32) {
		t.Helper()
		waittest.Until(t, what, func() bool {
			for _, id := range ids {
				if run, _ := last(id); run <= after[id] {
					return false
				}
			}
			return true
		})
	}
	fires("every schedule fires", nil)
	if r := put(today(), belfry.CalendarDryRun()); r.Schedules != len(ids) || r.Moved == 0 || r.Calendar.Revision != made.Calendar.Revision {
		t.Errorf("a dry run answers %+v", r)
	}
	if _, err := client.PutCalendar(t.Context(), "holidays", today(), belfry.CalendarRevision(made.Calendar.Revision+7)); !errors.Is(err, belfry.ErrConflict) {
		t.Errorf("put of another revision: %v", err)
	}
	// The change, and the death of the owner.
	excluded := put(today(), belfry.CalendarRevision(made.Calendar.Revision), belfry.CalendarBy("alice"))
	acked := time.Now()
	if excluded.Schedules != len(ids) || excluded.Calendar.Revision <= made.Calendar.Revision {
		t.Errorf("the change answers %+v", excluded)
	}
	join("n2")
	stop(t, first)
	if got, err := client.GetCalendar(t.Context(), "holidays"); err != nil || got.By != "alice" || got.Count != 3 || got.Revision != excluded.Calendar.Revision {
		t.Errorf("the calendar is %+v, %v", got, err)
	}
	quiet := time.Now().Add(3 * time.Second)
	waittest.Until(t, "some seconds pass", func() bool { return time.Now().After(quiet) })
	runs := map[belfry.TimerID]uint32{}
	for _, id := range ids {
		run, claimed := last(id)
		if runs[id] = run; claimed.After(acked) {
			t.Errorf("run %d was claimed at %s, after the change was acknowledged at %s", run, claimed, acked)
		}
	}
	why := func(id belfry.TimerID, at time.Time) schemas.Answer {
		t.Helper()
		r, err := client.Why(t.Context(), id, at.UTC().Format("2006-01-02T15:04:05"))
		if err != nil || len(r.Answers) == 0 {
			t.Fatal(r, err)
		}
		return r.Answers[0]
	}
	if a := why(ids[0], acked.Add(time.Second)); a.Reason != "excluded" || !strings.Contains(a.Text, "excluded by holidays") {
		t.Errorf("why on an excluded date: %+v", a)
	}
	// The calendar is in use.
	if _, err := client.DeleteCalendar(t.Context(), "holidays"); !errors.Is(err, belfry.ErrConflict) || !strings.Contains(fmt.Sprint(err), "/e2e s") {
		t.Errorf("deleting a calendar in use: %v", err)
	}
	// The dates come back: the schedules fire again, and what was excluded is recorded.
	back := put([]string{"2020-01-01"})
	if back.Moved != len(ids) {
		t.Errorf("the change back answers %+v", back)
	}
	fires("every schedule fires again", runs)
	for _, id := range ids {
		waittest.Until(t, "the excluded times are recorded", func() bool {
			a := why(id, acked.Add(time.Second))
			return a.Fate == "skipped" && a.Reason == "excluded" && strings.Contains(a.Text, "holidays")
		})
		if _, err := client.Cancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	list, err := client.Calendars(t.Context())
	if err != nil || len(list) != 1 || list[0].Name != "holidays" || list[0].Count != 1 {
		t.Errorf("the calendars are %+v, %v", list, err)
	}
	if _, err := client.DeleteCalendar(t.Context(), "holidays"); err != nil {
		t.Fatal(err)
	}
	if _, err := client.GetCalendar(t.Context(), "holidays"); !errors.Is(err, belfry.ErrNotFound) {
		t.Errorf("the deleted calendar: %v", err)
	}
	if r := put([]string{"2021-01-01"}); r.Calendar.Count != 1 {
		t.Errorf("made again: %+v", r)
	}
}

// TestBadCalendars: wrong input of every kind is refused with a reason.
func TestBadCalendars(t *testing.T) {
	t.Parallel()
	a := node(t, nil)
	c := connect(t, a.NATSURL())
	type m = map[string]any
	many := make([]string, 4001)
	for i := range many {
		many[i] = time.Unix(0, 0).AddDate(0, 0, i).UTC().Format(time.DateOnly)
	}
	for _, bad := range []struct {
		verb string
		body any
		code schemas.Code
		text string
	}{
		{"calendar.put", m{"name": "x"}, schemas.CodeBadRequest, "no dates"},
		{"calendar.put", m{"dates": []string{"2027-12-25"}}, schemas.CodeBadRequest, "calendar name"},
		{"calendar.put", m{"name": "a.b", "dates": []string{"2027-12-25"}}, schemas.CodeBadRequest, "calendar name"},
		{"calendar.put", m{"name": strings.Repeat("x", 65), "dates": []string{"2027-12-25"}}, schemas.CodeBadRequest, "calendar name"},
		{"calendar.put", m{"name": "x", "dates": []string{"2027-02-30"}}, schemas.CodeBadRequest, "2027-12-25"},
		{"calendar.put", m{"name": "x", "dates": []string{"*-02-30"}}, schemas.CodeBadRequest, "*-12-25 for every year"},
		{"calendar.put", m{"name": "x", "dates": []string{"25.12.2027"}}, schemas.CodeBadRequest, "write year, month and day"},
		{"calendar.put", m{"name": "x", "dates": many}, schemas.CodeBadRequest, "4000"},
		{"calendar.put", m{"name": "x", "dates": []string{"2027-12-25"}, "revision": 3}, schemas.CodeConflict, "does not exist"},
		{"calendar.put", m{"name": "x", "dates": []string{"2027-12-25"}, "by": "a\nb"}, schemas.CodeBadRequest, ""},
		{"calendar.put", "[]", schemas.CodeBadRequest, "JSON object"},
		{"calendar.get", m{"name": "x"}, schemas.CodeNotFound, "no calendar x"},
		{"calendar.get", m{}, schemas.CodeBadRequest, "calendar name"},
		{"calendar.delete", m{"name": "x"}, schemas.CodeNotFound, "no calendar x"},
	} {
		err := c.call(bad.verb, bad.body, nil)
		if schemas.CodeOf(err) != bad.code || !strings.Contains(fmt.Sprint(err), bad.text) {
			t.Errorf("%s %.80v: %v; want %s with %q", bad.verb, bad.body, err, bad.code, bad.text)
		}
	}
	for attr, want := range map[string]string{
		"de-holidays":                 "there is no calendar de-holidays",
		"":                            "empty",
		"a,,b":                        "not the name of a calendar",
		"a,a":                         "named twice",
		"a b":                         "not the name of a calendar",
		"a,b,c,d,e,f,g,h,i":           "more than 8 calendars",
		strings.Repeat("x,", 130)[1:]: "bytes",
	} {
		m := structured(attrs{"id": "1", "timercron": "@daily", "timerexclude": attr}, "1")
		m.Subject = schemas.SubjectAPIPrefix + "add"
		reply, err := c.nc.RequestMsg(&nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}, bound)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(reply.Data), want) || !strings.Contains(string(reply.Data), "invalid_attribute") {
			t.Errorf("timerexclude %.40q answers %s; want %q", attr, reply.Data, want)
		}
	}
}

// TestUnreadableCalendar: while a calendar cannot be read, the schedules that exclude it wait,
// and nothing else does. Status and doctor name the calendar. After a repair the nominal times
// in between are decided.
func TestUnreadableCalendar(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	node(t, func(o *app.Options) { o.NATSURL, o.Shards = srv.ClientURL(), 1 })
	c := connect(t, srv.ClientURL())
	client, err := belfry.New(c.nc)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, name := range []string{"broken", "newer", "gone", "sound"} {
		if _, err := client.PutCalendar(t.Context(), name, []string{"2020-01-01"}); err != nil {
			t.Fatal(err)
		}
	}
	for id, exclude := range map[string]string{"broken": "broken", "both": "sound,broken", "newer": "newer", "gone": "gone", "sound": "sound", "none": ""} {
		extra := attrs{"id": id, "timersvc": id, "timercron": "* * * * * *"}
		if exclude != "" {
			extra["timerexclude"] = exclude
		}
		c.publish(structured(extra, `{}`))
	}
	for _, id := range []string{"broken", "both", "newer", "gone", "sound", "none"} {
		c.firedEvents(id, 1)
	}
	kv, err := c.js.KeyValue(t.Context(), schemas.BucketCalendars)
	if err != nil {
		t.Fatal(err)
	}
	before, err := kv.Get(t.Context(), "newer")
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"broken": "rubbish", "newer": `{"v":2,"rules":["every full moon"],"sum":1}`} {
		if _, err := kv.PutString(t.Context(), name, value); err != nil {
			t.Fatal(err)
		}
	}
	if err := kv.Delete(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	look, err := store.Look(c.nc, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer look.Close()
	set, err := look.ReadCalendars(t.Context())
	if problems := strings.Join(set.Problems(nil), "\n"); err != nil || !strings.Contains(problems, "calendar broken") || !strings.Contains(problems, "calendar newer") || strings.Contains(problems, "sound") {
		t.Errorf("the problems are %q, %v", problems, err)
	}
	findings, err := doctor.Examine(t.Context(), doctor.Options{Conn: c.nc})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"broken", "newer"} {
		if !slices.ContainsFunc(findings, func(f doctor.Finding) bool {
			return f.Check == "calendars" && f.Level == doctor.Error && strings.Contains(f.Text, "calendar "+name) && f.Do != ""
		}) {
			t.Errorf("doctor does not name calendar %s: %+v", name, findings)
		}
	}
	// Once every node has read the change, these schedules wait, and all others fire.
	count := func(id string) int { return len(c.firedEvents(id, 0)) }
	waiting := []string{"broken", "both", "newer", "gone"}
	var held map[string]int
	waittest.Until(t, "the schedules to wait", func() bool {
		held = map[string]int{}
		for _, id := range waiting {
			held[id] = count(id)
		}
		sound, none := count("sound"), count("none")
		waittest.Until(t, "the others to fire", func() bool { return count("sound") > sound+2 && count("none") > none+2 })
		for _, id := range waiting {
			if count(id) != held[id] {
				return false
			}
		}
		return true
	})
	// The owner reports the calendar that does not exist with its heartbeat.
	waittest.Until(t, "doctor to name calendar gone", func() bool {
		findings, err := doctor.Examine(t.Context(), doctor.Options{Conn: c.nc})
		return err == nil && slices.ContainsFunc(findings, func(f doctor.Finding) bool {
			return f.Check == "calendars" && f.Level == doctor.Error && strings.Contains(f.Text, "there is no calendar gone") && strings.Contains(f.Text, schemas.NewTimerID("/e2e", "gone").String())
		})
	})
	all, err := client.Calendars(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, cal := range all {
		if fails := cal.Name != "sound"; fails != (cal.Error != "") {
			t.Errorf("the list has %+v", cal)
		}
	}
	if len(all) != 3 {
		t.Errorf("the list has %d calendars, want 3: %+v", len(all), all)
	}
	c.publish(structured(attrs{"id": "one-shot", "timersvc": "one-shot", "timerafter": "10ms"}, `{}`))
	c.until("one-shot", schemas.StateSuccess)
	if err := c.call("calendar.get", map[string]any{"name": "broken"}, nil); schemas.CodeOf(err) != schemas.CodeDamaged {
		t.Errorf("get of the damaged calendar: %v", err)
	}
	if _, err := client.PutCalendar(t.Context(), "newer", []string{"2020-01-01"}); schemas.CodeOf(err) != schemas.CodeUnknownFormat {
		t.Errorf("a put over a calendar of a newer version: %v", err)
	}
	c.publish(structured(attrs{"id": "added", "timersvc": "added", "timercron": "* * * * * *", "timerexclude": "broken"}, `{}`))

	if _, err := client.PutCalendar(t.Context(), "broken", []string{"2020-01-01"}); err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Put(t.Context(), "newer", before.Value()); err != nil {
		t.Fatal(err)
	}
	if _, err := client.PutCalendar(t.Context(), "gone", []string{"2020-01-01"}); err != nil {
		t.Fatal(err)
	}
	if cluster, err := look.ReadCluster(t.Context()); err != nil {
		t.Fatal(err)
	} else if set, err := look.ReadCalendars(t.Context()); err != nil || len(set.Problems(cluster.Nodes)) > 0 {
		t.Errorf("after the repair the problems are %v, %v", set.Problems(cluster.Nodes), err)
	}
	for _, id := range waiting {
		waittest.Until(t, id+" fires again", func() bool { return count(id) > held[id] })
	}
	waittest.Until(t, "the schedule that was added meanwhile fires", func() bool { return count("added") > 0 })
	// Each nominal time since the first run is decided: the waiting ones were missed.
	for _, id := range waiting {
		var runs schemas.RunsReply
		if err := c.call("schedule.runs", schemas.RunsRequest{TimerRef: schemas.TimerRef{ID: id, Source: "/e2e"}}, &runs); err != nil {
			t.Fatal(err)
		}
		next := time.Time{}
		for i := len(runs.Decisions) - 1; i >= 0; i-- {
			d := runs.Decisions[i]
			if !next.IsZero() && !d.From.Equal(next) {
				t.Errorf("%s: %s begins at %s, after %s: %+v", id, d.Kind, d.From, next, runs.Decisions)
			}
			next = d.To.Add(time.Second)
		}
	}
}
