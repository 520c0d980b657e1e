package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestRejected: rejected adds and dead letters are listed, and status reports them as
// problems.
func TestRejected(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	nc, err := nats.Connect(n.nats)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	for i := range 7 {
		if err := nc.Publish(schemas.SubjectAdd, fmt.Appendf(nil, `{"specversion":"1.0","id":"bad-%d","source":"/shop","type":"t"}`, i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	var list []schemas.RejectedInfo
	waittest.Until(t, "7 rejections", func() bool {
		list = ok[schemas.RejectedInfo](t, n, "rejected", "ls")
		return len(list) == 7
	})
	if r := list[0]; !strings.HasPrefix(r.ID, "bad-") || r.Source != "/shop" || r.Code != schemas.CodeInvalidAttribute || !strings.Contains(r.Error, "timerat") {
		t.Errorf("rejected ls: got first rejection %+v, want one of source /shop, with its code and the attribute timerat", r)
	}
	if r := n.client(t, "rejected", "ls", "-n", "2"); r.code != exitOK || strings.Count(r.out, "bad-") != 2 || !strings.Contains(r.err, "-n 0") {
		t.Errorf("rejected ls -n 2: got %v, want two rejections, and a hint at -n 0 on stderr", r)
	}
	st := ok[statusJSON](t, n, "status")[0]
	if st.Totals.Rejected != 7 || !strings.Contains(strings.Join(st.Problems, ";"), "rejected adds: 7") || st.Totals.LastRejected.IsZero() {
		t.Errorf("status: got totals %+v and problems %q, want 7 rejected adds with a time", st.Totals, st.Problems)
	}
	n.client(t, "rejected", "list", "-n", "-1").oneLine(t, exitUsage)

	ok[added](t, n, "add", "--in", "1ms", "--svc", "orders", "--callback", "nats:nobody.serves.this", "--max-attempts", "1")
	waittest.Until(t, "status counts the dead letter", func() bool {
		st := ok[statusJSON](t, n, "status")[0]
		return st.Totals.Dead == 1 && strings.Contains(strings.Join(st.Problems, ";"), "dead letters: 1")
	})
}
