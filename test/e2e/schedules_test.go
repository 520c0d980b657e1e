//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// runOf returns the first answer to a get request for a run of a schedule of source /e2e.
func (c *client) runOf(id string, run uint32) (schemas.TimerInfo, error) {
	return c.get(schemas.TimerRef{Timer: schemas.RunID{Timer: timerID(id), Run: run}.String()})
}

// untilRun waits for a run to reach a state.
func (c *client) untilRun(id string, run uint32, want schemas.State) schemas.TimerInfo {
	c.t.Helper()
	var i schemas.TimerInfo
	var err error
	waittest.Until(c.t, fmt.Sprintf("run %d of %s is %s", run, id, want), func() bool {
		i, err = c.runOf(id, run)
		return err == nil && i.State == want
	}, func() string { return fmt.Sprintf("%+v %v", i, err) })
	return i
}

// attemptsOf returns the number of calls that a callee got for a run.
func (c *callee) attemptsOf(id string, run uint32) (n int) {
	for _, call := range c.of(id) {
		if call.key == (schemas.RunID{Timer: timerID(id), Run: run}).String() {
			n++
		}
	}
	return n
}

// TestReplacedRun: with timeroverlap replace, a run whose callback has no result when the next
// one is due gets no further attempt, and its record names the run that replaced it. The callee
// of "slow" works until then, that of "retry" has failed once, and so has the NATS responder
// of "nats".
func TestReplacedRun(t *testing.T) {
	t.Parallel()
	c := connect(t, node(t, nil).NATSURL())
	first := func(id string) string { return timerID(id).String() + ".1" }
	release := make(chan struct{})
	var once sync.Once
	defer once.Do(func() { close(release) })
	slow := newCallee(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") == first("slow") {
			<-release
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	broken := newCallee(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") == first("retry") {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	asked := make(chan string, 64)
	if _, err := c.nc.Subscribe("replaced.work", func(m *nats.Msg) {
		key := m.Header.Get("Idempotency-Key")
		asked <- key
		answer := &nats.Msg{Header: nats.Header{}}
		if key == first("nats") {
			answer.Header.Set("Nats-Service-Error-Code", "500")
			answer.Header.Set("Nats-Service-Error", "broken")
		}
		if err := m.RespondMsg(answer); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := c.nc.FlushTimeout(bound); err != nil {
		t.Fatal(err)
	}
	add := func(id, callback, backoff string) {
		c.publish(structured(attrs{
			"id": id, "timersvc": id, "timerevery": "10s", "timerlimit": "2", "timeroverlap": "replace", "timercallback": callback,
			"timermaxattempts": "5", "timerbackoff": backoff, "timertimeout": "2m",
		}, `{}`))
	}
	add("slow", slow.url, "100ms")
	add("retry", broken.url, "1h")
	add("nats", "nats:replaced.work", "1h")

	replaced := func(i schemas.TimerInfo) bool {
		return len(i.History) == 1 && i.History[0].Op == "cancel" && i.History[0].By == "belfry: replaced by run 2"
	}
	for _, id := range []string{"retry", "nats"} {
		if i := c.untilRun(id, 1, schemas.StateCancelled); !replaced(i) || i.Attempts != 1 || i.Outcome == nil || i.Outcome.Code != 500 {
			t.Errorf("the replaced run of %s: %+v", id, i)
		}
	}
	var i schemas.TimerInfo
	waittest.Until(t, "the slow run is replaced", func() bool {
		var err error
		i, err = c.runOf("slow", 1)
		return err == nil && replaced(i)
	}, func() string { return fmt.Sprintf("%+v", i) })
	once.Do(func() { close(release) })
	if i = c.untilRun("slow", 1, schemas.StateFail); !replaced(i) || i.Attempts != 1 {
		t.Errorf("the replaced slow run: %+v", i)
	}

	for _, id := range []string{"slow", "retry", "nats"} {
		c.untilRun(id, 2, schemas.StateSuccess)
		c.until(id, schemas.StateCompleted)
	}
	if n := slow.attemptsOf("slow", 1); n != 1 {
		t.Errorf("the replaced slow run had %d attempts", n)
	}
	if n := broken.attemptsOf("retry", 1); n != 1 {
		t.Errorf("the replaced run that waited for a retry had %d attempts", n)
	}
	if a, b := <-asked, <-asked; a != first("nats") || b != timerID("nats").String()+".2" || len(asked) > 0 {
		t.Errorf("the responder was asked for %s, %s and %d others", a, b, len(asked))
	}
}

// TestSkippedMetric: belfry_schedule_skipped_total counts each nominal time that does not fire,
// by the reason that the schedules record.
func TestSkippedMetric(t *testing.T) {
	t.Parallel()
	a := node(t, nil)
	c := connect(t, a.NATSURL())
	release := make(chan struct{})
	var once sync.Once
	defer once.Do(func() { close(release) })
	slow := newCallee(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		if key := r.Header.Get("Idempotency-Key"); strings.HasSuffix(key, ".1") {
			<-release
		}
	})
	skipped := func() map[string]float64 { return metrictest.Of(t, a.Registry(), "belfry_schedule_skipped_total") }
	if got := skipped(); got["overlap"] != 0 || got["paused"] != 0 || len(got) < 8 {
		t.Fatalf("a new node has the counters %v", got)
	}
	ids := map[string]string{"overlap": "skip", "queue": "queue", "paused": "skip"}
	for id, overlap := range ids {
		extra := attrs{"id": id, "timersvc": id, "timerevery": "1s", "timeroverlap": overlap, "timercallback": slow.url, "timertimeout": "2m"}
		if id == "paused" {
			delete(extra, "timercallback")
			delete(extra, "timertimeout")
		}
		c.publish(structured(extra, `{}`))
		c.until(id, schemas.StatePending)
	}
	var info schemas.TimerInfo
	if err := c.call("schedule.pause", schemas.PauseRequest{TimerRef: schemas.TimerRef{ID: "paused", Source: "/e2e"}}, &info); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "runs are skipped for the open one", func() bool {
		got := skipped()
		return got["overlap"] >= 2 && got["queue"] >= 2
	})
	once.Do(func() { close(release) })
	if err := c.call("schedule.resume", schemas.ResumeRequest{TimerRef: schemas.TimerRef{ID: "paused", Source: "/e2e"}, CatchUp: "skip"}, &info); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the pause is decided", func() bool { return skipped()["paused"] > 0 })
	for id := range ids {
		if err := c.call("cancel", schemas.TimerRef{ID: id, Source: "/e2e"}, &info); err != nil {
			t.Fatal(err)
		}
	}
	c.countedAsRecorded(ids, skipped, "overlap", "queue", "paused")
}

// countedAsRecorded waits until the counters by reason are those of the decisions that
// schedules have recorded, with some of each of these kinds.
func (c *client) countedAsRecorded(ids map[string]string, skipped func() map[string]float64, kinds ...string) {
	c.t.Helper()
	want := map[string]float64{}
	for id := range ids {
		var page schemas.RunsReply
		if err := c.call("schedule.runs", schemas.RunsRequest{TimerRef: schemas.TimerRef{ID: id, Source: "/e2e"}}, &page); err != nil {
			c.t.Fatal(err)
		}
		for _, d := range page.Decisions {
			want[d.Kind] += float64(d.Count)
		}
	}
	for _, kind := range kinds {
		if want[kind] == 0 {
			c.t.Errorf("no nominal time was skipped as %s: %v", kind, want)
		}
	}
	var got map[string]float64
	waittest.Until(c.t, "the counters are those of the records", func() bool {
		got = skipped()
		for kind := range got {
			if got[kind] != want[kind] {
				return false
			}
		}
		return true
	}, func() string { return fmt.Sprintf("%v, recorded %v", got, want) })
}

// TestSkippedMetricAfterOutage: nominal times that were missed in an outage, that an update
// replaces, that wait when the schedule is cancelled, and that calendars exclude, are counted
// with their reasons, whether a scheduler or a router decides them.
func TestSkippedMetricAfterOutage(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	join := func() *app.App { return node(t, func(o *app.Options) { o.NATSURL = srv.ClientURL() }) }
	first := join()
	c := connect(t, srv.ClientURL())
	if err := c.call("calendar.put", schemas.CalendarPutRequest{Name: "today", Dates: append(today(), "2020-01-01")}, &schemas.CalendarPutReply{}); err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	defer close(release)
	slow := newCallee(t, func(int, http.ResponseWriter, *http.Request) { <-release })
	ids := map[string]string{}
	add := func(id string, extra attrs) {
		extra["id"], extra["timersvc"] = id, id
		if extra["timercron"] == "" {
			extra["timerevery"] = "1s"
		}
		c.publish(structured(extra, `{}`))
		c.until(id, schemas.StatePending)
		ids[id] = ""
	}
	add("coalesced", attrs{})
	add("misfire", attrs{"timermisfire": "skip"})
	add("grace", attrs{"timergrace": "1s"})
	add("updated", attrs{})
	add("cancelled", attrs{"timeroverlap": "queue", "timercallback": slow.url, "timertimeout": "2m"})
	add("excluded", attrs{"timercron": "* * * * * *", "timerexclude": "today"})
	for _, id := range []string{"coalesced", "misfire", "grace", "updated", "cancelled"} {
		c.firedEvents(id, 1)
	}
	ref := func(id string) schemas.TimerRef { return schemas.TimerRef{ID: id, Source: "/e2e"} }
	var info schemas.TimerInfo
	if err := c.call("schedule.pause", schemas.PauseRequest{TimerRef: ref("updated")}, &info); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "a run waits", func() bool {
		info, err := c.info("cancelled")
		return err == nil && !info.Schedule.Waiting.IsZero()
	})
	stop(t, first)
	down := time.Now().Add(4 * time.Second)
	waittest.Until(t, "some seconds pass", func() bool { return time.Now().After(down) })
	second := join()
	waittest.Until(t, "the outage is decided", func() bool {
		got := metrictest.Of(t, second.Registry(), "belfry_schedule_skipped_total")
		return got["coalesced"] > 0 && got["misfire"] > 0 && got["grace"] > 0
	})
	update := structured(attrs{"id": "updated", "timersvc": "updated", "timerevery": "2s"}, `{}`)
	update.Subject = schemas.SubjectAPIPrefix + "schedule.update"
	if err := c.callMsg(update, &schemas.UpdateReply{}); err != nil {
		t.Fatal(err)
	}
	later := structured(attrs{"id": "excluded", "timersvc": "excluded", "timercron": "*/2 * * * * *", "timerexclude": "today"}, `{}`)
	later.Subject = schemas.SubjectAPIPrefix + "schedule.update"
	if err := c.callMsg(later, &schemas.UpdateReply{}); err != nil {
		t.Fatal(err)
	}
	for id := range ids {
		if err := c.call("cancel", ref(id), &info); err != nil {
			t.Fatal(err)
		}
	}
	c.countedAsRecorded(ids, func() map[string]float64 {
		all := metrictest.Of(t, first.Registry(), "belfry_schedule_skipped_total")
		for kind, n := range metrictest.Of(t, second.Registry(), "belfry_schedule_skipped_total") {
			all[kind] += n
		}
		return all
	}, "coalesced", "misfire", "grace", "updated", "cancelled", "excluded")
}
