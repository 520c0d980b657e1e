package store_test

import (
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestSealCallback: every node of the store opens a sealed callback, but only for its timer.
// While a node of an older build is alive, callbacks stay in their events.
func TestSealCallback(t *testing.T) {
	t.Parallel()
	const callback = "https://alice:hunter2@example.com/hooks?token=hunter2"
	nc := natstest.Run(t).InProcess()
	s := open(t, nc)
	id, other := storetest.ID(1), storetest.ID(2)
	var sealed string
	waittest.Until(t, "every node to read sealed callbacks", func() bool {
		sealed = s.SealCallback(id, callback)
		return sealed != ""
	})
	if strings.Contains(sealed, "hunter2") || sealed == s.SealCallback(id, callback) {
		t.Errorf("sealed %q", sealed)
	}
	second := open(t, nc, func(c *store.Config) { c.Node = "n2" })
	if got, err := second.OpenCallback(id, sealed); err != nil || got != callback {
		t.Errorf("opened %q, %v", got, err)
	}
	for name, c := range map[string]struct {
		id     schemas.TimerID
		sealed string
	}{
		"another timer": {other, sealed}, "damaged": {id, sealed[:len(sealed)-2] + "AA"}, "empty": {id, ""}, "version": {id, "2." + sealed[2:]},
		"cut": {id, sealed[:10]}, "not base64": {id, "1.!!!!"},
	} {
		if got, err := second.OpenCallback(c.id, c.sealed); schemas.CodeOf(err) != schemas.CodeDamaged || got != "" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := bucket(t, s, schemas.BucketClock).Put(t.Context(), "node.older", []byte(`{"v":1,"scheduler":"active","reads":3}`)); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the older node to be seen", func() bool { return s.SealCallback(id, callback) == "" })
	if got, err := s.OpenCallback(id, sealed); err != nil || got != callback {
		t.Errorf("a callback sealed before that: %q, %v", got, err)
	}
}
