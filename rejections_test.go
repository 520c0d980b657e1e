package belfry_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/waittest"
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
	seen := map[uint64]belfry.Rejection{}
	waittest.Until(t, "every rejected add is listed", func() bool {
		for r, err := range c.Rejections(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			seen[r.AddSequence] = r
		}
		return len(seen) == n
	}, func() string { return fmt.Sprintf("%d of %d are", len(seen), n) })
}
