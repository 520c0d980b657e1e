package store_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/testsize"
)

func open(t testing.TB, nc *nats.Conn, change ...func(*store.Config)) *store.Store {
	t.Helper()
	testsize.Brief(t, "a server for each test", "TestOpenAgain", "TestGroupDuplicates", "TestFindFired")
	cfg := store.Config{Node: "n1", Geometry: storetest.Geometry, Timeout: time.Minute} // the disk may stand still for seconds
	for _, f := range change {
		f(&cfg)
	}
	s, err := store.Open(t.Context(), nc, cfg, zerolog.New(zerolog.NewTestWriter(t)))
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestConformance(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "a server for each part of the suite")
	storetest.Exercise(t, func(t *testing.T, change ...func(*store.Config)) storetest.Store {
		return open(t, natstest.Run(t).InProcess(), change...)
	})
}

// TestConformanceGrouped runs the suite with a server that syncs every write, and with batch
// commits.
func TestConformanceGrouped(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "a server for each part of the suite")
	storetest.Exercise(t, func(t *testing.T, change ...func(*store.Config)) storetest.Store {
		group := func(c *store.Config) { c.GroupCommit = true }
		return open(t, natstest.Run(t, natstest.SyncAlways).InProcess(), append(change, group)...)
	})
}
