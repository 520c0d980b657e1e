package store_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/schemas"
)

// TestRestoreOverReturned: a power loss takes the claims of timers and the final records that a batch wrote, and the
// server has the pending records again, which the claims had removed. The store restores the final records, so that the
// timers do not fire again.
func TestRestoreOverReturned(t *testing.T) {
	t.Parallel()
	source := grouped(t)
	writes, revs := groupOf(t, source, 600)
	pending := map[schemas.TimerID][]byte{}
	for i := range writes {
		w := &writes[i]
		pending[w.ID] = w.Record.Append(nil)
		w.Rev, w.Record = revs[i], storetest.Delivered(*w.Record)
	}
	revs = updateAtOnce(t, source, writes)
	for i := range writes {
		r := *writes[i].Record
		r.State = schemas.StateSuccess
		writes[i].Rev, writes[i].Record, writes[i].TTL = revs[i], &r, journalTTL
	}
	updateAtOnce(t, source, writes)
	shard, msg, journal := lastJournal(t, source)

	srv := natstest.Run(t, natstest.SyncAlways)
	nc := srv.InProcess()
	open(t, nc).Close()
	js := natstest.JetStream(t, nc)
	inJournal := map[string]jet.JournalWrite{}
	for _, w := range journal.RolledUp {
		inJournal[w.Subject] = w
	}
	subject := func(id schemas.TimerID) string {
		return "$KV." + schemas.BucketTimers(shard) + ".timer." + id.String()
	}
	for id, record := range pending {
		w, ok := inJournal[subject(id)]
		if !ok {
			delete(pending, id)
			continue
		}
		a, err := js.Publish(t.Context(), w.Subject, record)
		if err != nil {
			t.Fatal(err)
		}
		if a.Sequence >= w.Base {
			t.Fatalf("the pending record has revision %d, and the claim had %d", a.Sequence, w.Base)
		}
	}
	if _, err := js.Publish(t.Context(), journalKey(shard), msg.Data); err != nil {
		t.Fatal(err)
	}
	s := open(t, srv.InProcess(), func(c *store.Config) { c.GroupCommit = true })
	for id := range pending {
		got, err := s.Get(t.Context(), id)
		if err != nil || got.Record.State != schemas.StateSuccess {
			t.Errorf("timer %s is %s (%v)", id, got.Record.State, err)
			continue
		}
		if n := revisionsOf(t, s, shard, subject(id)); n != 1 {
			t.Errorf("the record of timer %s has %d revisions", id, n)
		}
		m, err := shardStream(t, s, shard).GetLastMsgForSubject(t.Context(), subject(id))
		if err != nil {
			t.Fatal(err)
		}
		if ttl := m.Header.Get(jetstream.MsgTTLHeader); ttl != "7200s" {
			t.Errorf("the record of timer %s has TTL %q, want that of its journal", id, ttl)
		}
	}
}

// TestRestoreWrites: a write of a journal creates its key, or replaces a revision that is older than the write's base.
func TestRestoreWrites(t *testing.T) {
	t.Parallel()
	const shard, none = 0, -1000
	s := open(t, natstest.Run(t, natstest.SyncAlways).InProcess())
	tests := []struct {
		name   string
		exist  int // revisions of the key
		behind int // from the last of them to the base; none: there is no base
		want   bool
	}{
		{"no revision", 0, 1, true},
		{"no revision, no base", 0, none, true},
		{"an older revision", 1, 1, true},
		{"two older revisions", 2, 1, true},
		{"the replaced revision", 1, 0, false},
		{"a later revision", 1, -1, false},
		{"a revision, no base", 1, none, false},
	}
	writes := make([]jet.JournalWrite, len(tests))
	restored := 0
	for i, tt := range tests {
		w := jet.JournalWrite{Subject: fmt.Sprintf("$KV.%s.other%d", schemas.BucketTimers(shard), i), Data: []byte("restored")}
		last := 0
		for range tt.exist {
			a, err := s.JetStream().Publish(t.Context(), w.Subject, []byte("other"))
			if err != nil {
				t.Fatal(err)
			}
			last = int(a.Sequence)
		}
		if tt.behind != none {
			w.Base = uint64(last + tt.behind)
		}
		if writes[i] = w; tt.want {
			restored++
		}
	}
	if n, err := s.RestoreWrites(t.Context(), shard, writes); err != nil || n != int64(restored) {
		t.Errorf("%d writes were made (%v), want %d", n, err, restored)
	}
	for i, tt := range tests {
		m, err := shardStream(t, s, shard).GetLastMsgForSubject(t.Context(), writes[i].Subject)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(m.Data) == "restored"; got != tt.want {
			t.Errorf("%s: restored %t, want %t", tt.name, got, tt.want)
		}
		if n := revisionsOf(t, s, shard, writes[i].Subject); n != 1 {
			t.Errorf("%s: %d revisions are left", tt.name, n)
		}
	}
	if n, err := s.RestoreWrites(t.Context(), shard, writes); err != nil || n != 0 {
		t.Errorf("%d writes were made again (%v)", n, err)
	}
}
