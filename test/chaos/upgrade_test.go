//go:build unix

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/chaos/check"
	"github.com/belfryio/belfry/test/proc"
)

// Bounds of a rolling upgrade.
const (
	upgradeNodes = 3
	// upgradeWave is the length of one part of the load.
	upgradeWave = 2 * time.Second
	// upgradeSpread exceeds the horizon of upgradeConfig, so that one build reads index
	// entries that another build has written.
	upgradeSpread = 3 * time.Second
	// upgradeFired is the least number of events in each phase.
	upgradeFired = 100
	// upgradeSchedules is the number of schedules that fire meanwhile, each every second or two.
	upgradeSchedules = 24
	// upgradeProbes is the number of timers that are added after the format level fell.
	upgradeProbes = 60
	// levelBound exceeds the lifetime of a presence key, after which the nodes forget a
	// node that has stopped, and the time between the change of the layout version and
	// the first record of its format.
	levelBound = 3 * time.Minute
)

// upgradeConfig is the nodes' configuration.
var upgradeConfig = fmt.Sprintf("allow-loopback: true\nlease: 3s\nhorizon: 2s\nsweep-delay: %s\n", clusterSweepDelay)

// TestRollingUpgrade replaces three old nodes by new ones, one after the other, and then
// one new node by an old one, while timers are added, cancelled and rescheduled and
// become due, and schedules fire that exclude calendars and expect successes. Nothing is lost,
// early or fired twice, and each nominal time is decided once. The nodes write a newer format
// only while no old node lives.
//
// Two pairs of builds take part. The first needs no history: the old nodes are this
// build, and the new nodes read one format level more. The second pair is the program
// that BELFRY_OLD names and this build (.ci/upgrade builds the former from a commit).
func TestRollingUpgrade(t *testing.T) {
	t.Run("next level", func(t *testing.T) {
		testsize.Long(t, "three nodes are replaced under load")
		next := proc.Options{Bin: proc.BuildLevel(t), Env: proc.LevelEnv(store.LevelTest)}
		rollingUpgrade(t, proc.Options{}, next, true)
	})
	old := os.Getenv("BELFRY_OLD")
	if old == "" {
		t.Log("ONLY THE UPGRADE TO THE NEXT FORMAT LEVEL WAS TESTED: BELFRY_OLD names no program of an earlier commit (.ci/upgrade COMMIT builds one)")
		return
	}
	t.Run("earlier build", func(t *testing.T) { rollingUpgrade(t, proc.Options{Bin: old}, proc.Options{}, false) })
}

// upgrade is a cluster whose nodes are replaced.
type upgrade struct {
	t         *testing.T
	server    *proc.Server
	c         *client
	look      *store.View
	old, next proc.Options
	// forget makes the other nodes forget a killed node at once, and not a minute later. A
	// node that stops in an orderly way removes its presence itself.
	forget bool
	nodes  []*upgradeNode
}

// upgradeNode is a node with its name in the cluster.
type upgradeNode struct {
	*proc.Node
	name string
}

func rollingUpgrade(t *testing.T, old, next proc.Options, forget bool) {
	sd := seed(t)
	rng := rand.New(rand.NewPCG(sd, 1))
	historyPath := filepath.Join(t.TempDir(), "history.jsonl")
	history, err := os.Create(historyPath)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := history.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			keep(t, historyPath, nil)
		}
	}()
	rec := check.NewRecorder(history)
	rec.Begin()
	recv := newReceiver(t, rec, sd)
	u := newUpgrade(t, old, next, forget)
	for range upgradeNodes {
		u.nodes = append(u.nodes, u.start(u.old))
	}
	u.c = newClient(t, rec, u.server.URL(), store.DefaultRetention)
	u.c.useSDK()
	recv.serve(u.c.nc)
	before := u.formats()
	t.Logf("seed %d: the old nodes read format level %d", sd, before.Level)
	stop := u.load(rng, recv.url)
	defer stop()
	endSchedules := u.schedules(rng, recv.url, before)
	u.fires()

	for i, how := range []ending{stopped, killed, stopped} {
		u.onlyWritten(before.Record)
		u.replace(i, u.next, how)
		u.fires()
	}
	after := u.levelRises(before)
	t.Logf("the new nodes read format level %d", after.Level)
	switch {
	case before.Level < store.LevelRecord2:
		u.refused()
	case before.Level < after.Level:
		u.replace(0, u.old, stopped)
		u.fires()
		u.levelFalls(before)
		u.probe(rng, recv.url, before.Record)
	default:
		u.replace(0, u.old, stopped)
		u.fires()
	}
	stop()
	endSchedules()

	report := concludeBy(t, u.c, rec, u.pending)
	t.Logf("\n%s", report)
	fail(t, report)
	if p := &report.Schedules; before.Level >= store.LevelSchedules && (p.Judged < 5*upgradeSchedules || p.Kinds[schemas.DecisionExcluded] == 0 || p.Deadlines == 0) {
		t.Errorf("the run showed too little of schedules: %+v", *p)
	}
	if report.Acknowledged < report.Added*9/10 || report.Cancelled == 0 || report.Moved == 0 {
		t.Errorf("too few operations succeeded")
	}
	u.released()
}

func newUpgrade(t *testing.T, old, next proc.Options, forget bool) *upgrade {
	t.Helper()
	u := &upgrade{t: t, old: old, next: next, forget: forget, server: proc.NewServers(t, 1)[0]}
	u.server.Start()
	if err := u.server.WaitHealthy(t.Context(), wellBound); err != nil {
		t.Fatal(err)
	}
	var err error
	if u.look, err = store.Look(dial(t, u.server.URL()), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.look.Close)
	return u
}

// prepare makes a node that is not started yet.
func (u *upgrade) prepare(o proc.Options) *proc.Node {
	o.NATSURL, o.Config = u.server.URL(), upgradeConfig
	return proc.New(u.t, o)
}

// start starts a node and waits until it is ready.
func (u *upgrade) start(o proc.Options) *upgradeNode {
	u.t.Helper()
	n := &upgradeNode{Node: u.prepare(o)}
	n.Start()
	n.Ready(u.t.Context())
	var err error
	if n.name, err = n.Name(u.t.Context()); err != nil {
		u.t.Fatal(err)
	}
	return n
}

// replace ends a node and starts another in its place.
func (u *upgrade) replace(i int, o proc.Options, how ending) {
	u.t.Helper()
	u.end(i, how)
	u.nodes[i] = u.start(o)
}

// ending says how a node ends.
type ending int

const (
	stopped ending = iota // by SIGTERM
	killed                // by SIGKILL
)

// end ends a node.
func (u *upgrade) end(i int, how ending) {
	u.t.Helper()
	n := u.nodes[i]
	if how == killed {
		n.Kill()
	} else {
		n.Terminate()
	}
	if !u.forget {
		return
	}
	kv, err := u.c.js.KeyValue(u.t.Context(), schemas.BucketClock)
	if err != nil {
		u.t.Fatal(err)
	}
	key := "node." + n.name
	if how == killed {
		if err := kv.Delete(u.t.Context(), key); err != nil {
			u.t.Fatal(err)
		}
		return
	}
	eventually(u.t, wellBound, "no presence of the stopped node", func(ctx context.Context) (bool, error) {
		e, err := kv.Get(ctx, key)
		switch {
		case errors.Is(err, jetstream.ErrKeyNotFound):
			return true, nil
		case err != nil:
			return false, err
		}
		return false, fmt.Errorf("revision %d: %s", e.Revision(), e.Value())
	})
}

// load adds, cancels and reschedules timers until the returned function is called. That
// function returns when all of them have been added, cancelled and rescheduled.
func (u *upgrade) load(rng *rand.Rand, url string) (stop func()) {
	ended := make(chan struct{})
	var done sync.WaitGroup
	rng = rand.New(rand.NewPCG(rng.Uint64(), 1))
	done.Go(func() {
		for wave := 0; ; wave++ {
			begin := time.Now()
			plans := u.plans(rng, fmt.Sprintf("/chaos/upgrade/%d", wave), int(upgradeWave.Seconds())*perSecond, url)
			done.Go(func() { u.c.run(u.t.Context(), plans) })
			select {
			case <-ended:
				return
			case <-u.t.Context().Done():
				return
			case <-time.After(time.Until(begin.Add(upgradeWave))):
			}
		}
	})
	return sync.OnceFunc(func() { close(ended); done.Wait() })
}

func (u *upgrade) plans(rng *rand.Rand, source string, count int, url string) []plan {
	return makePlans(rng, work{
		source: source, count: count, begin: time.Now(), adding: upgradeWave, spread: upgradeSpread, httpURL: url, moves: true, sdk: true,
	})
}

// schedules adds schedules, if the old nodes know them, and changes the calendars that they
// exclude, until the returned function is called. That function deletes the schedules.
func (u *upgrade) schedules(rng *rand.Rand, url string, before store.Formats) (end func()) {
	u.t.Helper()
	if before.Level < store.LevelSchedules {
		return func() {}
	}
	u.c.useClient()
	rng = rand.New(rand.NewPCG(rng.Uint64(), 2))
	calendars := u.c.makeCalendars(u.t, rng)
	all := u.c.makeSchedules(rng, scheduleWork{
		count: upgradeSchedules, begin: time.Now(), whole: time.Minute, every: 2, httpURL: url, operated: upgradeSchedules, calendars: usedCalendars,
	})
	stop, stopCalendars := u.c.schedules(u.t, all), changeCalendars(u.t, calendars)
	return func() {
		stop()
		stopCalendars()
		u.c.endSchedules(u.t, all, calendars, func(at time.Time) { u.c.watermarksPast(u.t, at) })
	}
}

// fires waits until upgradeFired more timers have fired.
func (u *upgrade) fires() {
	u.t.Helper()
	fired := func(ctx context.Context) (uint64, error) {
		s, err := u.c.js.Stream(ctx, schemas.StreamFired)
		if err != nil {
			return 0, err
		}
		return s.CachedInfo().State.LastSeq, nil
	}
	var from uint64
	eventually(u.t, wellBound, fmt.Sprintf("%d timers fired", upgradeFired), func(ctx context.Context) (bool, error) {
		n, err := fired(ctx)
		if from == 0 {
			from = n + 1
		}
		return err == nil && n >= from+upgradeFired, err
	})
}

// formats returns the formats that the nodes write together.
func (u *upgrade) formats() store.Formats {
	u.t.Helper()
	cl, err := u.look.ReadCluster(u.t.Context())
	if err != nil {
		u.t.Fatal(err)
	}
	return store.FormatsOf(cl.Nodes)
}

// levelRises waits until the nodes write the newest format that they read.
func (u *upgrade) levelRises(before store.Formats) store.Formats {
	u.t.Helper()
	var f store.Formats
	eventually(u.t, levelBound, "the newest format level", func(context.Context) (bool, error) {
		if f = u.formats(); len(f.HeldBackBy) > 0 {
			return false, fmt.Errorf("%+v", f)
		}
		return true, nil
	})
	if f.Level < before.Level {
		u.t.Fatalf("the new nodes read format level %d, and the old nodes %d", f.Level, before.Level)
	}
	if f.Record != before.Record {
		// Each node reads the others' presence every two seconds. A node that reads it late
		// must do so before the older node starts: otherwise its level never rises.
		u.allWrite(u.nodes, f.Level)
		eventually(u.t, levelBound, fmt.Sprintf("records of format %d", f.Record), func(ctx context.Context) (bool, error) {
			n, err := u.written(ctx)
			return n[f.Record] >= upgradeFired, err
		})
	}
	return f
}

// levelFalls waits until every new node knows that an old node lives.
func (u *upgrade) levelFalls(before store.Formats) {
	u.t.Helper()
	if f := u.formats(); f.Level != before.Level || !slices.Equal(f.HeldBackBy, []string{u.nodes[0].name}) {
		u.t.Errorf("the format level is %d, held back by %v; want %d and %s", f.Level, f.HeldBackBy, before.Level, u.nodes[0].name)
	}
	u.allWrite(u.nodes[1:], before.Level)
}

// allWrite waits until each of the nodes writes a format level.
func (u *upgrade) allWrite(nodes []*upgradeNode, level store.FormatLevel) {
	u.t.Helper()
	for _, n := range nodes {
		eventually(u.t, levelBound, fmt.Sprintf("%s writes format level %d", n.name, level), func(context.Context) (bool, error) {
			if got := metrictest.TextSum(u.t, n.Metrics(), "belfry_format_level"); got != float64(level) {
				return false, fmt.Errorf("it writes level %v", got)
			}
			return true, nil
		})
	}
}

// probe adds timers and checks that all revisions of their records have a format.
func (u *upgrade) probe(rng *rand.Rand, url string, want schemas.RecordFormat) {
	u.t.Helper()
	plans := u.plans(rng, "/chaos/upgrade/probe", upgradeProbes, url)
	u.c.run(u.t.Context(), plans)
	probes := map[string]bool{}
	for i := range plans {
		probes[schemas.NewTimerID(plans[i].source, plans[i].id).String()] = true
	}
	found := 0
	err := u.eachRecord(u.t.Context(), func(id string, b []byte) {
		if !probes[id] {
			return
		}
		found++
		if got := schemas.RecordFormat(b[0]); got != want {
			u.t.Errorf("an old node lives, and a timer that was added since has a record of format %d", got)
		}
	})
	if err != nil || found < upgradeProbes/2 {
		u.t.Errorf("%d records of %d timers, %v", found, upgradeProbes, err)
	}
}

// refused checks that an old node does not start on a store that it cannot read.
func (u *upgrade) refused() {
	u.t.Helper()
	u.end(0, stopped)
	n := u.prepare(u.old)
	n.Start()
	if err := n.WaitReady(u.t.Context(), wellBound); !errors.Is(err, proc.ErrEnded) {
		u.t.Errorf("a node that does not read record format 2 starts on a store that has such records: %v", err)
	}
	u.t.Logf("the old build refuses the store, as it must:\n%s", n.LogTail())
	n.Kill()
	u.fires()
	u.nodes[0] = u.start(u.next)
	u.fires()
}

// onlyWritten checks that no record has another format.
func (u *upgrade) onlyWritten(want schemas.RecordFormat) {
	u.t.Helper()
	n, err := u.written(u.t.Context())
	if err != nil {
		u.t.Fatal(err)
	}
	if delete(n, want); len(n) > 0 {
		u.t.Errorf("an old node lives, which reads record format %d; the other records by format: %v", want, n)
	}
}

// written counts records by format.
func (u *upgrade) written(ctx context.Context) (map[schemas.RecordFormat]int, error) {
	n := map[schemas.RecordFormat]int{}
	err := u.eachRecord(ctx, func(_ string, b []byte) { n[schemas.RecordFormat(b[0])]++ })
	return n, err
}

// pending counts the timers that are not concluded, in any format, and the adds that no
// router has stored. The API does not list records that the answering node cannot read.
func (u *upgrade) pending(ctx context.Context) (int, error) {
	s, err := u.c.js.Stream(ctx, schemas.StreamAdd)
	if err != nil {
		return 0, err
	}
	n := int(s.CachedInfo().State.Msgs)
	var bad error
	err = u.eachRecord(ctx, func(id string, b []byte) {
		r, err := schemas.DecodeRecordUpTo(b, schemas.RecordFormatTest)
		if err != nil {
			bad = fmt.Errorf("timer %s: %w", id, err)
		}
		if !r.State.Final() {
			n++
		}
	})
	return n, errors.Join(err, bad)
}

// eachRecord calls do with the last revision of every record, undecoded.
func (u *upgrade) eachRecord(ctx context.Context, do func(id string, b []byte)) error {
	for shard := range schemas.DefaultShards {
		if err := u.eachOfShard(ctx, shard, do); err != nil {
			return err
		}
	}
	return nil
}

func (u *upgrade) eachOfShard(ctx context.Context, shard int, do func(id string, b []byte)) error {
	prefix := "$KV." + schemas.BucketTimers(shard) + ".timer."
	cons, err := u.c.js.CreateConsumer(ctx, shardStream(shard), jetstream.ConsumerConfig{
		FilterSubject: prefix + ">", DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy, AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, InactiveThreshold: time.Minute,
	})
	if err != nil {
		return err
	}
	const batch = 500
	for {
		msgs, err := cons.FetchNoWait(batch)
		if err != nil {
			return err
		}
		n := 0
		for m := range msgs.Messages() {
			n++
			if len(m.Data()) > 0 {
				do(strings.TrimPrefix(m.Subject(), prefix), m.Data())
			}
		}
		if err := msgs.Error(); err != nil {
			return err
		}
		if n == 0 {
			return u.c.js.DeleteConsumer(ctx, shardStream(shard), cons.CachedInfo().Name)
		}
	}
}

// released waits until no shard's low watermark is held any more.
func (u *upgrade) released() {
	u.t.Helper()
	now := time.Now().UnixMilli()
	eventually(u.t, wellBound, "every low watermark past the last timer", func(ctx context.Context) (bool, error) {
		cl, err := u.look.ReadCluster(ctx)
		if err != nil {
			return false, err
		}
		for _, c := range cl.Clocks {
			if c.Clock.TimeMs < now {
				return false, fmt.Errorf("shard %d: %+v", c.Shard, c.Clock)
			}
		}
		return len(cl.Clocks) == schemas.DefaultShards, nil
	})
}
