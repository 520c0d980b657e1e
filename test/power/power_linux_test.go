//go:build amd64 || arm64

package power

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/tcptest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/chaos/check"
	"github.com/belfryio/belfry/test/proc"
)

func TestMain(m *testing.M) {
	if os.Getenv(becomeEnv) != "" {
		become()
	}
	os.Exit(proc.Run(m))
}

const (
	defaultRounds, allRounds = 3, 6
	controlRounds            = 2
)

func rounds(t *testing.T) int {
	text := os.Getenv("BELFRY_POWER_ROUNDS")
	if text == "" {
		return testsize.Choose(t, "rounds", 1, defaultRounds, allRounds)
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("BELFRY_POWER_ROUNDS=%q must be a number, 1 or more", text)
	}
	return n
}

// seed returns a new seed for every run. A round's seed is this one plus its number.
func seed(t *testing.T) uint64 {
	if text := os.Getenv("BELFRY_POWER_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return uint64(time.Now().UnixNano()) / 1e6
}

// scene describes a round. The round's seed determines it.
type scene struct {
	seed     uint64
	profile  string
	how      loss
	workers  int
	burst    int // adds that are published at once; 0 for none
	pad      int // the largest number of data bytes
	shards   int
	losses   int
	far      bool
	settled  bool // the folder existed before and was synced
	broken   func(path string) bool
	maxStops int64
	// rewrites, if not 0, is the largest number of rewritten block files of shards before a power loss, which then
	// occurs within afterRewrite stops.
	rewrites int64
}

// afterRewrite is roughly the number of stops in which nats-server makes a rewritten block and the newest one durable.
const afterRewrite = 16

func (s scene) String() string {
	return fmt.Sprintf("seed %d: profile %s, %s, %d clients, bursts of %d, data to %d bytes, %d shards", s.seed, s.profile, s.how, s.workers, s.burst, s.pad, s.shards)
}

// draw returns a scene of the safe profile. The kinds take turns.
func draw(seed uint64, rng *rand.Rand) scene {
	s := scene{seed: seed, profile: "safe", how: loss(seed % 2), losses: 2, pad: 300, shards: 4, workers: 1, maxStops: 600}
	switch seed / 2 % 3 {
	case 1: // many at once, so that writes are grouped
		s.workers, s.burst, s.maxStops = 8, 200+rng.IntN(300), 6000
	case 2: // large ones, which fill blocks and start new files
		s.workers, s.burst, s.pad, s.shards, s.maxStops = 4, 100, 200_000, 1, 6000
	}
	return s
}

// TestPowerLossSafe kills a node of the safe profile at random moments, removes what was
// not synced from its folder, and checks that everything that was acknowledged is there.
func TestPowerLossSafe(t *testing.T) {
	t.Parallel()
	eachRound(t, 1, draw)
}

// TestPowerLossInCommit is TestPowerLossSafe for the moments at which nats-server, as it commits a batch, has
// rewritten an older block and not yet synced the newest one.
func TestPowerLossInCommit(t *testing.T) {
	t.Parallel()
	eachRound(t, 4, func(seed uint64, _ *rand.Rand) scene {
		return scene{seed: seed, profile: "safe", how: loss(seed % 2), losses: 2, pad: 16_000, shards: 1, workers: 8, burst: 500, rewrites: 3}
	})
}

// eachRound runs the rounds of a test in which nothing may be lost, each with a scene of its own. numbers chooses the
// sequence of random numbers that belongs to a seed.
func eachRound(t *testing.T, numbers uint64, draw func(seed uint64, rng *rand.Rand) scene) {
	test, sd := t.Name(), seed(t)
	for n := range rounds(t) {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			rng := rand.New(rand.NewPCG(sd+uint64(n), numbers))
			s := draw(sd+uint64(n), rng)
			for _, f := range run(t, s, rng).faults {
				t.Error(f)
			}
			if t.Failed() {
				t.Logf("to repeat it, as far as the order of calls allows: BELFRY_POWER_SEED=%d BELFRY_POWER_ROUNDS=1 go test -run '%s' -count=1 -v ./test/power", s.seed, test)
			}
		})
	}
}

// TestPowerLossIsSeen shows that the check finds lost calls: in the fast profile, and in
// the safe profile on a disk whose fsync does nothing.
func TestPowerLossIsSeen(t *testing.T) {
	t.Parallel()
	sd := seed(t)
	fast := scene{profile: "fast", how: dropAll, losses: 1, pad: 300, shards: 4, workers: 4, burst: 100, maxStops: 3000, far: true, settled: true}
	liar := fast
	liar.profile = "safe"
	liar.broken = func(path string) bool { return strings.Contains(path, "/KV_timers_") }
	for name, s := range map[string]scene{"fast profile": fast, "a disk that lies": liar} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lost := 0
			for n := range controlRounds {
				s.seed = sd + uint64(n)
				lost += len(run(t, s, rand.New(rand.NewPCG(s.seed, 2))).faults)
			}
			t.Logf("%d acknowledged calls were lost, as expected", lost)
			if lost == 0 {
				t.Error("no call was lost: the check does not find losses")
			}
		})
	}
}

// result is the result of a round.
type result struct {
	acked  int
	faults []string
}

// run runs one round: some power losses, and then the check.
func run(t *testing.T, s scene, rng *rand.Rand) result {
	t.Helper()
	t.Log(s)
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	l := &ledger{rng: rand.New(rand.NewPCG(s.seed, 3)), far: s.far, pad: s.pad, history: check.NewRecorder(nil)}
	l.history.Begin()
	config := fmt.Sprintf("profile: %s\nlease: 1s\nshards: %d\n", s.profile, s.shards)
	data := filepath.Join(base, "data0")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if s.settled {
		n := proc.New(t, proc.Options{Config: config, Data: data})
		n.Start()
		n.Ready(t.Context())
		n.Terminate()
	}
	for n := range s.losses {
		next := filepath.Join(base, fmt.Sprintf("data%d", n+1))
		life(t, s, rng, l, config, data, next, n > 0)
		if err := os.RemoveAll(data); err != nil {
			t.Fatal(err)
		}
		data = next
	}
	last := filepath.Join(base, "last")
	if err := os.CopyFS(last, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	bad := true
	defer func() {
		if bad {
			keep(t, data)
		}
	}()
	node := proc.New(t, proc.Options{Config: config, Data: last})
	node.Start()
	node.Ready(t.Context())
	r := result{acked: l.acked, faults: verify(t, node.URL(), l, s)}
	bad = len(r.faults) > 0 && s.profile == "safe" && s.broken == nil
	node.Kill()
	t.Logf("%d calls acknowledged for %d timers, %d faults", l.acked, len(l.timers), len(r.faults))
	return r
}

// keep saves what the last power loss left.
func keep(t *testing.T, data string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "belfry-power-")
	if err == nil {
		err = os.CopyFS(filepath.Join(dir, "data"), os.DirFS(data))
	}
	t.Logf("what the last power loss left is kept in %s (%v)", dir, err)
}

// startStops is roughly the number of stops during a start.
const startStops = 700

// life is one life of a node, from its start to its power loss.
func life(t *testing.T, s scene, rng *rand.Rand, l *ledger, config, data, next string, again bool) {
	t.Helper()
	d, err := newDisk(data, true)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	configPath, logPath := filepath.Join(dir, "belfry.yaml"), filepath.Join(dir, "belfry.log")
	if err := os.WriteFile(configPath, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(logPath)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	listen, web := tcptest.FreeAddress(t), tcptest.FreeAddress(t)
	// The model of the disk knows the calls of Go and of nats-server, not those of SQLite. The search index is no
	// part of what must survive: a damaged one is built again.
	argv := []string{proc.Build(t), "serve", "--config", configPath, "--data", data, "--roles", "router,scheduler,functions", "--nats-listen", listen, "--http", web, "--log-format", "json"}
	n, err := trace(d, data, argv, []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}, log, s.broken)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSYS) {
		t.Skipf("NOTHING WAS SHOWN: this system does not allow ptrace (%v); in a container, allow it", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer n.kill()
	// On a slow machine the drawn moment may be far away. Any other moment will do.
	late := time.AfterFunc(startBound, n.kill)
	defer late.Stop()
	// Some power losses happen while the node still recovers from the one before.
	if again && rng.IntN(3) == 0 {
		n.arm(1 + rng.Int64N(startStops))
	}
	stops := 1 + rng.Int64N(max(s.maxStops, 1))
	if ready(t.Context(), n, web) {
		late.Reset(lifeBound)
		c, err := belfry.Connect(t.Context(), "nats://"+listen, nats.NoReconnect())
		if err == nil {
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-n.done
				cancel()
			}()
			if err := serveCallbacks(c.Conn()); err != nil {
				t.Logf("callbacks are not answered: %v", err) // the node was just killed
			}
			if s.rewrites > 0 {
				n.armAtRewrite(1+rng.Int64N(s.rewrites), 1+rng.Int64N(afterRewrite))
			} else {
				n.arm(stops)
			}
			l.work(ctx, c, s.workers, s.burst)
			cancel()
			c.Close()
		}
	}
	<-n.done
	text, err := os.ReadFile(logPath)
	if err != nil {
		t.Fatal(err)
	}
	if len(n.problems) > 0 {
		t.Fatalf("the tracer saw calls that it cannot model: %s\nend of the node's log:\n%s", strings.Join(n.problems, "; "), text[max(0, len(text)-3000):])
	}
	diff, err := d.differs(data, n.doubt())
	if err != nil {
		t.Fatal(err)
	}
	if len(diff) > 0 {
		t.Fatalf("the model differs from the files: %s", strings.Join(diff, "; "))
	}
	left, err := d.crash(next, s.how, rng)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("killed at stop %d with %d calls under way, after %d fsyncs; %s; %d calls were acknowledged so far", n.seen.Load(), len(n.begun), n.fsyncs, left, l.acked)
}

// Bounds of a node's start, of its life after the start, and of the two parts of a check, in which adds are stored and timers
// settle: checkBound without progress, and checkMax altogether. A node may have thousands of adds to store after a power loss,
// beside other tests that use the same disk.
const (
	startBound = 60 * time.Second
	lifeBound  = 15 * time.Second
	checkBound = 60 * time.Second
	checkMax   = 5 * time.Minute
	// requestBound bounds a request of a check. A check repeats failed requests for checkBound.
	requestBound = 20 * time.Second
)

// ready waits until the node serves. It returns false if the node is killed before.
func ready(ctx context.Context, n *traced, web string) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+web+"/readyz", nil)
		if err != nil {
			return false
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return true
			}
		}
		select {
		case <-n.done:
			return false
		case <-tick.C:
		}
	}
}

// verify waits until all due timers have fired, and returns the violations.
func verify(t *testing.T, url string, l *ledger, s scene) []string {
	t.Helper()
	ctx := t.Context()
	c, err := belfry.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	js, err := jetstream.New(c.Conn(), jetstream.WithDefaultTimeout(requestBound))
	if err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	if err := serveCallbacks(c.Conn()); err != nil {
		t.Fatal(err)
	}
	ended := sync.OnceValue(func() error { return l.settleSchedules(ctx, c, js, s.shards) })
	begun := time.Now()
	// Wait until the cancelled timers could have fired, and schedules have gone on.
	over := begun.Add(latest + 500*time.Millisecond)
	if s.far {
		over = begun
	}
	var storing, settling patience
	for {
		left, n, err := adds(ctx, js)
		if err != nil {
			left, n = err.Error(), math.MaxInt // no progress
		}
		if n == 0 {
			storing = patience{} // an error of a later call begins a wait of its own
		}
		switch {
		case n > 0:
			if storing.over(n) {
				t.Fatalf("after the power loss: %s", left)
			}
		case time.Now().After(over):
			if err := ended(); err != nil {
				return []string{err.Error()}
			}
			faults, report, err := compare(ctx, c, js, l, s.shards)
			if err != nil {
				if settling.over(math.MaxInt) { // no progress
					t.Fatalf("after the power loss: %v", err)
				}
				break // compare again
			}
			// In the far scenes nothing changes any more.
			if late := settling.over(len(faults)); len(faults) == 0 || s.far || late {
				t.Logf("schedules: %+v; checked for %s", report, time.Since(begun).Round(time.Second))
				return faults
			}
		}
		<-tick.C
	}
}

// patience decides how long a check waits for a number to fall.
type patience struct {
	begun, fell time.Time
	least       int
}

// over reports whether the number n has not fallen for checkBound, or checkMax has passed since the first call.
func (p *patience) over(n int) bool {
	now := time.Now()
	if p.begun.IsZero() {
		p.begun = now
	}
	if p.fell.IsZero() || n < p.least {
		p.least, p.fell = n, now
	}
	return now.Sub(p.fell) > checkBound || now.Sub(p.begun) > checkMax
}

// adds describes and counts the adds that routers have not processed. Processed adds
// may still be in the stream, because their removal was not synced, which is permitted.
func adds(ctx context.Context, js jetstream.JetStream) (text string, n int, err error) {
	st, err := js.Stream(ctx, schemas.StreamAdd)
	if err != nil {
		return "", 0, err
	}
	consumers := st.ListConsumers(ctx)
	for i := range consumers.Info() {
		if left := int(i.NumPending) + i.NumAckPending; left > 0 {
			n += left
			text += fmt.Sprintf("%s: %d adds pending, %d to be acknowledged; delivered %+v, floor %+v, %d left in the stream", i.Name, i.NumPending, i.NumAckPending, i.Delivered, i.AckFloor, st.CachedInfo().State.Msgs)
		}
	}
	return text, n, consumers.Err()
}

// readers is the number of concurrent readers of records.
const readers = 16

// compare returns the violations, and counts what the schedules did.
func compare(ctx context.Context, c *belfry.Client, js jetstream.JetStream, l *ledger, shards int) ([]string, check.ScheduleReport, error) {
	events, recurring, err := firedEvents(ctx, js)
	if err != nil {
		return nil, check.ScheduleReport{}, err
	}
	report, err := l.checkSchedules(ctx, js, shards, recurring)
	if err != nil {
		return nil, check.ScheduleReport{}, err
	}
	var (
		all    sync.WaitGroup
		mu     sync.Mutex
		faults []string
		failed error
		next   = make(chan *timer)
	)
	for range readers {
		all.Go(func() {
			for m := range next {
				mu.Lock()
				over := failed != nil
				mu.Unlock()
				if over {
					continue
				}
				got, err := c.Get(ctx, m.key)
				known := !errors.Is(err, belfry.ErrNotFound)
				mu.Lock()
				if err != nil && known {
					failed = fmt.Errorf("timer %s: %w", m.id, err)
				}
				faults = append(faults, l.check(m, got, known, events[m.id])...)
				mu.Unlock()
			}
		})
	}
	for _, m := range l.timers {
		next <- m
	}
	close(next)
	all.Wait()
	for _, v := range report.Violations {
		faults = append(faults, v.String())
	}
	return faults, report.Schedules, failed
}

// firedEvents returns the events in the stream: those of timers by the timer's ID, and those
// of schedules.
func firedEvents(ctx context.Context, js jetstream.JetStream) (timers map[string]fired, recurring []check.Event, err error) {
	cons, err := js.OrderedConsumer(ctx, schemas.StreamFired, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return nil, nil, err
	}
	info, err := cons.Info(ctx)
	if err != nil {
		return nil, nil, err
	}
	timers = map[string]fired{}
	for left := int(info.NumPending + info.Delivered.Consumer); left > 0; left-- {
		m, err := cons.Next(jetstream.FetchMaxWait(checkBound))
		if err != nil {
			return nil, nil, err
		}
		meta, err := m.Metadata()
		if err != nil {
			return nil, nil, err
		}
		e, _, at, err := schemas.ParseFired(m.Headers(), m.Data())
		if err != nil {
			return nil, nil, err
		}
		if e.Source() == scheduleSource {
			recurring = append(recurring, check.Event{
				Kind: check.Fired, Source: e.Source(), ID: e.ID(), Sequence: meta.Sequence.Stream, TimeNs: meta.Timestamp.UnixNano(),
				Key: m.Headers().Get(jetstream.MsgIDHeader), Data: string(e.Data()), DueMs: at.ScheduledMs, ClaimedMs: at.FiredMs, Run: at.Run, Missed: at.Missed, Trigger: at.Trigger,
			})
			continue
		}
		f := timers[e.ID()]
		timers[e.ID()] = fired{id: e.ID(), count: f.count + 1, atMs: meta.Timestamp.UnixMilli()}
	}
	return timers, recurring, nil
}
