package bench

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/testsize"
)

func TestSingle(t *testing.T) {
	t.Parallel()
	run(t, "add", func(c *Config) { c.Count, c.Via = 1200, ViaBatch })
	r := run(t, "add", func(c *Config) { c.Count, c.Via, c.Rate = 200, ViaSingle, 1000 })
	l := r.latency("answer to an add, from its intended start")
	if r.Verified.Found != 200 || l == nil || l.Count() != 200 || r.Settings["workers"] != DefaultSingles {
		t.Errorf("got %+v, want 200 timers with their latencies, and the default number of workers", r)
	}
}

func TestDay(t *testing.T) {
	t.Parallel()
	profile := filepath.Join(t.TempDir(), "cpu")
	r := run(t, "day", func(c *Config) { c.Rate, c.Seconds, c.Raw, c.InProcess, c.CPUProfile = 200, 3, 500, true, profile })
	l := r.latency(concludedLag)
	if r.Verified.Found != 600 || l == nil || l.Count() != 600 || figure(t, r, "timers concluded") <= 0 {
		t.Errorf("got %+v, want 600 timers with their latencies, and a rate", r)
	}
	for _, op := range []string{"publish", "create", "compare-and-set"} {
		if figure(t, r, "raw JetStream "+op) <= 0 || figure(t, r, rawCPU(op)) <= 0 {
			t.Errorf("got %+v, want rate and CPU of raw operation %s", r.Figures, op)
		}
	}
	if figure(t, r, cpuFigure) <= 0 || figure(t, r, "a timer costs, in raw publishes") <= 0 || figure(t, r, "messages stored a timer") < 3 {
		t.Errorf("got figures %+v, want the CPU of a timer and 3 messages or more", r.Figures)
	}
	if len(r.Curves.Lines) != 4 || len(r.Curves.Lines[0].X) < 3 {
		t.Errorf("got curves %+v, want 4 lines with 3 points or more", r.Curves)
	}
	if info, err := os.Stat(profile); err != nil || info.Size() == 0 {
		t.Errorf("CPU profile: got %v (%v), want a file with content", info, err)
	}
}

func TestCallback(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{CallbackHTTP, CallbackNATS} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := run(t, "callback", func(c *Config) { c.Rate, c.Seconds, c.Callback = 100, 2, kind })
			if l := r.latency("lateness of the callback"); r.Verified.Found != 200 || l == nil || l.Count() != 200 {
				t.Errorf("got %+v, want 200 timers with the lateness of their callbacks", r)
			}
		})
	}
}

// TestRemote measures an existing Belfry. It reports no CPU, which it cannot measure
// there.
func TestRemote(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "a load")
	url := started(t).node.NATSURL()
	r := run(t, "callback", func(c *Config) { c.NATSURL, c.Rate, c.Seconds, c.Callback, c.Raw = url, 100, 2, CallbackNATS, 50 })
	if r.Verified.Found != 200 || r.value(cpuFigure) != 0 || r.value(rawCPU("publish")) != 0 || figure(t, r, "raw JetStream publish") <= 0 || r.Settings["on"] != "remote" {
		t.Errorf("got %+v, want 200 timers, raw publishes, and no figures of CPU", r)
	}
}

func TestCancel(t *testing.T) {
	t.Parallel()
	r := run(t, "cancel", func(c *Config) { c.Count, c.Callers = 300, 5 })
	if r.Verified.Found != 300 || figure(t, r, "cancels") <= 0 || r.Latencies[0].Count() != 300 {
		t.Errorf("got %+v, want 300 timers and cancels with their latencies", r)
	}
}

func TestRaw(t *testing.T) {
	t.Parallel()
	r := run(t, "raw", func(c *Config) { c.Raw, c.Warmup = 300, -1 })
	if figure(t, r, "raw JetStream publish") <= 0 {
		t.Errorf("got %+v, want the rate of raw publishes", r)
	}
}

// TestTopologies runs the node on servers in separate processes, the node of the cluster in this
// one.
func TestTopologies(t *testing.T) {
	t.Parallel()
	for _, on := range []Topology{OnServer, OnCluster} {
		t.Run(string(on), func(t *testing.T) {
			t.Parallel()
			r := run(t, "steady", func(c *Config) {
				c.On, c.Profile, c.Rate, c.Seconds, c.Raw, c.InProcess = on, app.ProfileSafe, 100, 2, 100, on == OnCluster
			})
			if r.Verified.Found != 200 || figure(t, r, cpuFigure) <= 0 || r.Settings["on"] != string(on) {
				t.Errorf("got %+v, want 200 timers, their CPU, and the topology %s", r, on)
			}
		})
	}
	t.Run("pending on a server", func(t *testing.T) {
		t.Parallel()
		testsize.Long(t, "TestPending has its steps, and a server is started four times")
		r := run(t, "pending", func(c *Config) { c.On, c.Count, c.Seconds, c.Settle = OnServer, 500, 1, time.Second })
		if r.Verified.Found != 501 || figure(t, r, "memory of the servers, pending") <= 0 || figure(t, r, "memory of the node, pending") <= 0 {
			t.Errorf("got %+v, want 501 timers and the memory of servers and node", r)
		}
	})
}

func TestTrend(t *testing.T) {
	t.Parallel()
	var grows, flat Curve
	for n := range 30 {
		grows.add(float64(n), 10+2*float64(n))
		flat.add(float64(n), 10)
	}
	if slope, first, last := trend(grows); slope < 1.99 || slope > 2.01 || first != 20 || last != 60 {
		t.Errorf("rising curve: got slope %v, medians %v and %v, want 2, 20 and 60", slope, first, last)
	}
	if slope, first, last := trend(flat); slope != 0 || first != 10 || last != 10 {
		t.Errorf("flat curve: got slope %v, medians %v and %v, want 0, 10 and 10", slope, first, last)
	}
	if slope, first, last := trend(Curve{}); slope != 0 || first != 0 || last != 0 {
		t.Errorf("empty curve: got slope %v, medians %v and %v, want 0, 0 and 0", slope, first, last)
	}
}

func TestIsFlat(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ first, last, want float64 }{{1, 1, 1}, {1, 50, 1}, {1, 60, 0}, {500, 100, 1}, {500, 545, 1}, {500, 560, 0}, {28213, 40534, 0}} {
		if got := isFlat(c.first, c.last); got != c.want {
			t.Errorf("from %v to %v ms: got %v, want %v", c.first, c.last, got, c.want)
		}
	}
}

func TestBySecond(t *testing.T) {
	t.Parallel()
	due := []int64{1500, 2000, 2499, 2500, 9000}
	at := make([]int64, len(due))
	for n, late := range []int64{1, 2, 3, 40, 0} {
		if late > 0 {
			at[n] = (due[n] + late) * 1e6
		}
	}
	c := bySecond("x", due, at, 100)
	if len(c.X) != 2 || c.X[0] != 0 || c.X[1] != 1 || c.Y[0] < 2.9 || c.Y[0] > 3.1 || c.Y[1] < 39 || c.Y[1] > 41 {
		t.Errorf("got curve %+v, want about 3 ms in second 0 and 40 ms in second 1", c)
	}
}
