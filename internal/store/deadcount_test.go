package store_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/schemas"
)

func publishAll(t *testing.T, s *store.Store, subject string, n, size int) (seqs []uint64) {
	t.Helper()
	for i := range n {
		seq, _, err := s.Publish(t.Context(), store.Msg{Subject: subject, MsgID: fmt.Sprintf("%s.%d", subject, i), Data: bytes.Repeat([]byte("x"), size)})
		if err != nil {
			t.Fatal(err)
		}
		seqs = append(seqs, seq)
	}
	return seqs
}

func totals(t *testing.T, s *store.Store) store.LetterTotals {
	t.Helper()
	l, err := s.DeadCounts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestRejectionsEvictNoDeadLetters: a flood of rejected adds evicts no dead letters.
func TestRejectionsEvictNoDeadLetters(t *testing.T) {
	t.Parallel()
	s := open(t, natstest.Run(t).InProcess(), func(c *store.Config) { c.DeadMaxBytes, c.RejectedMaxBytes = 4<<20, 4<<20 })
	publishAll(t, s, schemas.SubjectDead("orders"), 3, 1000)
	publishAll(t, s, schemas.SubjectRejected, 12, 900_000)
	l := totals(t, s)
	if l.Dead["orders"] != 3 || l.DeadExpired != 0 {
		t.Errorf("dead letters after a flood of rejected adds: %+v", l)
	}
	if l.Rejected == 0 || l.Rejected+l.RejectedExpired != 12 || l.LastRejected.IsZero() {
		t.Errorf("12 rejected adds count as %d kept and %d expired, the last at %s", l.Rejected, l.RejectedExpired, l.LastRejected)
	}
}

// TestExpiredDeadLettersAreCounted: dead letters that a full stream drops count as expired,
// replayed letters do not.
func TestExpiredDeadLettersAreCounted(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	s := open(t, srv.Connect(), func(c *store.Config) { c.DeadMaxBytes = 1 << 20 })
	seqs := publishAll(t, s, schemas.SubjectDead("orders"), 5, 1000)
	for range 2 { // the second finds nothing to remove, and counts nothing
		if err := s.DeadDelete(t.Context(), seqs[2]); err != nil {
			t.Fatal(err)
		}
	}
	if l := totals(t, s); l.Dead["orders"] != 4 || l.DeadExpired != 0 {
		t.Fatalf("after a replay: %+v", l)
	}
	publishAll(t, s, schemas.SubjectDead("mail"), 6, 250_000)
	l := totals(t, s)
	if kept := l.Dead["orders"] + l.Dead["mail"]; l.DeadExpired == 0 || kept+l.DeadExpired != 10 {
		t.Errorf("of 10 dead letters that were not replayed %d are kept and %d count as expired", kept, l.DeadExpired)
	}
	again := open(t, srv.Connect(), func(c *store.Config) { c.Node, c.DeadMaxBytes = "n2", 1<<20 })
	if l2 := totals(t, again); l2.DeadExpired != l.DeadExpired {
		t.Errorf("another node counts %d expired, not %d", l2.DeadExpired, l.DeadExpired)
	}
}

// TestRejectedSplitOff: Open splits a stream of an older build, which holds both dead letters
// and rejected adds.
func TestRejectedSplitOff(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	js := natstest.JetStream(t, nc)
	dead, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: schemas.StreamDead, Subjects: []string{schemas.SubjectDeadPrefix + "*", schemas.SubjectRejected}, Storage: jetstream.FileStorage, AllowDirect: true, MaxBytes: 8 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{schemas.SubjectDead("orders"), schemas.SubjectRejected, schemas.SubjectDead("orders")} {
		if _, err := js.Publish(t.Context(), subject, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := dead.DeleteMsg(t.Context(), 1); err != nil { // a replay by a build that did not count
		t.Fatal(err)
	}
	s := open(t, nc, func(c *store.Config) { c.Geometry = storetest.Geometry })
	publishAll(t, s, schemas.SubjectRejected, 2, 10)
	l := totals(t, s)
	if l.Dead["orders"] != 1 || l.DeadExpired != 0 || l.Rejected != 2 {
		t.Errorf("after the upgrade: %+v", l)
	}
}
