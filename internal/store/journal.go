package store

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Work-around 18 (docs/internals/nats-server.md). A power loss while nats-server commits a batch of writes to a shard
// can take the old and the new revisions of the records in that batch. The batch's journal, which is the key
// journal of the shard, still has the new ones; see jet.Journal. journals writes them again: when a store is opened,
// and after each lost connection, because the server may have lost its power then. It creates keys that do not exist,
// and replaces revisions that are older than the revision which the batch replaced. It leaves all other keys alone.
// Until it has done that, this process writes nothing to the shard; see jet.Writes.SetRestored.
type journals struct {
	jet    *jet.Client
	shards *Shards
	log    zerolog.Logger
	// restored has the shards whose records are restored, with the number of reconnects before that.
	restored map[int]uint64
}

const (
	// journalKeep is the interval between two checks for old journals. An idle shard keeps its journals for one to two
	// intervals, so that events of ended timers do not stay in them. It is far longer than the answer to a batch may take.
	journalKeep = time.Minute
	// journalRange is the number of newest sequences of a shard that are searched for journals. It covers a batch, and
	// the messages that other writers stored between the batch's journal and the batch.
	journalRange = 4 * jet.MaxBatch
	// journalRetry is the pause after a lost connection, and after a failed attempt to restore.
	journalRetry = 20 * time.Millisecond
	// replacers is the number of keys that are read and replaced at a time.
	replacers = 32
	// journalReserve is the part of a message that its subject may take.
	journalReserve = 1 << 10
	// maxJournal bounds a journal in bytes. A bucket keeps up to history of them, so a journal may also have no more
	// than one part in journalParts of the bucket: all of them then take a quarter of what new timers leave free
	// (reserveOf), or less.
	maxJournal   = 1 << 20
	journalParts = 16 * history
)

// settings returns where a client writes the journals of shards, on a server whose messages have maxPayload bytes or
// less. Errors: schemas.ErrUnavailable.
func (j *journals) settings(ctx context.Context, maxPayload int64) (jet.Journals, error) {
	most := min(maxPayload-journalReserve, maxJournal)
	subjects := map[string]string{}
	for n := range j.shards.subjects {
		sh := &j.shards.subjects[n]
		subjects[sh.stream] = sh.journal
		info, err := j.jet.Stream(ctx, sh.stream)
		if err != nil {
			return jet.Journals{}, err
		}
		if limit := info.Config.MaxBytes; limit > 0 {
			most = min(most, limit/journalParts)
		}
	}
	return jet.Journals{Subject: func(stream string) string { return subjects[stream] }, MaxBytes: int(most)}, nil
}

// run restores records after each lost connection, and removes old journals, until ctx ends.
func (j *journals) run(ctx context.Context) {
	tick := time.NewTicker(journalKeep)
	defer tick.Stop()
	newest := make([]uint64, len(j.shards.subjects)) // by shard: the last journal at the last tick
	for ctx.Err() == nil {
		broken, lost := context.WithCancel(ctx)
		forget, ok := j.jet.OnBreak(lost)
		if ok && j.restore(ctx) == nil {
			for broken.Err() == nil {
				select {
				case <-broken.Done():
				case <-tick.C:
					j.removeOld(broken, newest)
				}
			}
		}
		forget()
		lost()
		select {
		case <-ctx.Done():
		case <-time.After(journalRetry):
		}
	}
}

// restore restores the records of each shard whose records are not restored since the last reconnect, and then allows
// its writes. It returns an error if that failed for a shard.
func (j *journals) restore(ctx context.Context) error {
	var failed error
	for n := range j.shards.subjects {
		reconnects := j.jet.Reconnects()
		if at, ok := j.restored[n]; ok && at == reconnects {
			continue
		}
		if err := j.restoreShard(ctx, n); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		j.jet.SetRestored(j.shards.subjects[n].stream, reconnects)
		j.restored[n] = reconnects
	}
	return failed
}

// restoreShard writes again the records of the last batches of a shard that a power loss took.
func (j *journals) restoreShard(ctx context.Context, shard int) error {
	all, last, err := j.newest(ctx, shard)
	if err != nil {
		return err
	}
	for _, writes := range j.cutOff(all, last, j.shards.subjects[shard].journal) {
		restored, failed, err := j.write(ctx, j.shards.subjects[shard].stream, writes)
		if restored > 0 {
			j.log.Warn().Int("shard", shard).Int64("records", restored).Msg("restored records that a power loss had taken from the store")
		}
		if errors.Is(err, schemas.ErrUnavailable) {
			return err
		}
		if err != nil {
			j.log.Error().Err(err).Int("shard", shard).Int64("records", failed).Msg("records that a power loss has taken from the store cannot be restored; their timers do not fire, or fire again")
		}
	}
	return nil
}

// cutOff returns the writes of the batches that may not have been stored as a whole, the newest batch first, without
// writes that would have expired, and of each record only the newest write of any journal. It leaves out a write whose
// record exists, as the revision that the write replaced or a later one. all are the newest messages of a shard, and last
// is the sequence of the last one.
func (j *journals) cutOff(all []*jet.Msg, last uint64, key string) (cut [][]jet.JournalWrite) {
	handled := map[string]bool{}  // by writer: its newest journal was handled
	newer := map[string]bool{}    // by subject: a newer journal has a write of the record
	refused := map[string]bool{}  // by id: a batch that was not stored, and whose journal does not count
	stored := map[string]uint64{} // by subject: its last revision
	for _, m := range all {
		stored[m.Subject] = m.Sequence
	}
	for i, m := range slices.Backward(all) {
		if m.Subject != key {
			continue
		}
		journal, err := jet.ParseJournal(m.Data)
		if err != nil {
			j.log.Warn().Err(err).Str("key", key).Uint64("seq", m.Sequence).Msg("skipping a journal that cannot be read")
			continue
		}
		if journal.Writes == 0 {
			refused[journal.Batch] = true
		}
		newest := !handled[journal.Writer()]
		handled[journal.Writer()] = true
		if newest && !journal.BatchStored(m.Sequence, last, notOf(journal, all[i+1:])) {
			cut = append(cut, slices.DeleteFunc(slices.Clone(journal.RolledUp), func(w jet.JournalWrite) bool {
				return newer[w.Subject] || stored[w.Subject] >= max(w.Base, 1) || w.TTL > 0 && time.Since(m.Time) >= w.TTL
			}))
		}
		for _, w := range journal.RolledUp {
			newer[w.Subject] = newer[w.Subject] || !refused[journal.Batch]
		}
	}
	return cut
}

// notOf returns how many messages are not of a journal's batch.
func notOf(journal *jet.Journal, msgs []*jet.Msg) (n int) {
	for _, m := range msgs {
		if !journal.IsOf(m) {
			n++
		}
	}
	return n
}

// newest returns the newest messages of a shard, and the sequence of the last one. It returns none if no journal is
// among them.
func (j *journals) newest(ctx context.Context, shard int) (all []*jet.Msg, last uint64, err error) {
	sh := &j.shards.subjects[shard]
	m, err := j.jet.Last(ctx, sh.stream, sh.journal)
	if errors.Is(err, schemas.ErrNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	if last, err = j.shards.LastSeq(ctx, shard); err != nil || m.Sequence+journalRange <= last {
		return nil, last, err
	}
	for after := last - min(last, journalRange); after < last; {
		var msgs []*jet.Msg
		if msgs, after, _, err = j.shards.nextMessages(ctx, shard, after, scanBatch); err != nil {
			return nil, last, err
		}
		if len(msgs) == 0 {
			break
		}
		all = append(all, msgs...)
	}
	// Messages that were stored in the meantime do not count.
	return slices.DeleteFunc(all, func(m *jet.Msg) bool { return m.Sequence > last }), last, nil
}

// tally counts the writes of a restore. Safe for concurrent use.
type tally struct {
	mu               sync.Mutex
	restored, failed int64
	err              error // of a write that failed, schemas.ErrUnavailable if one has it
}

// add counts a write by its error. It counts nothing for ErrRevision.
func (t *tally) add(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil:
		t.restored++
	case !errors.Is(err, ErrRevision):
		t.failed++
		if t.err == nil || errors.Is(err, schemas.ErrUnavailable) {
			t.err = err
		}
	}
}

// unavailable reports whether a write failed because the server did not answer. The others need not be tried then.
func (t *tally) unavailable() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Is(t.err, schemas.ErrUnavailable)
}

// write makes those of the writes whose keys do not exist, or have an older revision than the write replaced. It returns
// how many writes were made and how many failed; err is the error of one of these.
func (j *journals) write(ctx context.Context, stream string, writes []jet.JournalWrite) (restored, failed int64, err error) {
	var t tally
	var wg sync.WaitGroup
	exist := make(chan jet.JournalWrite, len(writes))
	for _, w := range writes {
		wg.Add(1)
		j.jet.CreateAsync("restore "+w.Subject, w.Subject, w.Data, w.TTL, func(_ jet.Ack, err error) {
			defer wg.Done()
			if errors.Is(err, ErrRevision) && w.Base > 0 {
				exist <- w
			}
			t.add(err)
		})
	}
	wg.Wait()
	close(exist)
	for range min(replacers, len(exist)) {
		wg.Go(func() {
			for w := range exist {
				if !t.unavailable() {
					t.add(j.replace(ctx, stream, w))
				}
			}
		})
	}
	wg.Wait()
	return t.restored, t.failed, t.err
}

// replace makes a write whose key exists, if that has an older revision than the write replaced. It also removes still
// older ones, which makes the server count (work-around 19). Errors: ErrRevision if the key has no older revision, or
// another process writes it.
func (j *journals) replace(ctx context.Context, stream string, w jet.JournalWrite) error {
	m, err := j.jet.Last(ctx, stream, w.Subject)
	if errors.Is(err, schemas.ErrNotFound) || err == nil && m.Sequence >= w.Base {
		return ErrRevision // not found: it has ended in the meantime, or is damaged
	}
	if err == nil {
		_, err = j.jet.Replace(ctx, "restore "+w.Subject, w.Subject, w.Data, m.Sequence, w.TTL)
	}
	return err
}

// removeOld removes the journals of each shard that existed at the last call. newest has the last one then, 0 for none.
// A failure is repeated at the next call.
func (j *journals) removeOld(ctx context.Context, newest []uint64) {
	for n := range newest {
		sh := &j.shards.subjects[n]
		m, err := j.jet.Last(ctx, sh.stream, sh.journal)
		if err != nil {
			continue
		}
		if err := j.remove(ctx, sh, newest[n]); err != nil {
			j.log.Debug().Err(err).Int("shard", n).Msg("journals were not removed; trying again later")
			continue
		}
		newest[n] = m.Sequence
	}
}

// remove removes the journals of a shard up to a sequence, one by one: a purge of several would make the server count
// what each consumer of the stream has pending (work-around 19).
func (j *journals) remove(ctx context.Context, sh *shardSubjects, through uint64) error {
	for after := uint64(0); after < through; {
		msgs, _, err := j.jet.Next(ctx, sh.stream, sh.journal, after, 1)
		if err != nil || len(msgs) == 0 || msgs[0].Sequence > through {
			return err
		}
		after = msgs[0].Sequence
		if err := j.jet.DeleteMsg(ctx, "remove an old journal", sh.stream, after); err != nil && !errors.Is(err, schemas.ErrNotFound) {
			return err
		}
	}
	return nil
}
