package store

import (
	"errors"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

// TestShardEnd: a read is at the end of a shard if nothing follows at the leader, or if its last answer has reached
// what the leader had before. A replica that stays behind ends in an error.
func TestShardEnd(t *testing.T) {
	t.Parallel()
	s := oneShard(t)
	create := func(id string) uint64 { return createTimer(t, s, "x", id) }
	first, second := create("a"), create("b")
	var end shardEnd
	read := func(after uint64, want bool) {
		t.Helper()
		if got, err := end.read(t.Context(), s.Reader.shards, 0, after); err != nil || got != want {
			t.Errorf("after %d: %t, %v, want %t", after, got, err, want)
		}
	}
	read(second, true)
	read(first, false) // the second record follows
	last := end.last
	if last < second {
		t.Errorf("the leader's last sequence is %d, want %d or more", last, second)
	}
	create("c")
	read(last, true) // that one came after the leader was asked
	for range endReads - 1 {
		read(first, false)
	}
	if _, err := end.read(t.Context(), s.Reader.shards, 0, first); !errors.Is(err, jet.ErrBehind) || !errors.Is(err, schemas.ErrUnavailable) {
		t.Errorf("a replica that stays behind: %v", err)
	}
}

// TestListTime: a page ends after its time, with a cursor, and the next one goes on where it ended.
func TestListTime(t *testing.T) {
	t.Parallel()
	s := oneShard(t)
	s.listTime = 1 // a nanosecond, so that each request to JetStream is a page
	for i := range 150 {
		createTimer(t, s, "x", strconv.Itoa(i))
	}
	createTimer(t, s, "wanted", "last")
	q := ListQuery{Service: "wanted", Limit: 1}
	var found, pages int
	for {
		page, err := s.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		found += len(page.Timers)
		pages++
		if q.Cursor = page.Cursor; q.Cursor == "" {
			break
		}
	}
	if found != 1 || pages < 2 {
		t.Errorf("%d timers on %d pages, want 1 on 2 or more", found, pages)
	}
}

// oneShard opens a store with one shard.
func oneShard(t *testing.T) *Store {
	t.Helper()
	return openOneShard(t, natstest.Run(t).Connect(), Config{})
}

// openOneShard is openNode for the only node of a store with one shard.
func openOneShard(t *testing.T, nc *nats.Conn, cfg Config) *Store {
	t.Helper()
	cfg.Node, cfg.Geometry = "n1", schemas.DefaultGeometry()
	cfg.Geometry.Shards = 1
	return openNode(t, nc, cfg)
}

// openNode opens a store until the test ends.
func openNode(t *testing.T, nc *nats.Conn, cfg Config) *Store {
	t.Helper()
	s, err := Open(t.Context(), nc, cfg, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// createTimer creates a timer of a service and returns its revision.
func createTimer(t *testing.T, s *Store, service, id string) uint64 {
	t.Helper()
	rec := schemas.NewRecord(&schemas.Spec{Source: "/s", EventID: id, Type: "t", Service: service, DueMs: 4e12}, schemas.Body{Mode: schemas.ModeStructured, Data: []byte("{}")}, 1)
	res := s.Create(t.Context(), []Write{{ID: schemas.NewTimerID("/s", id), Record: &rec}})
	if res[0].Err != nil {
		t.Fatal(res[0].Err)
	}
	return res[0].Rev
}
