package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
)

// childEnv makes the test binary run a spec as a child process.
const childEnv = "BELFRY_BENCH_CHILD"

func TestMain(m *testing.M) {
	spec := os.Getenv(childEnv)
	if spec == "" {
		waittest.Parallel(8)
		goleak.VerifyTestMain(m)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := RunChild(ctx, spec, os.Stdin)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child returns a command that runs this test binary as the child process of a spec.
func child(spec string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+spec)
	return cmd
}

func config(t *testing.T) Config {
	return Config{
		Dir: t.TempDir(), Profile: app.ProfileFast, Shards: 2, Warmup: 50, Child: child,
	}
}

func run(t *testing.T, name string, change func(*Config)) *Result {
	t.Helper()
	testsize.Brief(t, "a load", "TestAdd")
	w, err := Find(name)
	if err != nil {
		t.Fatal(err)
	}
	c := config(t)
	var out bytes.Buffer
	c.Progress = &out
	change(&c)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	results, err := Run(ctx, w, c, 1)
	if err != nil {
		t.Fatalf("run of %s failed: %v\n%s", name, err, out.String())
	}
	r := results[0]
	if err := r.Text(&out); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + out.String())
	left, err := os.ReadDir(c.Dir)
	if err != nil || len(left) > 0 {
		t.Errorf("after a run the folder has %v (%v), want no files", left, err)
	}
	return r
}

func figure(t *testing.T, r *Result, name string) float64 {
	t.Helper()
	for _, f := range r.Figures {
		if f.Name == name {
			return f.Value
		}
	}
	t.Errorf("the result has no figure %q: %+v", name, r.Figures)
	return 0
}

func TestAdd(t *testing.T) {
	t.Parallel()
	for _, via := range []string{ViaPublish, ViaAPI, ViaClient, ViaClientAsync, ViaClientBatch, ViaHTTP, ViaHTTPBatch} {
		t.Run(via, func(t *testing.T) {
			t.Parallel()
			r := run(t, "add", func(c *Config) { c.Count, c.Via = 500, via })
			if r.Verified.Found != 500 || figure(t, r, "timers stored") <= 0 || figure(t, r, "adds acknowledged") <= 0 {
				t.Errorf("got %+v, want 500 timers and positive rates", r)
			}
		})
	}
}

// TestSteadyAhead: all timers are stored before the first is due, if necessary with a
// longer lead, and fire at the rate. The measurement excludes the adds.
func TestSteadyAhead(t *testing.T) {
	t.Parallel()
	r := run(t, "steady", func(c *Config) { c.Rate, c.Seconds, c.Ahead, c.Lead = 200, 2, true, time.Millisecond })
	if r.Verified.Found != 400 || len(r.Latencies) != 2 || r.Latencies[1].h.TotalCount() != 400 {
		t.Fatalf("got %+v, want 400 timers with their latencies", r)
	}
	if got := figure(t, r, "messages stored a timer"); got > 3.5 {
		t.Errorf("got %v messages a timer, want at most 3.5: the figure includes the adds", got)
	}
}

func TestSteady(t *testing.T) {
	t.Parallel()
	r := run(t, "steady", func(c *Config) { c.Rate, c.Seconds = 200, 2 })
	if r.Verified.Found != 400 || len(r.Latencies) != 2 {
		t.Fatalf("got %+v, want 400 timers with their latencies", r)
	}
	for _, l := range r.Latencies {
		if l.h.TotalCount() != 400 || l.At(50) > l.At(99) || l.At(99) > l.At(100) {
			t.Errorf("%s: got %d values, p50 %v, p99 %v, max %v, want 400 values and rising percentiles", l.Name, l.h.TotalCount(), l.At(50), l.At(99), l.At(100))
		}
	}
	results := []*Result{r, r}
	var b bytes.Buffer
	if err := JSON(&b, results); err != nil {
		t.Fatal(err)
	}
	var back struct {
		Results []struct {
			Latencies []map[string]any
			Verified  Verified
			Settings  map[string]any
		}
	}
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if len(back.Results) != 2 || back.Results[0].Latencies[0]["p99.9"] == nil || back.Results[1].Verified.Expected != 400 || back.Results[0].Settings["rate"] != 200.0 {
		t.Errorf("got JSON %s, want 2 results with latencies, 400 timers and the rate", b.String())
	}
	b.Reset()
	if err := Summary(&b, results); err != nil || !strings.Contains(b.String(), "of 2 runs") {
		t.Errorf("Summary: got %s (%v), want the heading \"of 2 runs\"", b.String(), err)
	}
}

func TestBurst(t *testing.T) {
	t.Parallel()
	r := run(t, "burst", func(c *Config) { c.Count, c.Lead = 1000, 5*time.Second })
	if r.Verified.Found != 1000 || figure(t, r, "first, by the stream") > figure(t, r, "last, by the stream") {
		t.Errorf("got %+v, want 1,000 timers, and the first no later than the last", r)
	}
}

func TestPending(t *testing.T) {
	t.Parallel()
	r := run(t, "pending", func(c *Config) {
		c.Count, c.Seconds, c.LoadFast, c.Profile, c.Settle = 1000, 1, true, app.ProfileSafe, time.Second
	})
	if r.Verified.Found != 1001 || figure(t, r, restartFigure) <= 0 || figure(t, r, "restart after a kill, until ready") <= 0 || figure(t, r, "disk, pending") <= 0 {
		t.Errorf("got %+v, want 1,001 timers with the time of the restart and the size on disk", r)
	}
}

// TestPlantedFlaws: a run with a missing, repeated, early or wrong timer is not sound.
func TestPlantedFlaws(t *testing.T) {
	t.Parallel()
	due := []int64{1000, 1000, 1000, 1000}
	ms := int64(time.Millisecond)
	a := &Account{dueMs: due, received: []int64{1, 1, 1, 0}, stored: []int64{1000 * ms, 1000*ms - 1, 0, 1001 * ms}}
	a.verify(0)
	a.because("pending still")
	want := Verified{Expected: 4, Found: 3, Missing: 1, Early: 1, Unseen: 1, Why: map[string]int{"pending still": 1}}
	if !reflect.DeepEqual(a.Verified, want) {
		t.Errorf("got %+v, want %+v", a.Verified, want)
	}
	for _, v := range []Verified{{Missing: 1}, {Duplicates: 1}, {Early: 1}, {Wrong: 1}, stored(5, 4), stored(5, 6)} {
		if !errors.Is(v.Err(), ErrUnsound) {
			t.Errorf("Err of %+v: got %v, want ErrUnsound", v, v.Err())
		}
	}
	if err := a.Err(); err == nil || !strings.Contains(err.Error(), "1 pending still") {
		t.Errorf("got error %v, want the reason \"1 pending still\" in it", err)
	}
	if err := (Verified{Unseen: 1, Repeated: 1}).Err(); err != nil {
		t.Errorf("Err of unseen and repeated events: got %v, want none", err)
	}
	if err := stored(5, 5).Err(); err != nil {
		t.Error(err)
	}
}

func TestBadConfig(t *testing.T) {
	t.Parallel()
	if _, err := Find("nothing"); err == nil {
		t.Error("Find of an unknown workload: got no error, want one")
	}
	for name, c := range map[string]Config{
		"size": {Size: 1 << 30}, "workers": {Workers: -1}, "rate": {Rate: -1}, "count": {Count: -5}, "via": {Via: "pigeon"},
		"profile": {Profile: "slow"},
	} {
		if _, err := Run(t.Context(), addWorkload{}, c, 1); err == nil {
			t.Errorf("Run with an invalid value of %s: got no error, want one", name)
		}
	}
	if _, err := Run(t.Context(), addWorkload{}, Config{}, 0); err == nil {
		t.Error("Run with repeat 0: got no error, want one")
	}
	if _, err := Run(t.Context(), pendingWorkload{}, Config{NATSURL: "nats://127.0.0.1:1"}, 1); err == nil {
		t.Error("Run of pending with a URL: got no error, want one")
	}
	if _, err := Run(t.Context(), addWorkload{}, Config{NATSURL: "nats://127.0.0.1:1"}, 1); err == nil {
		t.Error("Run with a URL without a server: got no error, want one")
	}
}
