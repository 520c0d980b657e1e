//go:build unix

package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/chaos/check"
	"github.com/belfryio/belfry/test/proc"
)

func TestMain(m *testing.M) { os.Exit(proc.Run(m)) }

// size is the size of a run.
type size struct {
	timers, kills int
	adding        time.Duration
	retention     time.Duration
}

const (
	shortTimers, shortKills = 2000, 3
	fullTimers, fullKills   = 10_000, 5
)

// chosen returns the size of the run. BELFRY_CHAOS_SECONDS sets its duration: a third for
// adds, a third for the expiry of records, the rest for late timers and for a quiet time
// in which nothing may fire.
func chosen(t *testing.T) size {
	text := duration(t)
	if text == "" {
		retention := testsize.Choose(t, "seconds of retention", 12, 8, 12)
		return size{timers: shortTimers, kills: shortKills, adding: 5 * time.Second, retention: time.Duration(retention) * time.Second}
	}
	seconds, err := strconv.Atoi(text)
	if err != nil || seconds < 10 {
		t.Fatalf("BELFRY_CHAOS_SECONDS=%q must be a number of seconds, 10 or more", text)
	}
	whole := time.Duration(seconds) * time.Second
	return size{timers: fullTimers, kills: fullKills, adding: max(whole/3, 5*time.Second), retention: max(whole/3, 20*time.Second)}
}

// duration returns BELFRY_CHAOS_SECONDS. It skips the test if that is "later": the checks run the long form in a step of its own, so
// that they need not run the brief form as well.
func duration(t *testing.T) string {
	t.Helper()
	text := os.Getenv("BELFRY_CHAOS_SECONDS")
	if text == "later" {
		t.Skip("BELFRY_CHAOS_SECONDS=later: a later step runs this test for longer")
	}
	return text
}

func seed(t *testing.T) uint64 {
	if text := os.Getenv("BELFRY_CHAOS_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return uint64(time.Now().UnixNano())
}

// webhookSecret signs the callbacks of service chaos.
const webhookSecret = "whsec_Y2hhb3MgY2hhb3MgY2hhb3MgY2hhb3MgY2hhb3Mh"

func nodeConfig(retention time.Duration) string {
	return fmt.Sprintf("retention: %s\nsweep-delay: %s\nservices:\n  chaos:\n    secret: %s\n", retention, store.DedupWindowFor(retention), webhookSecret)
}

// TestKillNine: no acknowledged timer is lost, early or fired twice, and no cancelled
// timer fires, though the process is killed again and again.
func TestKillNine(t *testing.T) {
	t.Parallel()
	sz, sd := chosen(t), seed(t)
	t.Logf("seed %d: %d timers, %d kills, adding for %s, records kept %s", sd, sz.timers, sz.kills, sz.adding, sz.retention)
	historyPath := filepath.Join(t.TempDir(), "history.jsonl")
	history, err := os.Create(historyPath)
	if err != nil {
		t.Fatal(err)
	}
	rec := check.NewRecorder(history)
	n, c := killRun(t, rec, sd, nodeConfig(sz.retention), sz, work{spread: sz.adding/2 + time.Second})
	last, err := c.readFired(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	expired(t, n, c, rec, sz, last)
	noDamage(t, c.nc)

	events, err := rec.Events()
	if err != nil {
		t.Fatal(err)
	}
	report := check.Check(events)
	t.Logf("seed %d\n%s", sd, report)
	for i, v := range report.Violations {
		if i == 20 {
			t.Errorf("… and %d more violations", len(report.Violations)-i)
			break
		}
		t.Error(v)
	}
	if report.Acknowledged < sz.timers/5 || report.Cancelled == 0 || report.Kills <= sz.kills {
		t.Errorf("the run showed too little:\n%s", report)
	}
	if err := history.Close(); err != nil {
		t.Fatal(err)
	}
	if t.Failed() {
		keep(t, historyPath, map[string]string{"node.log": n.LogPath()})
	}
}

// TestKillNineWhileServicesRest kills the process again and again while many services
// wake and come to rest. Nothing is lost, nothing fires twice, and finally every service
// rests: no consumer is left.
func TestKillNineWhileServicesRest(t *testing.T) {
	testsize.Long(t, "kills while services rest")
	t.Parallel()
	const timers, services, kills = 1000, 60, 6
	sz := size{timers: timers, kills: kills, adding: 9 * time.Second, retention: 10 * time.Minute}
	sd := seed(t)
	t.Logf("seed %d: %d timers of %d services, %d kills", sd, timers, services, kills)
	rec := check.NewRecorder(nil)
	n, c := killRun(t, rec, sd, "service-idle: 100ms\n"+nodeConfig(sz.retention), sz, work{spread: 3 * time.Second, moves: true, services: services})
	eventually(t, time.Minute, "every service at rest", func(ctx context.Context) (bool, error) { return allRest(ctx, c) })
	if missed := metrictest.TextOf(t, n.Metrics(), "belfry_missed_timers_total"); len(missed) != 1 || missed[""] != 0 {
		t.Error("the sweeper found a missed timer")
	}
	report := conclude(t, c, rec)
	t.Logf("\n%s", report)
	fail(t, report)
	if report.Acknowledged < timers/5 || report.Cancelled == 0 || report.Kills < kills {
		t.Errorf("the run showed too little:\n%s", report)
	}
	if t.Failed() {
		keep(t, n.LogPath(), nil)
	}
}

// allRest reports whether no service has a consumer.
func allRest(ctx context.Context, c *client) (bool, error) {
	for _, name := range []string{schemas.StreamFired, schemas.StreamRetry} {
		s, err := c.js.Stream(ctx, name)
		if err != nil {
			return false, err
		}
		if n := s.CachedInfo().State.Consumers; n > 0 {
			return false, fmt.Errorf("%s has %d consumers", name, n)
		}
	}
	return true, nil
}

// noDamage checks that no node has recorded damage: a kill damages nothing.
func noDamage(t *testing.T, nc *nats.Conn) {
	t.Helper()
	look, err := store.Look(nc, wellBound)
	if err != nil {
		t.Fatal(err)
	}
	defer look.Close()
	damage, err := look.ReadDamage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range damage {
		t.Errorf("damage was recorded after a kill: %s", d.Problems())
	}
}

// killRun starts a node, lets clients add the timers of w, kills the node meanwhile, and
// waits until every timer has ended. It sets the fields of w that are the same in all
// runs.
func killRun(t *testing.T, rec *check.Recorder, sd uint64, config string, sz size, w work) (*proc.Node, *client) {
	t.Helper()
	rng := rand.New(rand.NewPCG(sd, 1))
	recv := newReceiver(t, rec, sd)
	n := proc.New(t, proc.Options{Config: config})
	n.Start()
	n.Ready(t.Context())
	c := newClient(t, rec, n.URL(), sz.retention)
	recv.serve(c.nc)
	w.source, w.count, w.adding, w.httpURL = killSource, sz.timers, sz.adding, recv.url
	w.begin = time.Now().Add(500 * time.Millisecond)
	plans := makePlans(rng, w)
	clients := make(chan struct{})
	go func() {
		defer close(clients)
		c.run(t.Context(), plans)
	}()
	killWhile(t, n, rec, rng, sz, w.begin, clients)
	<-clients
	// A timer without a callback may have fired, and its final record be lost with the process.
	// The sweeper then concludes it.
	settle(t, n, c, 2*time.Minute+store.DedupWindowFor(sz.retention))
	return n, c
}

// killWhile kills and restarts the node at random times, from the first add until the
// last timer is due. Every second kill waits until an operation has succeeded since the node
// was started, so that a slow machine carries out some, too. It stops to wait when clients
// is closed; nil if the clients operate until killWhile returns.
func killWhile(t *testing.T, n *proc.Node, rec *check.Recorder, rng *rand.Rand, sz size, begin time.Time, clients <-chan struct{}) {
	t.Helper()
	whole := sz.adding + sz.adding/2
	moments := make([]time.Duration, sz.kills)
	for i := range moments {
		// One kill in each part of the run, so that every phase is hit.
		part := whole / time.Duration(sz.kills)
		moments[i] = time.Duration(i)*part + time.Duration(rng.Int64N(int64(part)))
	}
	slices.Sort(moments)
	served := 0
	for i, m := range moments {
		pause.For(t.Context(), time.Until(begin.Add(m)))
		if i%2 == 0 {
			awaitOperation(t, rec, served, clients)
		}
		n.Kill()
		rec.Put(check.Event{Kind: check.Kill, Note: m.String()})
		served = rec.Served()
		n.Start()
		rec.Put(check.Event{Kind: check.Start})
	}
	n.Ready(t.Context())
}

// awaitOperation waits until more than served operations have succeeded, until clients is
// closed, or for 30 seconds.
func awaitOperation(t *testing.T, rec *check.Recorder, served int, clients <-chan struct{}) {
	t.Helper()
	end := time.After(30 * time.Second)
	for rec.Served() <= served {
		select {
		case <-clients:
			return
		case <-end:
			t.Log("no operation succeeded for 30 s between two kills")
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// eventually polls ok until it returns true. It reports the last error if that takes
// longer than bound.
func eventually(t *testing.T, bound time.Duration, what string, ok func(ctx context.Context) (bool, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	var last error
	for {
		one, done := context.WithTimeout(ctx, time.Minute) // to list 30,000 timers of three replicas
		yes, err := ok(one)
		inTime := one.Err() == nil
		done()
		if yes && err == nil {
			return
		}
		if err == nil || last == nil || inTime {
			last = err // rather than that the time was up
		}
		if !pause.For(ctx, 100*time.Millisecond) {
			t.Fatalf("waited %s in vain: %s (last error: %v)", bound, what, last)
		}
	}
}

// settle waits until no timer is pending, delivered or retrying. If that takes a quarter of
// bound, it logs the records of the timers that are left.
func settle(t *testing.T, n *proc.Node, c *client, bound time.Duration) {
	t.Helper()
	n.Ready(t.Context())
	late := time.AfterFunc(bound/4, func() { c.overdue(t.Context()) })
	defer late.Stop()
	eventually(t, bound, "every timer concluded", func(ctx context.Context) (bool, error) {
		left, err := c.pending(ctx)
		return left == 0, err
	})
}

// expired waits until every record has expired, kills the node once more, and checks that
// nothing comes back: no record, no event, no callback. A timer that is added afterwards
// fires, which shows that the node works.
func expired(t *testing.T, n *proc.Node, c *client, rec *check.Recorder, sz size, last uint64) {
	t.Helper()
	gone := func(ctx context.Context) (bool, error) {
		left, err := c.records(ctx)
		return left == 0, err
	}
	eventually(t, sz.retention+time.Minute, "every record expired", gone)
	rec.Put(check.Event{Kind: check.Done})
	n.Kill()
	rec.Put(check.Event{Kind: check.Kill, Note: "after all was over"})
	n.Start()
	n.Ready(t.Context())
	if left, err := c.records(t.Context()); err != nil || left != 0 {
		t.Errorf("%d records are back after the kill (%v)", left, err)
	}
	// When the sweepers have passed this time, they have examined everything before it.
	restarted := time.Now().UnixMilli()
	// They stay the sweep delay behind.
	eventually(t, store.DedupWindowFor(sz.retention)+time.Minute, "the sweeper past the restart", func(ctx context.Context) (bool, error) { return swept(ctx, c, restarted) })
	if missed := metrictest.TextOf(t, n.Metrics(), "belfry_missed_timers_total"); len(missed) != 1 || missed[""] != 0 {
		t.Error("the sweeper found a missed timer")
	}
	proof := plan{source: killSource, id: "proof", service: "chaos", dueMs: time.Now().UnixMilli() + 300, via: "api", data: `"proof"`}
	eventually(t, time.Minute, "an add after the last kill", func(ctx context.Context) (bool, error) {
		err := c.request(ctx, proof.message(schemas.SubjectAPIPrefix+"add"))
		return err == nil, err
	})
	eventually(t, time.Minute, "one more timer fired", func(ctx context.Context) (bool, error) {
		s, err := c.js.Stream(ctx, schemas.StreamFired)
		return err == nil && s.CachedInfo().State.LastSeq > last, err
	})
	s, err := c.js.Stream(t.Context(), schemas.StreamFired)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.CachedInfo().State.LastSeq; got != last+1 {
		t.Errorf("%d events fired after every record had expired, want only that of the timer added since", got-last)
	}
	if left, err := c.records(t.Context()); err != nil || left > 1 {
		t.Errorf("%d records, want at most that of the last timer (%v)", left, err)
	}
}

// swept reports whether every shard's sweeper has passed a time.
func swept(ctx context.Context, c *client, ms int64) (bool, error) {
	return everyClock(ctx, c, func(clock *store.Clock) bool { return clock.SweptMs >= ms })
}

// everyClock reports whether ok accepts the clock of every shard.
func everyClock(ctx context.Context, c *client, ok func(*store.Clock) bool) (bool, error) {
	kv, err := c.js.KeyValue(ctx, schemas.BucketClock)
	if err != nil {
		return false, err
	}
	for shard := range schemas.DefaultShards {
		e, err := kv.Get(ctx, fmt.Sprintf("clock.%d", shard))
		if err != nil {
			return false, err
		}
		var clock store.Clock
		if err := json.Unmarshal(e.Value(), &clock); err != nil {
			return false, err
		}
		if !ok(&clock) {
			return false, fmt.Errorf("the clock of shard %d is %+v", shard, clock)
		}
	}
	return true, nil
}

func decode(m *nats.Msg, v any) error {
	if code := m.Header.Get(micro.ErrorCodeHeader); code != "" {
		return &schemas.Error{Code: schemas.Code(code), Msg: m.Header.Get(micro.ErrorHeader)}
	}
	return json.Unmarshal(m.Data, v)
}

// keep saves the history and the logs of a run in a folder that outlives the test.
func keep(t *testing.T, history string, logs map[string]string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "belfry-chaos-")
	if err != nil {
		t.Error(err)
		return
	}
	files := maps.Clone(logs)
	if files == nil {
		files = map[string]string{}
	}
	files["history.jsonl"] = history
	for name, path := range files {
		b, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), b, 0o600)
		}
		if err != nil {
			t.Error(err)
		}
	}
	t.Logf("history and logs are kept in %s", dir)
}
