//go:build unix

package chaos

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/chaos/check"
)

// Rates and durations of TestChaos.
const (
	clusterSource = "/chaos/cluster"
	// perSecond is the rate of adds. It is low, because servers, nodes and clients share
	// the machine, and the test looks for lost timers, not for throughput.
	perSecond     = 100
	clusterSpread = 8 * time.Second // due times are at most this far ahead
	// In the plain test suite.
	briefLoad   = 13 * time.Second
	briefSpread = 2 * time.Second
	// calm is the least time between two faults.
	calm = 2 * time.Second
	// concludeBound bounds the time from the last fault until every timer has ended. A timer without
	// a callback whose final record is lost with its node is concluded by the sweeper.
	concludeBound = clusterSweepDelay + 2*time.Minute
	// concludeSoon is the usual time; when it has passed, the test logs what is missing.
	concludeSoon = 6 * time.Second
)

// TestChaos: no acknowledged timer is lost, early, or fired twice while servers and nodes
// fail one after another, and every shard fires again within the promised time.
func TestChaos(t *testing.T) {
	sd := seed(t)
	load, spread, brief := briefLoad, briefSpread, true
	if text := duration(t); text != "" {
		seconds, err := strconv.Atoi(text)
		if err != nil || seconds < 10 {
			t.Fatalf("BELFRY_CHAOS_SECONDS=%q must be a number of seconds, 10 or more", text)
		}
		load, spread, brief = time.Duration(seconds)*time.Second, clusterSpread, false
	}
	if brief { // it does not judge the times of fail-over
		t.Parallel()
	}
	t.Logf("seed %d: %s of faults, %d servers, %d nodes, replicas %d, %d timers/s", sd, load, serverCount, nodeCount, replicas, perSecond)
	historyPath := filepath.Join(t.TempDir(), "history.jsonl")
	history, err := os.Create(historyPath)
	if err != nil {
		t.Fatal(err)
	}
	logs := map[string]string{}
	defer func() {
		if err := history.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() || os.Getenv("BELFRY_CHAOS_KEEP") != "" {
			keep(t, historyPath, logs)
		}
	}()
	stalled := watchStalls(t)
	rec := check.NewRecorder(history)
	rec.Begin()
	recv := newReceiver(t, rec, sd)
	const retention = 10 * time.Minute
	cl := newCluster(t, rec, retention)
	cl.logPaths(logs)
	cl.start()
	c := newClient(t, rec, cl.url(), retention)
	c.useSDK()
	c.useClient()
	recv.serve(c.nc)
	stopWork := recv.work(cl.url())
	stopOperations := c.operate(t)

	rng := rand.New(rand.NewPCG(sd, 1))
	calendars := c.makeCalendars(t, rng)
	begin := time.Now().Add(200 * time.Millisecond)
	plans := makePlans(rng, work{
		source: clusterSource, count: int(load.Seconds()) * perSecond, begin: begin, adding: load, spread: spread,
		httpURL: recv.url, moves: true, sdk: true, services: clusterServices, client: true,
	})
	all := c.makeSchedules(rng, scheduleWork{
		count: clusterSchedules, begin: begin, whole: load, every: 5, httpURL: recv.url, worker: true, operated: 1, calendars: usedCalendars,
	})
	clients := make(chan struct{})
	go func() {
		defer close(clients)
		c.run(t.Context(), plans)
	}()
	stopSchedules := c.schedules(t, all)
	stopCalendars := changeCalendars(t, calendars)
	r := &rounds{cluster: cl, rng: rand.New(rand.NewPCG(sd, 3))}
	if brief {
		r.brief(begin)
	} else {
		r.until(begin.Add(load))
	}
	<-clients
	stopSchedules()
	stopCalendars()
	invalid := stopOperations()
	c.endSchedules(t, all, calendars, cl.passed)
	c.replayAll(concludeBound + load)
	c.allRejected(invalid)
	report := judge(t, cl, c, rec, r.last)
	shownEnough(t, &report.Schedules, clusterSchedules)
	stopWork()
	if brief {
		// The machine is shared with the tests of other packages: log the times of
		// fail-over, but check them only in the long run.
		return
	}
	judgeTimes(t, report, stalled.max())
}

// brief makes two faults: it kills a node and a server.
func (r *rounds) brief(begin time.Time) {
	pause.For(r.t.Context(), time.Until(begin.Add(calm)))
	for _, name := range []string{"node-kill", "server-kill"} {
		f := kindNamed(name)
		f.most = f.least + time.Second
		r.make(f)
		pause.For(r.t.Context(), calm)
	}
}

// until makes faults until end.
func (r *rounds) until(end time.Time) {
	next := r.drawn()
	for {
		if !pause.For(r.t.Context(), calm+time.Duration(r.rng.Int64N(int64(calm)))) || time.Now().After(end) {
			return
		}
		r.make(next())
	}
}

// conclude waits until the API lists no open timer, and has the history checked.
func conclude(t *testing.T, c *client, rec *check.Recorder) *check.Report {
	t.Helper()
	return concludeBy(t, c, rec, c.pending)
}

// concludeBy waits until pending returns 0, reads the events that fired, and has the
// history checked.
func concludeBy(t *testing.T, c *client, rec *check.Recorder, pending func(context.Context) (int, error)) *check.Report {
	t.Helper()
	late := time.AfterFunc(concludeSoon, func() { c.overdue(t.Context()) })
	defer late.Stop()
	eventually(t, concludeBound, "every timer concluded", func(ctx context.Context) (bool, error) {
		left, err := pending(ctx)
		return left == 0, err
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := c.readFired(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if err := c.readOverdue(ctx); err != nil {
		t.Fatal(err)
	}
	rec.Put(check.Event{Kind: check.Done})
	events, err := rec.Events()
	if err != nil {
		t.Fatal(err)
	}
	return check.Check(events)
}

// fail reports the violations, at most 20 of them in full.
func fail(t *testing.T, report *check.Report) {
	t.Helper()
	for i, v := range report.Violations {
		if i == 20 {
			t.Errorf("… and %d more", len(report.Violations)-i)
			return
		}
		t.Error(v)
	}
}

// judge waits for the end of a run and fails the test if the history has violations, or
// the run showed too little.
func judge(t *testing.T, cl *cluster, c *client, rec *check.Recorder, made int) *check.Report {
	t.Helper()
	report := conclude(t, c, rec)
	t.Logf("report of %d timers/s\n%s\nthe nodes' warnings and errors, by count\n%s", perSecond, report, cl.logs(t))
	fail(t, report)
	if made == 0 || report.Acknowledged < report.Added/2 || report.Cancelled == 0 || report.Moved == 0 {
		t.Errorf("the run showed too little: %d faults\n%s", made, report)
	}
	for i := range schemas.DefaultShards {
		if s, err := c.js.Stream(t.Context(), shardStream(i)); err != nil || s.CachedInfo().Config.Replicas != replicas {
			t.Errorf("%s does not have %d replicas (%v)", shardStream(i), replicas, err)
		}
	}
	return report
}

// judgeTimes compares fail-over times with the promised bounds, plus the time for which
// the machine stopped every process.
func judgeTimes(t *testing.T, report *check.Report, stall time.Duration) {
	t.Helper()
	t.Logf("the machine's longest stall: %s", stall.Round(time.Millisecond))
	for _, k := range report.Faults.Kinds {
		f := kindNamed(k.Name)
		if f.bound > 0 && k.Max() >= (f.bound+stall).Milliseconds() {
			t.Errorf("%s: fail-over took %d ms; the bound is %s", k.Name, k.Max(), f.bound)
		}
		if f.after > 0 && k.MaxAfter() >= (f.after+stall).Milliseconds() {
			t.Errorf("%s: fail-over took %d ms more than elections; the bound is %s", k.Name, k.MaxAfter(), f.after)
		}
		if k.Never > 0 {
			t.Errorf("%s: %d shards fired nothing until the next fault", k.Name, k.Never)
		}
	}
}
