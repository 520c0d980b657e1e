package store_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// journalTTL is the TTL of the records of cancelled timers in these tests.
const journalTTL = 2 * time.Hour

// updateInBatches claims every third timer of a group, cancels every third, and moves the others, all at once.
func updateInBatches(t *testing.T, s *store.Store, n int) []store.Write {
	t.Helper()
	writes, revs := groupOf(t, s, n)
	for i := range writes {
		w := &writes[i]
		switch w.Rev = revs[i]; i % 3 {
		case 0:
			w.Record = storetest.Delivered(*w.Record)
		case 1:
			r := *w.Record
			r.State, r.Queued = schemas.StateCancelled, false
			w.Record, w.TTL = &r, journalTTL
		default:
			r := *w.Record
			r.DueMs += 60_000
			w.Record = &r
		}
	}
	updateAtOnce(t, s, writes)
	return writes
}

// updateAtOnce makes updates all at once, and returns the new revisions.
func updateAtOnce(t *testing.T, s *store.Store, writes []store.Write) []uint64 {
	t.Helper()
	revs := make([]uint64, len(writes))
	var wg sync.WaitGroup
	for i, w := range writes {
		wg.Add(1)
		s.UpdateAsync(w, func(res store.Result) {
			if revs[i] = res.Rev; res.Err != nil {
				t.Error(res.Err)
			}
			wg.Done()
		})
	}
	wg.Wait()
	return revs
}

func shardStream(t *testing.T, s *store.Store, shard int) jetstream.Stream {
	t.Helper()
	stream, err := s.JetStream().Stream(t.Context(), "KV_"+schemas.BucketTimers(shard))
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func journalKey(shard int) string { return "$KV." + schemas.BucketTimers(shard) + ".journal" }

// allOf returns the messages of a shard, in stream order.
func allOf(t *testing.T, s *store.Store, shard int) (msgs []*jetstream.RawStreamMsg) {
	t.Helper()
	stream := shardStream(t, s, shard)
	info, err := stream.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
		if m, err := stream.GetMsg(t.Context(), seq); err == nil {
			msgs = append(msgs, m)
		}
	}
	return msgs
}

// TestGroupJournal: before a batch rolls revisions up, the shard has a journal with the batch's roll-ups, each with the
// revision that it replaces.
func TestGroupJournal(t *testing.T) {
	t.Parallel()
	s := grouped(t)
	updateInBatches(t, s, 600)
	checked := 0
	for shard := range s.Geometry().Shards {
		journaled := map[string]jet.JournalWrite{} // by subject: the write in the newest journal
		begun := false
		for _, m := range allOf(t, s, shard) {
			switch {
			case m.Subject == journalKey(shard):
				j, err := jet.ParseJournal(m.Data)
				if err != nil {
					t.Fatal(err)
				}
				begun = true
				clear(journaled)
				for _, w := range j.RolledUp {
					journaled[w.Subject] = w
					if wantTTL := map[schemas.State]time.Duration{schemas.StateCancelled: journalTTL}[decode(t, w.Data).State]; w.TTL != wantTTL {
						t.Errorf("%s has TTL %s in its journal, want %s", w.Subject, w.TTL, wantTTL)
					}
				}
			case begun && m.Header.Get("Nats-Batch-Id") != "" && m.Header.Get(jetstream.MsgRollup) != "":
				w := journaled[m.Subject]
				if !bytes.Equal(w.Data, m.Data) {
					t.Errorf("%s was committed in a batch, and is not in the journal before it", m.Subject)
				}
				if want := m.Header.Get(jetstream.ExpectedLastSubjSeqHeader); want == "0" || strconv.FormatUint(w.Base, 10) != want {
					t.Errorf("%s replaces revision %s, and %d in its journal", m.Subject, want, w.Base)
				}
				checked++
			}
		}
	}
	if checked == 0 {
		t.Error("no batch rolled up")
	}
}

func decode(t *testing.T, data []byte) *schemas.Record {
	t.Helper()
	r, err := schemas.DecodeRecord(data)
	if err != nil {
		t.Fatal(err)
	}
	return &r
}

// revisionsOf returns the number of messages on a subject of a shard.
func revisionsOf(t *testing.T, s *store.Store, shard int, subject string) uint64 {
	t.Helper()
	info, err := shardStream(t, s, shard).Info(t.Context(), jetstream.WithSubjectFilter(subject))
	if err != nil {
		t.Fatal(err)
	}
	return info.State.Subjects[subject]
}

// lastJournal returns the newest journal of any shard of a store.
func lastJournal(t *testing.T, s *store.Store) (shard int, m *jetstream.RawStreamMsg, j *jet.Journal) {
	t.Helper()
	for shard := range s.Geometry().Shards {
		if m, err := shardStream(t, s, shard).GetLastMsgForSubject(t.Context(), journalKey(shard)); err == nil {
			j, err := jet.ParseJournal(m.Data)
			if err != nil {
				t.Fatal(err)
			}
			return shard, m, j
		}
	}
	t.Fatal("no shard has a journal")
	return 0, nil, nil
}

// encodeJournal returns a journal of a batch with a number of writes.
func encodeJournal(format byte, batch string, n int, rolledUp ...jet.JournalWrite) []byte {
	b := append(binary.AppendUvarint([]byte{format}, uint64(len(batch))), batch...)
	b = binary.AppendUvarint(b, uint64(n))
	for _, w := range rolledUp {
		b = append(binary.AppendUvarint(b, uint64(len(w.Subject))), w.Subject...)
		b = binary.AppendUvarint(b, uint64(w.TTL/time.Second))
		if format > 1 {
			b = binary.AppendUvarint(b, w.Base)
		}
		b = append(binary.AppendUvarint(b, uint64(len(w.Data))), w.Data...)
	}
	return b
}

// journalBased returns a copy of a journal whose writes replace a revision: the one of their subject in bases, otherwise
// the first sequence of the stream, which no record has.
func journalBased(format byte, j *jet.Journal, bases map[string]uint64) []byte {
	writes := slices.Clone(j.RolledUp)
	for i := range writes {
		writes[i].Base = max(bases[writes[i].Subject], 1)
	}
	return encodeJournal(format, j.Batch, j.Writes, writes...)
}

// TestRestore: a store restores the records of a journal whose batch a power loss took, in whole or in part. It leaves
// alone what exists, unless it is older than the revision that the batch replaced, and what ended after the batch was
// stored.
func TestRestore(t *testing.T) {
	t.Parallel()
	source := grouped(t)
	updateInBatches(t, source, 600)
	shard, _, journal := lastJournal(t, source)
	data := journalBased(2, journal, nil)
	empty := encodeJournal(2, journal.Batch, 0)
	oneWrite := encodeJournal(2, journal.Batch, 1) // no roll-up
	records := map[string]*schemas.Record{}
	for _, w := range journal.RolledUp {
		records[w.Subject] = decode(t, w.Data)
	}
	tests := []struct {
		name string
		// before publishes messages to the shard before its store is opened again. It deletes those of subjects that
		// end with gone.
		before func(publish func(subject string, data []byte) (seq uint64))
		want   int // restored records
	}{
		{"the batch is gone", func(publish func(string, []byte) uint64) {
			publish(journalKey(shard), data)
		}, len(records)},
		{"the batch is gone, and its journal has the first format", func(publish func(string, []byte) uint64) {
			publish(journalKey(shard), journalBased(1, journal, nil))
		}, len(records)},
		{"a part of the batch is gone", func(publish func(string, []byte) uint64) {
			publish(journalKey(shard), data)
			for _, w := range journal.RolledUp[:10] {
				publish(w.Subject, w.Data)
			}
		}, len(records)},
		{"another writer wrote more than the batch has after the journal", func(publish func(string, []byte) uint64) {
			publish(journalKey(shard), data)
			for i := range journal.Writes + 10 {
				publish(fmt.Sprintf("$KV.%s.other%d", schemas.BucketTimers(shard), i), nil)
			}
		}, len(records)},
		{"the replaced revisions exist", func(publish func(string, []byte) uint64) {
			bases := map[string]uint64{}
			for _, w := range journal.RolledUp[:10] {
				bases[w.Subject] = publish(w.Subject, []byte("other"))
			}
			publish(journalKey(shard), journalBased(2, journal, bases))
		}, len(records) - 10},
		{"later revisions exist", func(publish func(string, []byte) uint64) {
			publish(journalKey(shard), data)
			for _, w := range journal.RolledUp[:10] {
				publish(w.Subject, []byte("other"))
			}
		}, len(records) - 10},
		{"the replaced revisions are gone, and older ones exist", func(publish func(string, []byte) uint64) {
			bases := map[string]uint64{}
			for _, w := range journal.RolledUp[:10] {
				publish(w.Subject, []byte("other"))
				publish(w.Subject, []byte("other"))
				bases[w.Subject] = publish(journalKey(shard)+".gone", nil)
			}
			publish(journalKey(shard), journalBased(2, journal, bases))
		}, len(records)},
		{"the replaced revisions are gone, older ones exist, and the journal does not say what they replaced", func(publish func(string, []byte) uint64) {
			bases := map[string]uint64{}
			for _, w := range journal.RolledUp[:10] {
				publish(w.Subject, []byte("other"))
				bases[w.Subject] = publish(journalKey(shard)+".gone", nil)
			}
			publish(journalKey(shard), journalBased(1, journal, bases))
		}, len(records) - 10},
		{"the batch was stored, its records have ended, and something follows it", func(publish func(string, []byte) uint64) {
			publish(journalKey(shard), data)
			for range journal.Writes + 1 {
				publish(journalKey(shard)+".gone", nil)
			}
		}, 0},
		{"the batch spans two blocks, of which one is lost", func(publish func(string, []byte) uint64) {
			publish(journalKey(shard), data)
			for range journal.Writes {
				publish(journalKey(shard)+".gone", nil)
			}
		}, len(records)},
		{"the batch was refused", func(publish func(string, []byte) uint64) {
			publish(journalKey(shard), data)
			publish(journalKey(shard), empty)
		}, 0},
		{"a later batch of the same writer was stored", func(publish func(string, []byte) uint64) {
			publish(journalKey(shard), data)
			publish(journalKey(shard), oneWrite)
			publish(strings.TrimSuffix(journalKey(shard), "journal")+"other", nil)
		}, 0},
		{"a journal cannot be read", func(publish func(string, []byte) uint64) {
			publish(journalKey(shard), data)
			publish(journalKey(shard), data[:len(data)-1])
		}, len(records)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			srv := natstest.Run(t, natstest.SyncAlways)
			nc := srv.InProcess()
			open(t, nc).Close()
			js := natstest.JetStream(t, nc)
			tt.before(func(subject string, data []byte) uint64 {
				a, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Data: data})
				if err != nil {
					t.Fatal(err)
				}
				if strings.HasSuffix(subject, ".gone") {
					stream, err := js.Stream(t.Context(), a.Stream)
					if err == nil {
						err = stream.DeleteMsg(t.Context(), a.Sequence)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				return a.Sequence
			})
			s := open(t, srv.InProcess(), func(c *store.Config) { c.GroupCommit = true })
			restored := 0
			for subject, want := range records {
				m, err := shardStream(t, s, shard).GetLastMsgForSubject(t.Context(), subject)
				if err != nil || string(m.Data) == "other" {
					continue
				}
				restored++
				if n := revisionsOf(t, s, shard, subject); n != 1 {
					t.Errorf("%s has %d revisions", subject, n)
				}
				if got := decode(t, m.Data); got.State != want.State || got.DueMs != want.DueMs {
					t.Errorf("%s is %s, due at %d; want %s, %d", subject, got.State, got.DueMs, want.State, want.DueMs)
				}
				byStore := m.Header.Get(jetstream.ExpectedLastSubjSeqHeader) != ""
				if expires := m.Header.Get(jetstream.MsgTTLHeader) != ""; byStore && expires != (want.State == schemas.StateCancelled) {
					t.Errorf("%s, %s, expires: %t", subject, want.State, expires)
				}
			}
			if restored != tt.want {
				t.Errorf("%d records of %d exist, want %d", restored, len(records), tt.want)
			}
			info, err := shardStream(t, s, shard).Info(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := s.RestoreShard(t.Context(), shard); err != nil {
				t.Fatal(err)
			}
			if again, err := shardStream(t, s, shard).Info(t.Context()); err != nil || again.State.LastSeq != info.State.LastSeq {
				t.Errorf("the second restore wrote something: %v", err)
			}
		})
	}
}

// TestRestoreNothingExpired: a record that would have expired is not restored, not even its earlier state from an older
// journal.
func TestRestoreNothingExpired(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t, natstest.SyncAlways)
	nc := srv.InProcess()
	open(t, nc).Close()
	js := natstest.JetStream(t, nc)
	subject := func(name string) string { return "$KV." + schemas.BucketTimers(0) + ".timer." + name }
	write := func(name string, seconds int) jet.JournalWrite {
		return jet.JournalWrite{Subject: subject(name), TTL: time.Duration(seconds) * time.Second, Data: []byte{'d'}}
	}
	journal := func(batch string, writes ...jet.JournalWrite) *jetstream.PubAck {
		t.Helper()
		ack, err := js.Publish(t.Context(), journalKey(0), encodeJournal(2, batch, len(writes), writes...))
		if err != nil {
			t.Fatal(err)
		}
		return ack
	}
	// Another writer has claimed the record that expires, before that. A third one tried to change another record, and was
	// refused.
	journal("a.1", write("expired", 0), write("claimed", 0))
	journal("c.1", write("claimed", 1))
	journal("c.1")
	ack := journal("b.1", write("expired", 1), write("lasting", 100))
	stream, err := js.Stream(t.Context(), ack.Stream)
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.GetMsg(t.Context(), ack.Sequence)
	if err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the first record would have expired", func() bool { return time.Since(m.Time) > time.Second })
	s := open(t, srv.InProcess(), func(c *store.Config) { c.GroupCommit = true })
	for name, want := range map[string]bool{"expired": false, "lasting": true, "claimed": true} {
		if _, err := shardStream(t, s, 0).GetLastMsgForSubject(t.Context(), subject(name)); (err == nil) != want {
			t.Errorf("the record %s: %v", name, err)
		}
	}
}

// TestRefusedBatchIsNotRestored: after the server has refused a batch, and the writes of its parts were made, nothing is
// restored from its journal when the records have ended.
func TestRefusedBatchIsNotRestored(t *testing.T) {
	t.Parallel()
	s := grouped(t)
	const shard, n = 0, 200
	writes := make([]store.Write, n)
	due := storetest.NowMs(t, s) + 3600_000
	for i, id := range storetest.IDsOf(s.Geometry(), shard, n) {
		writes[i] = store.Write{ID: id, Record: storetest.Pending(due)}
	}
	revs := storetest.CreateAll(t, s, writes)
	var wg sync.WaitGroup
	refused := atomic.Int64{}
	for i := range writes {
		w := writes[i]
		r := *w.Record
		r.State, r.Queued = schemas.StateCancelled, false
		w.Record, w.TTL, w.Rev = &r, journalTTL, revs[i]
		if i == n-1 {
			w.Rev-- // the revision of another timer
		}
		wg.Add(1)
		s.UpdateAsync(w, func(res store.Result) {
			if res.Err != nil {
				refused.Add(1)
			}
			wg.Done()
		})
	}
	wg.Wait()
	if refused.Load() != 1 {
		t.Fatalf("%d writes were refused, want 1", refused.Load())
	}
	stream := shardStream(t, s, shard)
	records := "$KV." + schemas.BucketTimers(shard) + ".timer.*"
	last, err := stream.GetLastMsgForSubject(t.Context(), journalKey(shard))
	if err != nil {
		t.Fatal(err)
	}
	if j, err := jet.ParseJournal(last.Data); err != nil || j.Writes != 0 {
		t.Fatalf("the newest journal is of %d writes (%v): the last batch was not refused, or its journal counts", j.Writes, err)
	}
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject(records)); err != nil {
		t.Fatal(err)
	}
	if err := s.RestoreShard(t.Context(), shard); err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(records))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(info.State.Subjects); n != 0 {
		t.Errorf("%d records were restored", n)
	}
}

// TestRestoreAfterReconnect: after a lost connection, a store restores the records of a shard, while its callers try
// their writes again and again.
func TestRestoreAfterReconnect(t *testing.T) {
	t.Parallel()
	source := grouped(t)
	updateInBatches(t, source, 600)
	shard, msg, journal := lastJournal(t, source)
	srv := natstest.Run(t, natstest.SyncAlways)
	s := open(t, srv.InProcess(nats.ReconnectWait(time.Millisecond)), func(c *store.Config) { c.GroupCommit = true })
	writer := natstest.JetStream(t, srv.InProcess())
	if _, err := writer.Publish(t.Context(), journalKey(shard), msg.Data); err != nil {
		t.Fatal(err)
	}
	ids := storetest.IDsOf(s.Geometry(), shard, journal.Writes)
	due := storetest.NowMs(t, s) + 3600_000
	refused := 0
	srv.Stop()
	for started := false; ; {
		writes := make([]store.Write, len(ids))
		for i, id := range ids {
			writes[i] = store.Write{ID: id, Record: storetest.Pending(due)}
		}
		failed := false
		for _, r := range s.Create(t.Context(), writes) {
			if r.Err != nil && !errors.Is(r.Err, store.ErrRevision) {
				failed = true
				refused++
			}
		}
		if !failed {
			break
		}
		if !started {
			srv.Start()
			started = true
		}
	}
	if refused == 0 {
		t.Fatal("no write was refused while the connection was down")
	}
	for _, w := range journal.RolledUp {
		if _, err := shardStream(t, s, shard).GetLastMsgForSubject(t.Context(), w.Subject); err != nil {
			t.Fatalf("%s is not restored: %v", w.Subject, err)
		}
	}
}

// TestOldJournals: the journals of an idle shard are removed, newer ones are kept.
func TestOldJournals(t *testing.T) {
	t.Parallel()
	s := grouped(t)
	updateInBatches(t, s, 600)
	shard, _, _ := lastJournal(t, s)
	journals := func() uint64 {
		info, err := shardStream(t, s, shard).Info(t.Context(), jetstream.WithSubjectFilter(journalKey(shard)))
		if err != nil {
			t.Fatal(err)
		}
		return info.State.Subjects[journalKey(shard)]
	}
	remove := s.RemoveOldJournals()
	remove(t.Context())
	if journals() == 0 {
		t.Error("new journals were removed")
	}
	remove(t.Context())
	if n := journals(); n != 0 {
		t.Errorf("%d journals are left in an idle shard", n)
	}
}

// TestJournalRefused: if the server refuses a journal, here because it is larger than the stream allows, the writes of
// its batch are made without it.
func TestJournalRefused(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t, natstest.SyncAlways)
	s := open(t, srv.InProcess(), func(c *store.Config) { c.GroupCommit = true })
	for shard := range s.Geometry().Shards {
		cfg := shardStream(t, s, shard).CachedInfo().Config
		cfg.MaxMsgSize = 2000
		if _, err := s.JetStream().UpdateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range updateInBatches(t, s, 300) {
		got, err := s.Get(t.Context(), w.ID)
		if err != nil || got.Record.State != w.Record.State {
			t.Fatalf("%v, %v; want %s", got, err, w.Record.State)
		}
	}
}

// TestJournalsFit: as many journals as a small shard keeps take no more than a quarter of the space that is kept for
// the timers in it.
func TestJournalsFit(t *testing.T) {
	t.Parallel()
	const limit = 16 << 20
	s := open(t, natstest.Run(t, natstest.SyncAlways).InProcess(), func(c *store.Config) { c.GroupCommit, c.ShardMaxBytes = true, limit })
	updateInBatches(t, s, 6000)
	largest := 0
	for shard := range s.Geometry().Shards {
		for _, m := range allOf(t, s, shard) {
			if m.Subject == journalKey(shard) {
				largest = max(largest, len(m.Data))
			}
		}
	}
	if most := int(store.ReserveOf(limit)) / 4 / store.History; largest == 0 || largest > most {
		t.Errorf("the largest journal has %d bytes, want 1 to %d", largest, most)
	}
}
