package sizing

import (
	"math"
	"testing"
	"time"
)

// load is the default of belfry size.
func load(change func(*Load)) Load {
	l := Load{Rate: 100, Pending: 1e6, Payload: 400, Retention: 24 * time.Hour, SweepDelay: 10 * time.Minute, FiredMaxAge: 24 * time.Hour, Horizon: 5 * time.Second, Services: 10, Replicas: 1}
	change(&l)
	return l
}

func near(t *testing.T, what string, got, want, part float64) {
	t.Helper()
	if math.Abs(got-want) > part*want {
		t.Errorf("%s: got %g, want %g within %g %%", what, got, want, 100*part)
	}
}

// TestOf: the estimates agree with the figures in docs/scaling.md.
func TestOf(t *testing.T) {
	t.Parallel()
	n := Of(load(func(l *Load) { l.Rate, l.Pending = 1000, 0 }))
	near(t, "keys of 1,000 a second with the defaults", n.Keys, 88e6, 0.01)
	near(t, "memory of these keys", n.MemoryAlive, 55e9, 0.02)

	n = Of(load(func(l *Load) { l.Rate, l.Pending, l.Retention, l.SweepDelay = 1000, 0, 10*time.Minute, 2*time.Minute }))
	near(t, "keys with a retention of 10m and a sweep delay of 2m", n.Keys, 2.4e6, 0.01)

	n = Of(load(func(l *Load) { l.Rate = 0 }))
	near(t, "memory of a million pending timers", n.MemoryAlive, 1.24e9, 0.06)
	near(t, "disk of a million pending timers of 400 bytes", n.Disk, 1e9, 0.01)
	if n.Cores != 0 || n.DiskWrites != 0 {
		t.Errorf("nothing is due, got %+v", n)
	}

	n = Of(load(func(l *Load) { l.Rate = 1000 }))
	near(t, "fired events of a day at 1,000 a second", n.DiskFired, 1000*86400*800, 0.001)

	n = Of(load(func(l *Load) { l.Rate = 116e3 }))
	near(t, "writes of ten billion a day", n.DiskWrites, 250e6, 0.05)
	near(t, "cores of ten billion a day, half of them free", n.Cores, 2*20, 0.06)
	three := Of(load(func(l *Load) { l.Rate, l.Replicas = 116e3, 3 }))
	near(t, "cores with three replicas", three.Cores, 2.5*n.Cores, 0.001)
	if five := Of(load(func(l *Load) { l.Rate, l.Replicas = 116e3, 5 })); five.Cores <= three.Cores {
		t.Errorf("five replicas need %g cores, three %g", five.Cores, three.Cores)
	}
}

// TestMore: no estimate falls when the load grows.
func TestMore(t *testing.T) {
	t.Parallel()
	base := Of(load(func(*Load) {}))
	for name, change := range map[string]func(*Load){
		"rate": func(l *Load) { l.Rate *= 2 }, "pending": func(l *Load) { l.Pending *= 2 }, "payload": func(l *Load) { l.Payload *= 2 },
		"retention": func(l *Load) { l.Retention *= 2 }, "sweep delay": func(l *Load) { l.SweepDelay *= 2 }, "fired max age": func(l *Load) { l.FiredMaxAge *= 2 },
		"services": func(l *Load) { l.Services *= 2 }, "callbacks": func(l *Load) { l.Callbacks = true }, "replicas": func(l *Load) { l.Replicas = 3 },
	} {
		n := Of(load(change))
		if n == base {
			t.Errorf("%s has no effect", name)
		}
		if n.Keys < base.Keys || n.Memory < base.Memory || n.Disk < base.Disk || n.Cores < base.Cores || n.DiskWrites < base.DiskWrites {
			t.Errorf("more %s needs less: %+v, before %+v", name, n, base)
		}
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	if err := load(func(*Load) {}).Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Load){
		"negative rate": func(l *Load) { l.Rate = -1 }, "no number": func(l *Load) { l.Pending = math.NaN() }, "infinite payload": func(l *Load) { l.Payload = math.Inf(1) },
		"two replicas": func(l *Load) { l.Replicas = 2 }, "negative services": func(l *Load) { l.Services = -1 },
	} {
		if err := load(change).Validate(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
