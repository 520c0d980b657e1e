package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Damage to a shard comes from a disk, or from a client that is not an owner. The shard's
// owner records it under the key damage.<shard> of bucket clock, so that the report
// outlives the owner and every reader of the store sees it.

// DamagedRecord is a record that cannot be decoded.
type DamagedRecord struct {
	// Timer is the timer id, as it stands in the key.
	Timer string `json:"timer"`
	// Revision is the revision of the damaged value; 0 if the server cannot read it.
	Revision uint64 `json:"revision"`
	Reason   string `json:"reason"`
	// Newer is true for a record of a newer version, which is not damaged.
	Newer bool `json:"newer,omitempty"`
}

// ShardLoss describes the messages of a shard's stream that the server has lost.
type ShardLoss struct {
	FoundMs int64 `json:"found_ms"`
	// Key identifies the loss. Evidence describes it in a sentence.
	Key      string `json:"key"`
	Evidence string `json:"evidence"`
	// Messages is a lower bound of the lost messages; 0 if it is unknown.
	Messages uint64 `json:"messages"`
	// Missing is the number of waiting timers that an owner had counted and that are gone.
	// It is a lower bound; 0 also if the owner's count is unknown.
	Missing int64 `json:"missing,omitempty"`
	// Timers lists timers that the index names and that have no record, at most maxNamed;
	// TimersMore counts the others.
	Timers     []string `json:"timers,omitempty"`
	TimersMore int      `json:"timers_more,omitempty"`
	// Waiting is the number of waiting timers that were found, Expected the owner's count.
	Waiting  int64 `json:"waiting"`
	Expected int64 `json:"expected"`
	// Gap is the longest run of sequences without a message; nil if nothing points to a
	// gap. Deleted and expired messages leave gaps too, so it is only a hint.
	Gap *Gap `json:"gap,omitempty"`
	// Reindexed is the number of lost index entries that were restored.
	Reindexed int `json:"reindexed"`
	// Noted is true once an operator has marked the loss as known (belfry repair).
	Noted bool `json:"noted,omitempty"`
}

// Gap is a run of sequences without a message.
type Gap struct {
	// First and Last are the sequences that are missing.
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
	// AfterMs and BeforeMs are the times at which the neighbouring messages were stored,
	// in Unix milliseconds.
	AfterMs  int64 `json:"after_ms"`
	BeforeMs int64 `json:"before_ms"`
}

// String describes the gap for an operator.
func (g *Gap) String() string {
	return fmt.Sprintf("the longest gap is sequences %d to %d, stored between %s and %s", g.First, g.Last, schemas.FormatTime(g.AfterMs), schemas.FormatTime(g.BeforeMs))
}

// ShardDamage is the damage that the owner of a shard has found.
type ShardDamage struct {
	Shard int `json:"shard"`
	// Records lists at most maxNamed damaged records and records of newer formats. More
	// counts the other damaged records, MoreNewer the others of newer formats.
	Records   []DamagedRecord `json:"records,omitempty"`
	More      int             `json:"more,omitempty"`
	MoreNewer int             `json:"more_newer,omitempty"`
	Loss      *ShardLoss      `json:"loss,omitempty"`
	// Known lists the keys of the losses that were audited, at most maxKnown. Some signs
	// of a loss last, and must not hide the signs of the next one.
	Known []string `json:"known,omitempty"`
}

// Problems returns the damage in sentences.
func (d *ShardDamage) Problems() []string {
	var out []string
	newer := d.Newer()
	if n := d.Count(); n > 0 {
		out = append(out, fmt.Sprintf("shard %d has %d damaged records, of which none fires (belfry repair)", d.Shard, n))
	}
	if newer > 0 {
		out = append(out, fmt.Sprintf("shard %d has %d records of a newer version of Belfry: they wait for a node of that version, and the low watermark stays before them", d.Shard, newer))
	}
	if l := d.Loss; l != nil && !l.Noted {
		out = append(out, fmt.Sprintf("shard %d has lost messages: %s (belfry repair)", d.Shard, l.Summary()))
	}
	return out
}

// Summary describes the loss in a sentence without the ids of timers.
func (l *ShardLoss) Summary() string {
	text := l.Evidence
	if l.Missing > 0 {
		text += fmt.Sprintf("; at least %d waiting timers are gone", l.Missing)
	}
	text += fmt.Sprintf("; %d timers wait", l.Waiting)
	if l.Expected > 0 {
		text += fmt.Sprintf(", and its owner had counted %d", l.Expected)
	}
	if n := len(l.Timers) + l.TimersMore; n > 0 {
		text += fmt.Sprintf("; the index names %d timers without a record", n)
	}
	if l.Reindexed > 0 {
		text += fmt.Sprintf("; %d index entries were restored", l.Reindexed)
	}
	if l.Gap != nil {
		text += "; " + l.Gap.String()
	}
	return text
}

// Count returns the number of damaged records.
func (d *ShardDamage) Count() int { return len(d.Records) + d.More + d.MoreNewer - d.Newer() }

// Newer returns the number of records of newer formats.
func (d *ShardDamage) Newer() int {
	n := d.MoreNewer
	for _, r := range d.Records {
		if r.Newer {
			n++
		}
	}
	return n
}

const (
	// maxNamed bounds the entries of each list in a report.
	maxNamed = 100
	// maxKnown bounds ShardDamage.Known.
	maxKnown = 16
	// maxEvidence bounds the bytes of ShardLoss.Evidence when losses add up.
	maxEvidence = 1000
	// maxDamaged bounds the damaged records of a shard that a node remembers.
	maxDamaged = 10_000
	// rechecks is the number of damaged records that an inspection reads again.
	rechecks = 64
	// stuckAfter is how long the leader of a replicated shard may refuse reads before its
	// answer is final. A newly elected leader may need some seconds to apply the log.
	stuckAfter = 10 * time.Second
)

const damagePrefix = clockPrefix + "damage."

func damageSubject(shard int) string { return fmt.Sprintf("%s%d", damagePrefix, shard) }

// damagedSet holds the damaged records of a shard that this process has read.
type damagedSet struct {
	n  atomic.Int64 // len(by), for those who need not look
	mu sync.Mutex
	by map[string]DamagedRecord // by timer
	// found counts the damaged records that were added to by; reported is the value of
	// found at the last report.
	found, reported atomic.Uint64
	// unreadable counts messages that the server could not read.
	unreadable atomic.Int64
	// stuck is the time of the first refused read, in Unix nanoseconds; 0 for none.
	stuck atomic.Int64
}

// note remembers a damaged record; false if it was known.
func (d *damagedSet) note(r DamagedRecord) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	was, known := d.by[r.Timer]
	if known && was.Revision >= r.Revision || len(d.by) >= maxDamaged && !known {
		return false
	}
	if d.by == nil {
		d.by = map[string]DamagedRecord{}
	}
	d.by[r.Timer] = r
	d.n.Store(int64(len(d.by)))
	if !r.Newer {
		d.found.Add(1)
	}
	return true
}

// good forgets a record that was damaged before a revision.
func (d *damagedSet) good(timer string, rev uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if was, known := d.by[timer]; known && was.Revision <= rev {
		delete(d.by, timer)
		d.n.Store(int64(len(d.by)))
	}
}

func (d *damagedSet) list() []DamagedRecord {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]DamagedRecord, 0, len(d.by))
	for _, r := range d.by {
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b DamagedRecord) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Timer, b.Timer))
	})
	return out
}

// damagedOf is the set of the shard that a subject belongs to, nil for none.
func (s *Store) damagedOf(subject string) *damagedSet {
	for n := range s.subjects {
		if strings.HasPrefix(subject, s.subjects[n].timer) {
			return &s.subjects[n].damaged
		}
	}
	return nil
}

func lastToken(subject string) string { return subject[strings.LastIndexByte(subject, '.')+1:] }

// noteDamaged remembers a record that cannot be decoded, and logs it once.
func (s *Store) noteDamaged(m *jet.Msg, err error) {
	s.undecodable.Add(1)
	d := s.damagedOf(m.Subject)
	if d == nil || !d.note(DamagedRecord{Timer: lastToken(m.Subject), Revision: m.Sequence, Reason: err.Error(), Newer: errors.Is(err, schemas.ErrNewer)}) {
		return
	}
	if errors.Is(err, schemas.ErrNewer) {
		// The scheduler logs once for all of them.
		s.log.Debug().Str("key", m.Subject).Uint64("revision", m.Sequence).Err(err).Msg("record of a newer format")
		return
	}
	s.log.Error().Str("key", m.Subject).Uint64("revision", m.Sequence).Err(err).Msg("record skipped: it cannot be decoded; \"belfry repair\" shows what can be done")
}

// --- the report ---

func (s *Store) readDamage(ctx context.Context, shard int) (ShardDamage, error) {
	m, err := s.jet.Last(ctx, clockStream, damageSubject(shard))
	if errors.Is(err, schemas.ErrNotFound) || err == nil && jet.IsMarker(m) {
		return ShardDamage{Shard: shard}, nil
	}
	if err != nil {
		return ShardDamage{Shard: shard}, err
	}
	var d ShardDamage
	if json.Unmarshal(m.Data, &d) != nil {
		d = ShardDamage{} // it is written again
	}
	d.Shard = shard
	return d, nil
}

// reportDamaged records the damaged records of a shard that this process has read since the
// last report. A clock that has passed a damaged record must not be written before: if its
// writer died then, no later owner would read the record again. Without new damage it makes
// no request.
func (s *Store) reportDamaged(ctx context.Context, shard int) error {
	set := &s.subjects[shard].damaged
	found := set.found.Load()
	if found == set.reported.Load() {
		return nil
	}
	d, err := s.readDamage(ctx, shard)
	if err != nil {
		return err
	}
	for _, r := range d.Records {
		set.note(r)
	}
	d.Records, d.More, d.MoreNewer = set.list(), 0, 0
	if err := s.writeDamage(ctx, d); err != nil {
		return err
	}
	set.reported.Store(found)
	return nil
}

// writeDamage records the damage of a shard if it has changed.
func (s *Store) writeDamage(ctx context.Context, d ShardDamage) error {
	if len(d.Records) > maxNamed {
		for _, r := range d.Records[maxNamed:] {
			if r.Newer {
				d.MoreNewer++
			} else {
				d.More++
			}
		}
		d.Records = d.Records[:maxNamed]
	}
	was, err := s.readDamage(ctx, d.Shard)
	if err != nil {
		return err
	}
	b, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	if old, err := json.Marshal(was); err != nil || string(old) == string(b) {
		return err
	}
	subject := damageSubject(d.Shard)
	_, err = s.jet.Await(ctx, "write "+subject, func(done func(jet.Ack, error)) { s.jet.PublishAsync("write "+subject, subject, nil, b, done) })
	return err
}

// ReadDamage reads the recorded damage of all shards, by shard.
func (s *Store) ReadDamage(ctx context.Context) ([]ShardDamage, error) {
	a, err := s.jet.Direct(ctx, clockStream, jet.Get{MultiLast: []string{damagePrefix + "*"}, MaxBytes: jet.MaxAnswerBytes})
	if err != nil {
		return nil, err
	}
	var out []ShardDamage
	for _, m := range a.Msgs {
		var d ShardDamage
		if jet.IsMarker(m) || json.Unmarshal(m.Data, &d) != nil || len(d.Problems()) == 0 {
			continue
		}
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b ShardDamage) int { return a.Shard - b.Shard })
	return out, nil
}

// --- reads of a damaged stream ---

// loadDamaged is LoadTicks where direct gets fail for good: a message of a damaged
// block that the server cannot read, or the shard's meta key being gone, makes
// nats-server 2.15.2 answer "not found" to a request for many. The index is read
// with a consumer, which leaves such messages out, and records in ever smaller
// groups.
func (s *Store) loadDamaged(ctx context.Context, shard int, ticks []int64, limit int) (Load, error) {
	sh := &s.subjects[shard]
	if _, err := s.jet.Last(ctx, sh.stream, sh.meta); errors.Is(err, schemas.ErrNotFound) {
		if err := s.jet.CreateOnce(ctx, sh.stream, sh.meta, []byte("belfry")); err != nil {
			return Load{}, err
		}
		return s.loadTicks(ctx, shard, ticks, limit, 0, 0)
	}
	filters := make([]string, len(ticks))
	for i, t := range ticks {
		filters[i] = s.slotPrefix(shard, t) + ">"
	}
	var index []*jet.Msg
	err := s.jet.Scan(ctx, sh.stream, jet.Range{Filters: filters}, func(m jet.Msg) (bool, error) {
		index = append(index, &m)
		return true, nil
	})
	if err != nil {
		return Load{}, err
	}
	ids := s.timersOf(index)
	if len(ids) > limit && len(ticks) > 1 {
		return Load{}, nil
	}
	var timers []Timer
	for some := range slices.Chunk(ids, jet.MaxSubjects) {
		got, err := s.readable(ctx, shard, some)
		if err != nil {
			return Load{}, err
		}
		timers = append(timers, got...)
	}
	// The index may be what could not be read: then nothing tells which timers it
	// named, and the audit finds them.
	if sh.damaged.unreadable.Load() == 0 {
		sh.damaged.unreadable.Add(1)
	}
	return s.loaded(shard, ticks, index, timers), nil
}

// readable reads the records that the server can read.
func (s *Store) readable(ctx context.Context, shard int, ids []schemas.TimerID) ([]Timer, error) {
	timers, err := s.indexed(ctx, shard, ids, 0)
	if err == nil || !errors.Is(err, jet.ErrMissing) {
		return timers, err
	}
	if len(ids) > 1 {
		half := len(ids) / 2
		a, err := s.readable(ctx, shard, ids[:half])
		if err != nil {
			return nil, err
		}
		b, err := s.readable(ctx, shard, ids[half:])
		return append(a, b...), err
	}
	sh := &s.subjects[shard]
	if sh.damaged.note(DamagedRecord{Timer: ids[0].String(), Reason: "the server cannot read it: a block of the stream's file is damaged"}) {
		sh.damaged.unreadable.Add(1)
		s.log.Error().Int("shard", shard).Stringer("timer", ids[0]).Msg("record lost: the server cannot read it; a block of the stream's file is damaged")
	}
	return nil, nil
}
