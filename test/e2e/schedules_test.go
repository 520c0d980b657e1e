//go:build unix

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// runOf returns the record of a run of a schedule of source /e2e.
func (c *client) runOf(id string, run uint32) (schemas.TimerInfo, error) {
	var i schemas.TimerInfo
	return i, c.call("get", schemas.TimerRef{Timer: schemas.RunID{Timer: timerID(id), Run: run}.String()}, &i)
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
			"id": id, "timersvc": id, "timerevery": "1s", "timerlimit": "2", "timeroverlap": "replace", "timercallback": callback,
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
	a := node(t, func(o *app.Options) { o.HTTP = "127.0.0.1:0" })
	c := connect(t, a.NATSURL())
	release := make(chan struct{})
	var once sync.Once
	defer once.Do(func() { close(release) })
	slow := newCallee(t, func(_ int, _ http.ResponseWriter, r *http.Request) {
		if key := r.Header.Get("Idempotency-Key"); strings.HasSuffix(key, ".1") {
			<-release
		}
	})
	skipped := func() map[string]int {
		resp, err := http.Get("http://" + a.HTTPAddr() + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int{}
		for line := range strings.Lines(string(b)) {
			var n int
			text, ok := strings.CutPrefix(line, `belfry_schedule_skipped_total{reason="`)
			reason, value, _ := strings.Cut(text, `"} `)
			if _, err := fmt.Sscan(value, &n); ok && err == nil {
				got[reason] = n
			}
		}
		return got
	}
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
	want := map[string]int{}
	for id := range ids {
		var page schemas.RunsReply
		if err := c.call("schedule.runs", schemas.RunsRequest{TimerRef: schemas.TimerRef{ID: id, Source: "/e2e"}}, &page); err != nil {
			t.Fatal(err)
		}
		for _, d := range page.Decisions {
			want[d.Kind] += int(d.Count)
		}
	}
	delete(want, "fired")
	var got map[string]int
	waittest.Until(t, "the counters are those of the records", func() bool {
		got = skipped()
		for kind, n := range want {
			if got[kind] != n && kind != "cancelled" {
				return false
			}
		}
		return want["overlap"] > 0 && want["queue"] > 0 && want["paused"] > 0
	}, func() string { return fmt.Sprintf("%v, recorded %v", got, want) })
}
