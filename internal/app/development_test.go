package app

import (
	"context"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/schemas"
)

// developmentOptions returns the options of a node of one or the other kind on a folder.
func developmentOptions(t *testing.T, data string, development bool) Options {
	return Options{
		Data: data, NATSListen: "127.0.0.1:0", HTTP: NoHTTP, Profile: ProfileFast, Development: development, Frozen: development,
		Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.ErrorLevel),
	}
}

// run starts a node, calls f, and stops it.
func runOn(t *testing.T, o Options, f func(*App)) error {
	t.Helper()
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Errorf("Stop: got error %v, want none", err)
		}
	}()
	if err := a.Start(t.Context()); err != nil {
		return err
	}
	f(a)
	return nil
}

// TestDevelopmentStore: a store is of one kind for its whole life. A clock that was moved goes on after
// a restart.
func TestDevelopmentStore(t *testing.T) {
	t.Parallel()
	for name, development := range map[string]bool{"development store": true, "normal store": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := t.TempDir()
			var before time.Time
			if err := runOn(t, developmentOptions(t, data, development), func(a *App) {
				if !development {
					return
				}
				r, err := a.mover.ClockAdvance(t.Context(), schemas.ClockAdvanceRequest{By: "30d"})
				if err != nil || r.More {
					t.Errorf("advance: got %+v, error %v", r, err)
				}
				before = r.Now
			}); err != nil {
				t.Fatal(err)
			}
			err := runOn(t, developmentOptions(t, data, !development), func(*App) {})
			if schemas.CodeOf(err) != schemas.CodeConfig {
				t.Errorf("a node of the other kind: got error %v, want code config", err)
			}
			if err := runOn(t, developmentOptions(t, data, development), func(a *App) {
				if development && a.moved.Now() != before.UnixMilli() {
					t.Errorf("after a restart the clock shows %d, want %s", a.moved.Now(), before)
				}
			}); err != nil {
				t.Errorf("a node of its own kind: %v", err)
			}
		})
	}
}

// TestDevelopmentOptions: what a development node needs, and what others must not have.
func TestDevelopmentOptions(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"another server": {NATSURL: "nats://127.0.0.1:1", Development: true},
		"a role":         {Data: "x", Development: true, Roles: []Role{RoleRouter}},
		"frozen":         {Data: "x", Frozen: true},
	} {
		if err := o.Validate(); schemas.CodeOf(err) != schemas.CodeConfig {
			t.Errorf("%s: got error %v, want code config", name, err)
		}
	}
}
