package app

import (
	"reflect"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

// renamed are the fields whose name in a part of the node differs from that in Options.
var renamed = map[string]string{"Total": "TotalConcurrency"}

// TestSettingsReachTheParts: each option that a part of the node has, too, is passed on
// to it, and to the configuration of the streams.
func TestSettingsReachTheParts(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Lease, o.Heartbeat, o.Horizon, o.SweepDelay = 4*time.Second, 500*time.Millisecond, 7*time.Second, 5*time.Minute
	o.Retention, o.FiredMaxAge, o.DeadMaxAge, o.RejectedMaxAge, o.Timeout = 3*time.Hour, 5*time.Hour, 6*time.Hour, 7*time.Hour, 6*time.Second
	o.Concurrency, o.TotalConcurrency, o.ServiceIdle, o.Replicas = 11, 22, 9*time.Minute, 1
	o.MaxServices, o.FiredMaxPerService, o.AllowPrivate = 123, 4567, true
	o.Limits = schemas.Limits{MaxHorizon: 8 * time.Hour}
	a := start(t, o)
	want := reflect.ValueOf(o)
	compared := map[string]bool{}
	for _, part := range []any{a.schedulerOptions(), a.functionsOptions(), a.routerOptions(), a.storeConfig()} {
		v := reflect.ValueOf(part)
		for i := range v.NumField() {
			name := v.Type().Field(i).Name
			option := name
			if r := renamed[name]; r != "" {
				option = r
			}
			w := want.FieldByName(option)
			switch name {
			case "Node", "Log", "Version": // not copied from one option
				continue
			}
			if !w.IsValid() || w.Type() != v.Field(i).Type() {
				continue
			}
			compared[option] = true
			if w.Kind() != reflect.Bool && option != "AllowPrefixes" && w.IsZero() {
				t.Errorf("the test does not set option %s, so it cannot show that the option is passed on", option)
			}
			if option != "Limits" && !reflect.DeepEqual(w.Interface(), v.Field(i).Interface()) {
				t.Errorf("got %T.%s %v, want the option's value %v", part, name, v.Field(i), w)
			}
		}
	}
	for _, name := range []string{"Lease", "Horizon", "SweepDelay", "Retention", "FiredMaxAge", "DeadMaxAge", "RejectedMaxAge", "Concurrency", "TotalConcurrency", "ServiceIdle", "MaxServices"} {
		if !compared[name] {
			t.Errorf("no part of the node has option %s", name)
		}
	}
	js := natstest.JetStream(t, a.nc)
	for name, age := range map[string]time.Duration{schemas.StreamFired: o.FiredMaxAge, schemas.StreamDead: o.DeadMaxAge, schemas.StreamRejected: o.RejectedMaxAge} {
		s, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.CachedInfo().Config.MaxAge; got != age {
			t.Errorf("stream %s: got maximum age %s, want %s", name, got, age)
		}
	}
}
