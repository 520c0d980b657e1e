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

// Inspection is the result of Inspect.
type Inspection struct {
	Damage ShardDamage
	// Key and Evidence are set if there is a sign of a loss that was not audited yet. The
	// caller must then audit the shard.
	Key, Evidence string
	// Messages is a lower bound of the lost messages; 0 if it is unknown.
	Messages uint64
	// Missing is the number of waiting timers that a count has missed.
	Missing int64
	// Suspect is true if the sign may have a harmless cause, so that the audit decides.
	Suspect bool
	// LastSeq is the last sequence of the shard's stream, Msgs the number of its messages
	// at StoredMs (Unix milliseconds, by the server's clock).
	LastSeq, Msgs uint64
	StoredMs      int64
	// Gone lists records of newer formats that are gone, or can be read now, with the
	// last revision that this is true of.
	Gone []NewerRecord
}

// Expectation is what an owner has recorded about its shard's stream in the clock.
type Expectation struct {
	// Msgs is the number of messages at MsgsMs (Unix milliseconds); 0 if it is unknown.
	Msgs   uint64
	MsgsMs int64
	// Seen is the last sequence that the owner had read.
	Seen uint64
	// Pending is the number of waiting timers as of Seen; -1 if it is unknown.
	Pending int64
}

// Expects returns what a clock says about its shard's stream.
func (c *Clock) Expects() Expectation {
	x := Expectation{Msgs: c.Msgs, MsgsMs: c.MsgsMs, Seen: max(c.Seen, c.Tail), Pending: -1}
	if c.Counted {
		x.Pending = c.Pending
	}
	return x
}

// Inspect examines a shard for its owner: it loads the recorded damage, reads damaged
// records again, and compares the stream with the owner's position. seen is the last
// sequence that this owner or a previous one has read. end is the last sequence of the
// stream when the owner took the shard, 0 if unknown. With an expectation, it also
// compares the number of messages; that is for the first inspection after the server may
// have started again. Without damage it takes a few requests.
func (s *Store) Inspect(ctx context.Context, shard int, seen, end uint64, expect *Expectation) (Inspection, error) {
	var in Inspection
	was, err := s.readDamage(ctx, shard)
	if err != nil {
		return in, err
	}
	d := &s.subjects[shard].damaged
	for _, r := range was.Records {
		if d.note(r) {
			s.undecodable.Add(1)
		}
	}
	if in.Gone, err = s.recheck(ctx, shard); err != nil {
		return in, err
	}
	if s.cfg.Replicas > 1 {
		end = 0 // a leader that was just elected may have had to catch up
	}
	found, err := s.signs(ctx, shard, seen, end, expect, &in)
	if err != nil {
		return in, err
	}
	for _, f := range found {
		if !was.knows(f.key) {
			in.Key, in.Evidence, in.Messages, in.Suspect = f.key, f.evidence, f.messages, f.suspect
			break
		}
	}
	in.Damage = ShardDamage{Shard: shard, Records: d.list(), Loss: was.Loss, Known: was.Known}
	return in, s.writeDamage(ctx, in.Damage)
}

// Interruptions counts the lost connections to the server.
func (s *Store) Interruptions() uint64 { return s.Conn().Stats().Reconnects }

// knows reports whether the loss of a key was audited.
func (d *ShardDamage) knows(key string) bool {
	return slices.Contains(d.Known, key) || d.Loss != nil && d.Loss.Key == key
}

// recheck reads damaged records again: they may be repaired, or gone. It returns those
// of newer formats among them.
func (s *Store) recheck(ctx context.Context, shard int) (gone []NewerRecord, err error) {
	d := &s.subjects[shard].damaged
	good := func(r DamagedRecord, rev uint64) {
		d.good(r.Timer, rev)
		if id, err := schemas.ParseTimerID(r.Timer); err == nil && r.Newer {
			gone = append(gone, NewerRecord{ID: id, Rev: rev})
		}
	}
	for i, r := range d.list() {
		if i == rechecks {
			break
		}
		m, err := s.jet.Last(ctx, s.subjects[shard].stream, s.subjects[shard].timer+r.Timer)
		switch {
		case errors.Is(err, schemas.ErrNotFound):
			good(r, 1<<64-1)
		case err != nil:
			return gone, err
		default:
			if _, err := s.timer(m); err == nil || errors.Is(err, schemas.ErrNotFound) || errors.Is(err, schemas.ErrNewer) && s.unread(m).Unread == UnreadFinal {
				good(r, m.Sequence)
			}
		}
	}
	return gone, nil
}

// sign is a trace that a loss leaves.
type sign struct {
	key, evidence string
	messages      uint64
	suspect       bool
}

// signs looks for traces of lost messages in a shard's stream. Deleted, superseded and
// expired messages leave gaps, too. They leave none of these signs, except suspects.
func (s *Store) signs(ctx context.Context, shard int, seen, end uint64, expect *Expectation, in *Inspection) ([]sign, error) {
	sh := &s.subjects[shard]
	info, err := s.jet.Stream(ctx, sh.stream)
	if err != nil {
		return nil, err
	}
	st := info.State
	in.LastSeq, in.Msgs, in.StoredMs = st.LastSeq, st.Msgs, info.TimeStamp.UnixMilli()
	if end == 0 || end > st.LastSeq {
		end = st.LastSeq
	}
	var found []sign
	if n := sh.damaged.unreadable.Load(); n > 0 {
		found = append(found, sign{
			key: fmt.Sprintf("unreadable %d", n), messages: uint64(n),
			evidence: "the server has messages that it cannot read: a block of the stream's file is damaged",
		})
	}
	if end < seen {
		// A leader that is behind catches up; only a lasting difference is a loss.
		if s.settled(sh, true) {
			found = append([]sign{{
				key: fmt.Sprintf("end %d of %d", end, seen), messages: seen - end,
				evidence: fmt.Sprintf("the stream ended at sequence %d, and its owner had read up to %d", end, seen),
			}}, found...)
		}
		return found, nil
	}
	s.settled(sh, false)
	if st.LastSeq == 0 {
		return found, nil
	}
	if st.FirstSeq > 1 {
		f, err := s.lostStart(ctx, sh)
		if err != nil {
			return nil, err
		}
		found = append(found, f...)
	}
	f, err := s.lostEnd(ctx, sh, &info)
	if err != nil {
		return nil, err
	}
	found = append(found, f...)
	if expect != nil {
		found = append(found, s.tooFew(&info, expect)...)
	}
	return found, nil
}

// countSlack is the number of messages by which a stream may shrink without a suspicion:
// revisions whose removal was under way when they were counted.
const countSlack = 64

// tooFew compares the number of messages of a shard's stream with the number that an owner
// recorded. Every write of a record adds a message and removes at most the message
// that it supersedes, so only expired messages may be fewer. Messages of waiting timers do not
// expire, and of the others at most the part that corresponds to the time between.
func (s *Store) tooFew(info *jet.StreamInfo, x *Expectation) []sign {
	st := &info.State
	if x.Msgs == 0 || st.LastSeq < x.Seen || st.Msgs+countSlack >= x.Msgs {
		return nil
	}
	lost := x.Msgs - st.Msgs
	mayExpire := float64(x.Msgs)
	if x.Pending > 0 {
		mayExpire = max(0, mayExpire-float64(x.Pending))
	}
	// Twice the average rate, because messages do not expire evenly.
	part := 2 * float64(info.TimeStamp.UnixMilli()-x.MsgsMs) / float64(min(s.cfg.Retention, s.cfg.IndexKeep).Milliseconds())
	if float64(lost) <= countSlack+mayExpire*min(max(part, 0), 1) {
		return nil
	}
	return []sign{{
		key: fmt.Sprintf("count %d of %d", st.Msgs, x.Msgs), messages: lost, suspect: true,
		evidence: fmt.Sprintf("the stream has %d messages, and had %d at %s", st.Msgs, x.Msgs, schemas.FormatTime(x.MsgsMs)),
	}}
}

// lostStart looks for a lost beginning of a shard's stream. Open writes the shard's own
// message before every record, so its sequence is 1. After the loss of the block that had
// it, Open writes it again, with the sequence that is next by then.
func (s *Store) lostStart(ctx context.Context, sh *shardSubjects) ([]sign, error) {
	m, err := s.jet.Last(ctx, sh.stream, sh.meta)
	if errors.Is(err, schemas.ErrNotFound) {
		return nil, nil // reads restore it: see loadDamaged
	}
	if err != nil || m.Sequence == 1 {
		return nil, err
	}
	return []sign{{
		key: fmt.Sprintf("start %d", m.Sequence), messages: m.Sequence - 1,
		evidence: fmt.Sprintf("the stream has lost its first message, and with it up to %d others that were stored before sequence %d", m.Sequence-2, m.Sequence),
	}}, nil
}

// lostEnd looks for a lost end of a shard's stream. Its newest message is superseded by
// none, so it exists as long as it cannot have expired.
func (s *Store) lostEnd(ctx context.Context, sh *shardSubjects, info *jet.StreamInfo) ([]sign, error) {
	st := &info.State
	if info.TimeStamp.Sub(st.LastTime) > min(s.cfg.Retention, s.cfg.IndexKeep)-goneMargin {
		return nil, nil
	}
	there, err := s.jet.Has(ctx, sh.stream, st.LastSeq)
	if err != nil || there {
		return nil, err
	}
	again, err := s.jet.Stream(ctx, sh.stream)
	if err != nil || again.State.LastSeq != st.LastSeq {
		return nil, err
	}
	gap, err := s.endGap(ctx, sh, st.LastSeq)
	if err != nil {
		return nil, err
	}
	return []sign{{
		key: fmt.Sprintf("gap at %d", st.LastSeq), messages: gap,
		evidence: fmt.Sprintf("the last %d messages of the stream, up to sequence %d, are not in its file", gap, st.LastSeq),
	}}, nil
}

// goneMargin is kept from the expiry of a message when it is missed.
const goneMargin = 5 * time.Second

// settled reports whether reads that a shard's leader refuses, or that lack what
// was there, are the truth by now.
func (s *Store) settled(sh *shardSubjects, stuck bool) bool {
	if !stuck {
		sh.damaged.stuck.Store(0)
		return false
	}
	if s.cfg.Replicas <= 1 {
		return true
	}
	return s.longStuck(sh)
}

// longStuck reports whether reads of a shard are refused for stuckAfter now.
func (s *Store) longStuck(sh *shardSubjects) bool {
	now := time.Now().UnixNano()
	if sh.damaged.stuck.CompareAndSwap(0, now) {
		return false
	}
	return now-sh.damaged.stuck.Load() >= int64(stuckAfter)
}

// endGap counts the sequences at the end of a stream that are not there.
func (s *Store) endGap(ctx context.Context, sh *shardSubjects, last uint64) (uint64, error) {
	m, err := s.jet.Last(ctx, sh.stream, "$KV."+strings.TrimPrefix(sh.stream, "KV_")+".>")
	if errors.Is(err, schemas.ErrNotFound) {
		return last, nil
	}
	if err != nil {
		return 0, err
	}
	return last - m.Sequence, nil
}

// Audit reads a whole shard after a sign of a loss. It passes on every waiting or claimed
// record that is due by throughMs (Unix milliseconds), restores lost index entries, and
// records what is missing. If the sign was only a suspicion and nothing is missing, it
// records that the sign is known, and returns a loss without Key. It takes about 100
// bytes of memory for each timer while it runs.
func (s *Store) Audit(ctx context.Context, shard int, in Inspection, expect Expectation, throughMs int64, fn func(Timer) error) (ShardDamage, error) {
	loss := ShardLoss{Key: in.Key, Evidence: in.Evidence, Messages: in.Messages, Expected: max(expect.Pending, 0)}
	nowMs, err := s.nowMs(ctx)
	if err != nil {
		return ShardDamage{}, err
	}
	loss.FoundMs = nowMs
	loss.Missing = in.Missing
	a := newAudit(s, shard)
	if err := a.read(ctx, func(t Timer) error {
		if t.Record.DueMs <= throughMs {
			return fn(t)
		}
		return nil
	}); err != nil {
		return ShardDamage{}, err
	}
	if expect.Pending >= 0 && nowMs-expect.MsgsMs < (s.cfg.Retention-goneMargin).Milliseconds() {
		loss.Missing = max(loss.Missing, expect.Pending-a.accounted(expect.Seen))
	}
	for id, r := range a.records {
		if !r.pending {
			continue
		}
		loss.Waiting++
		if a.indexed(id, r) {
			continue
		}
		if err := s.PutIndex(ctx, id, r.tick); err != nil {
			return ShardDamage{}, err
		}
		loss.Reindexed++
	}
	for _, id := range a.missing(nowMs) {
		if len(loss.Timers) == maxNamed {
			loss.TimersMore++
			continue
		}
		loss.Timers = append(loss.Timers, id.String())
	}
	slices.Sort(loss.Timers)
	loss.Gap = a.gap
	was, err := s.readDamage(ctx, shard)
	if err != nil {
		return ShardDamage{}, err
	}
	d := ShardDamage{Shard: shard, Records: s.subjects[shard].damaged.list(), Loss: was.Loss, Known: was.Known}
	if !in.Suspect || loss.Missing > 0 || loss.Reindexed > 0 || len(loss.Timers) > 0 {
		d.Loss = was.Loss.and(loss)
	}
	d.Known = append(slices.Clone(d.Known), in.Key)
	d.Known = d.Known[max(0, len(d.Known)-maxKnown):]
	return d, s.writeDamage(ctx, d)
}

// and adds a loss to l. If an operator has marked l as known, the new loss replaces it.
func (l *ShardLoss) and(next ShardLoss) *ShardLoss {
	if l == nil || l.Noted {
		return &next
	}
	next.Evidence = l.Evidence + "; " + next.Evidence
	if len(next.Evidence) > maxEvidence {
		next.Evidence = next.Evidence[:maxEvidence]
	}
	next.Messages += l.Messages
	next.Missing += l.Missing
	next.Reindexed += l.Reindexed
	for _, id := range l.Timers {
		if slices.Contains(next.Timers, id) {
			continue
		}
		if len(next.Timers) == maxNamed {
			next.TimersMore++
			continue
		}
		next.Timers = append(next.Timers, id)
	}
	next.TimersMore += l.TimersMore
	slices.Sort(next.Timers)
	if next.Gap == nil {
		next.Gap = l.Gap
	}
	return &next
}

// audit is one reading of a shard.
type audit struct {
	s       *Store
	shard   int
	records map[schemas.TimerID]audited
	named   map[schemas.TimerID]naming
	// gap is the longest run of sequences without a message so far. lastSeq and lastMs
	// are those of the last message.
	gap     *Gap
	lastSeq uint64
	lastMs  int64
}

func newAudit(s *Store, shard int) *audit {
	return &audit{s: s, shard: shard, records: map[schemas.TimerID]audited{}, named: map[schemas.TimerID]naming{}}
}

// audited is what an audit remembers of a record, naming of its index entries.
type audited struct {
	rev     uint64
	tick    int64
	pending bool
	// unread is true for a record that cannot be decoded: it may be a waiting one.
	unread bool
}

type naming struct {
	newestMs int64
	slots    []int64
}

// indexed reports whether an index entry names a timer in the slot of its due time.
func (a *audit) indexed(id schemas.TimerID, r audited) bool {
	return slices.Contains(a.named[id].slots, a.s.geo.Slot(r.tick))
}

// accounted returns the number of records that may have been waiting when the owner had
// read up to a sequence. These are waiting records, records that have changed since, and
// records that cannot be decoded.
func (a *audit) accounted(seen uint64) (n int64) {
	for _, r := range a.records {
		if r.pending || r.unread || r.rev > seen {
			n++
		}
	}
	return n
}

// step follows the sequences of messages, which come in order.
func (a *audit) step(seq uint64, ms int64) {
	if n := seq - a.lastSeq - 1; a.lastSeq > 0 && n > 0 && (a.gap == nil || n > a.gap.Last-a.gap.First+1) {
		a.gap = &Gap{First: a.lastSeq + 1, Last: seq - 1, AfterMs: a.lastMs, BeforeMs: ms}
	}
	a.lastSeq, a.lastMs = seq, ms
}

// read reads every record and index entry of the shard. fn gets the records that
// wait, or are claimed.
func (a *audit) read(ctx context.Context, fn func(Timer) error) error {
	sh := &a.s.subjects[a.shard]
	return a.s.jet.Scan(ctx, sh.stream, jet.Range{Filters: []string{sh.timer + "*", sh.slot + ">"}}, func(m jet.Msg) (bool, error) {
		a.step(m.Sequence, m.Time.UnixMilli())
		raw := &m
		if strings.HasPrefix(raw.Subject, sh.slot) {
			a.entry(sh, raw)
			return true, nil
		}
		id, err := schemas.ParseTimerID(lastToken(raw.Subject))
		if err != nil {
			a.s.decode(raw)  // notes a key that is no timer's
			return true, nil //nolint:nilerr // it stops nothing else
		}
		t, ok := a.s.decode(raw)
		if !ok {
			// There is a record, whatever it is.
			a.records[id] = audited{rev: raw.Sequence, unread: true}
			if jet.IsMarker(raw) {
				delete(a.records, id)
			}
			if t.Unread == UnreadOpen {
				return true, fn(t)
			}
			return true, nil
		}
		a.records[id] = audited{rev: t.Rev, tick: a.s.geo.Tick(t.Record.DueMs), pending: t.Record.Pending()}
		if t.Record.Pending() || t.Record.State == schemas.StateDelivered {
			return true, fn(t)
		}
		return true, nil
	})
}

func (a *audit) entry(sh *shardSubjects, m *jet.Msg) {
	var slot int64
	if _, err := fmt.Sscanf(strings.TrimPrefix(m.Subject, sh.slot), "%d.", &slot); err != nil {
		return
	}
	for _, id := range a.s.timersOf([]*jet.Msg{m}) {
		n := a.named[id]
		n.newestMs, n.slots = max(n.newestMs, m.Time.UnixMilli()), append(n.slots, slot)
		a.named[id] = n
	}
}

// missing are the timers that the index names and that have no record, although
// none that was concluded since it was indexed can have expired.
func (a *audit) missing(nowMs int64) []schemas.TimerID {
	var out []schemas.TimerID
	for id, n := range a.named {
		if _, ok := a.records[id]; !ok && nowMs-n.newestMs < (a.s.cfg.Retention-goneMargin).Milliseconds() {
			out = append(out, id)
		}
	}
	return out
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
