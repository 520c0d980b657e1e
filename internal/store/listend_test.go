package store

import (
	"errors"
	"testing"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

// TestShardEnd: a read is at the end of a shard if nothing follows at the leader, or if its last answer has reached
// what the leader had before. A replica that stays behind ends in an error.
func TestShardEnd(t *testing.T) {
	t.Parallel()
	geometry := schemas.DefaultGeometry()
	geometry.Shards = 1
	s, err := Open(t.Context(), natstest.Run(t).Connect(), Config{Node: "n1", Geometry: geometry}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	create := func(id string) uint64 {
		t.Helper()
		rec := schemas.NewRecord(&schemas.Spec{Source: "/s", EventID: id, Type: "t", Service: "x", DueMs: 4e12}, schemas.Body{Mode: schemas.ModeStructured, Data: []byte("{}")}, 1)
		res := s.Create(t.Context(), []Write{{ID: schemas.NewTimerID("/s", id), Record: &rec}})
		if res[0].Err != nil {
			t.Fatal(res[0].Err)
		}
		return res[0].Rev
	}
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
