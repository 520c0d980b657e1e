package store_test

import (
	"fmt"
	"testing"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestTermOwner: the owners of the last 64 terms of a shard are known, also while nobody owns it, and those of older
// terms are not.
func TestTermOwner(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).Connect())
	c, rev, err := s.ReadClock(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	first := c.Epoch + 1
	for n := range uint64(70) {
		c.Epoch, c.Owner = first+n, fmt.Sprint("node", n)
		for _, owner := range []string{c.Owner, ""} { // taken, and given up
			c.Owner = owner
			if rev, err = s.WriteClock(t.Context(), 0, c, rev); err != nil {
				t.Fatal(err)
			}
		}
	}
	for n := range uint64(70) {
		want := ""
		if n >= 6 {
			want = fmt.Sprint("node", n)
		}
		var got string
		waittest.Until(t, "the owner of a term", func() bool {
			got, err = s.TermOwner(t.Context(), 0, first+n)
			return err == nil && got == want
		}, func() string { return fmt.Sprintf("epoch %d: got %q and error %v, want %q", first+n, got, err, want) })
	}
	if got, err := s.TermOwner(t.Context(), 1, first); got != "" || err != nil {
		t.Errorf("another shard: got %q and error %v, want none", got, err)
	}
}
