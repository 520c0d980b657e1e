package app

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// TestContradictions: every pair of contradicting settings is refused before anything is
// opened, with an error that names both. The nearest valid values are accepted.
func TestContradictions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		bad   func(*Options)
		good  func(*Options)
		names []string // in the error
	}{
		{
			"sweep-delay below the default dedup window", func(o *Options) { o.SweepDelay = 119 * time.Second },
			func(o *Options) { o.SweepDelay = 2 * time.Minute },
			[]string{"sweep-delay is 1m59s", "2m0s", "retention of 1h0m0s"},
		},
		{
			"sweep-delay below the dedup window of a short retention", func(o *Options) { o.Retention, o.SweepDelay = 40*time.Second, 29*time.Second },
			func(o *Options) { o.Retention, o.SweepDelay = 40*time.Second, 30*time.Second },
			[]string{"sweep-delay is 29s", "30s", "retention of 40s"},
		},
		{
			"fired-max-age below the dedup window", func(o *Options) { o.FiredMaxAge = time.Minute },
			func(o *Options) { o.FiredMaxAge, o.SweepDelay = 3*time.Minute, 2*time.Minute },
			[]string{"fired-max-age is 1m0s", "2m0s"},
		},
		{
			"fired-max-age up to sweep-delay", func(o *Options) { o.FiredMaxAge = 10 * time.Minute },
			func(o *Options) { o.FiredMaxAge = 11 * time.Minute },
			[]string{"fired-max-age is 10m0s", "sweep-delay, 10m0s"},
		},
		{
			"dead-max-age below the dedup window", func(o *Options) { o.DeadMaxAge = time.Minute },
			func(o *Options) { o.DeadMaxAge = 2 * time.Minute },
			[]string{"dead-max-age is 1m0s", "2m0s"},
		},
		{
			"rejected-max-age below the dedup window", func(o *Options) { o.RejectedMaxAge = time.Minute },
			func(o *Options) { o.RejectedMaxAge = 2 * time.Minute },
			[]string{"rejected-max-age is 1m0s", "2m0s"},
		},
		{
			"lease above the life of a presence", func(o *Options) { o.Lease = 61 * time.Second },
			func(o *Options) { o.Lease = time.Minute },
			[]string{"lease is 1m1s", "1m0s"},
		},
		{
			"lease that no heartbeat can keep", func(o *Options) { o.Lease = 100 * time.Millisecond },
			func(o *Options) { o.Lease = 300 * time.Millisecond },
			[]string{"lease is 100ms", "300ms"},
		},
		{
			"heartbeat interval above a third of the lease", func(o *Options) { o.Lease, o.Heartbeat = 2*time.Second, time.Second },
			func(o *Options) { o.Lease, o.Heartbeat = 3*time.Second, time.Second },
			[]string{"heartbeat interval is 1s", "lease (2s)"},
		},
		{
			"horizon below a slot", func(o *Options) { o.Horizon = 500 * time.Millisecond },
			func(o *Options) { o.Horizon = time.Second },
			[]string{"horizon is 500ms", "1s (a slot)"},
		},
		{
			"horizon beyond the life of index entries", func(o *Options) { o.Horizon = 11 * time.Minute },
			func(o *Options) { o.Horizon = 10 * time.Minute },
			[]string{"horizon is 11m0s", "10m0s"},
		},
		{
			"max-ahead beyond what a TTL can say", func(o *Options) { o.Limits.MaxHorizon = 290 * 365 * 24 * time.Hour },
			func(o *Options) { o.Limits.MaxHorizon = 200 * 365 * 24 * time.Hour },
			[]string{"max-ahead is"},
		},
		{
			"retention below a second", func(o *Options) { o.Retention = time.Millisecond },
			func(o *Options) { o.Retention = time.Second },
			[]string{"retention is 1ms", "1s"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := Options{Data: t.TempDir()}
			c.bad(&o)
			err := o.Validate()
			if !errors.Is(err, &schemas.Error{Code: schemas.CodeConfig}) {
				t.Fatalf("Validate: got error %v, want code config", err)
			}
			for _, part := range c.names {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("Validate: got error %q, want %q in it", err, part)
				}
			}
			o = Options{Data: t.TempDir()}
			c.good(&o)
			if err := o.Validate(); err != nil {
				t.Errorf("Validate of valid options: got error %v, want none", err)
			}
		})
	}
	if err := (Options{Data: t.TempDir()}).Validate(); err != nil {
		t.Errorf("Validate of the defaults: got error %v, want none", err)
	}
}

// TestIndexKeep: index entries outlive two audits of the sweeper, and live as long as
// other nodes rely on.
func TestIndexKeep(t *testing.T) {
	t.Parallel()
	for sweep, want := range map[time.Duration]time.Duration{0: 30 * time.Minute, 2 * time.Second: 30 * time.Minute, time.Hour: 3 * time.Hour} {
		if got := (&Options{SweepDelay: sweep}).indexKeep(); got != want {
			t.Errorf("sweep-delay %s: got index keep %s, want %s", sweep, got, want)
		}
	}
}
