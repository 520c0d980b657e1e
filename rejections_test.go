package belfry_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/schemas"
)

// TestRejectionsOfManyPages lists more rejected adds than one page has.
func TestRejectionsOfManyPages(t *testing.T) {
	t.Parallel()
	const n = 1100 // a page has 500
	c := connect(t)
	for i := range n {
		if err := c.Conn().PublishMsg(&nats.Msg{Subject: schemas.SubjectAdd, Data: fmt.Appendf(nil, `{"specversion":"1.0","id":"%d","source":"/shop","type":"t"}`, i)}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		seen := map[uint64]belfry.Rejection{}
		for r, err := range c.Rejections(ctx) {
			if err != nil {
				t.Fatal(err)
			}
			seen[r.AddSequence] = r
		}
		if len(seen) == n {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%d of %d refused adds are listed", len(seen), n)
		case <-tick.C:
		}
	}
}
