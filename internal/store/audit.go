package store

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Audit reads a whole shard after Inspect has found a sign of a loss. It passes every pending
// or claimed record that is due by throughMs (Unix milliseconds) to fn, and every record of a
// newer format that may have to fire. It restores lost index entries, and adds the loss to the
// shard's recorded damage, which it returns. If the sign
// was only a suspicion (in.Suspect) and nothing is missing, it adds no loss, but records that
// the sign is known. It takes about 100 bytes of memory for each timer. Errors: those of fn,
// schemas.ErrUnavailable.
func (i *Inspector) Audit(ctx context.Context, shard int, in Inspection, expect Expectation, throughMs int64, fn func(Timer) error) (ShardDamage, error) {
	loss := ShardLoss{Key: in.Key, Evidence: in.Evidence, Messages: in.Messages, Expected: max(expect.Pending, 0)}
	nowMs, err := i.nodes.nowMs(ctx)
	if err != nil {
		return ShardDamage{}, err
	}
	loss.FoundMs = nowMs
	loss.Missing = in.Missing
	a := newAudit(i.jet, i.dec, shard)
	if err := a.read(ctx, func(t Timer) error {
		if t.Record.DueMs <= throughMs {
			return fn(t)
		}
		return nil
	}); err != nil {
		return ShardDamage{}, err
	}
	if expect.Pending >= 0 && nowMs-expect.MsgsMs < (i.retention-goneMargin).Milliseconds() {
		loss.Missing = max(loss.Missing, expect.Pending-a.accounted(expect.Seen))
	}
	if loss.Reindexed, loss.Waiting, err = i.reindex(ctx, a); err != nil {
		return ShardDamage{}, err
	}
	for _, id := range a.missing(nowMs, i.retention) {
		if len(loss.Timers) == maxNamed {
			loss.TimersMore++
			continue
		}
		loss.Timers = append(loss.Timers, id.String())
	}
	slices.Sort(loss.Timers)
	loss.Gap = a.gap
	return i.reports.change(ctx, shard, func(d *ShardDamage) {
		// Keep what another owner has added. A record that was repaired meanwhile may be among them: the next
		// inspections remove it.
		for _, r := range d.Records {
			i.dec.damaged[shard].note(r)
		}
		*d = ShardDamage{Shard: shard, Records: i.dec.damaged[shard].list(), Loss: d.Loss, Known: append(slices.Clone(d.Known), in.Key)}
		if !in.Suspect || loss.Missing > 0 || loss.Reindexed > 0 || len(loss.Timers) > 0 {
			d.Loss = d.Loss.and(loss)
		}
		d.Known = d.Known[max(0, len(d.Known)-maxKnown):]
	})
}

// Reindex reads a whole shard and writes an index entry for each pending timer that has none, or whose entries
// expire less than half of IndexKeep after the timer's tick. It returns the number of these timers. An owner calls it
// after the cluster's clock was set back: entries that were written before may be too short then. It takes about 100
// bytes of memory for each timer. Errors: schemas.ErrUnavailable.
func (i *Inspector) Reindex(ctx context.Context, shard int) (timers int, err error) {
	a := newAudit(i.jet, i.dec, shard)
	a.outlive = min(i.index.keep, DefaultIndexKeep) / 2
	if err := a.read(ctx, func(Timer) error { return nil }); err != nil {
		return 0, err
	}
	timers, _, err = i.reindex(ctx, a)
	return timers, err
}

// reindex writes the index entries that an audit misses. It returns their number, and that of the pending records.
func (i *Inspector) reindex(ctx context.Context, a *audit) (timers int, waiting int64, err error) {
	for id, r := range a.records {
		if !r.pending {
			continue
		}
		waiting++
		if a.indexed(id, r) {
			continue
		}
		if err := i.index.PutIndex(ctx, id, r.tick); err != nil {
			return timers, waiting, err
		}
		timers++
	}
	return timers, waiting, nil
}

// and returns the sum of two losses. If an operator has marked l as known, it returns next.
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

// audit is one scan of a shard: of its records, its index entries, and the gaps between
// them.
type audit struct {
	jet     *jet.Client
	dec     *decoder
	shard   int
	records map[schemas.TimerID]audited
	named   map[schemas.TimerID]naming // timers in index entries
	// marked are the periods of far entries whose mark exists, with the time at which it expires. Without it loads
	// do not find the far entries.
	marked map[int64]expiry
	// outlive is how long an entry must outlive its tick to count; 0 if every entry counts.
	outlive time.Duration
	// gap is the longest run of sequences without a message so far. lastSeq and lastMs are
	// the sequence and the time (Unix milliseconds) of the last message.
	gap     *Gap
	lastSeq uint64
	lastMs  int64
}

func newAudit(c *jet.Client, dec *decoder, shard int) *audit {
	return &audit{jet: c, dec: dec, shard: shard, records: map[schemas.TimerID]audited{}, named: map[schemas.TimerID]naming{}, marked: map[int64]expiry{}}
}

// audited is the newest revision of a record.
type audited struct {
	rev     uint64
	tick    int64 // of the due time
	pending bool
	unread  bool // it cannot be decoded; it may be pending
}

// naming describes the index entries that name a timer.
type naming struct {
	newestMs int64 // when the newest entry was stored, in Unix milliseconds
	slots    []slotNaming
	far      []farNaming
}

// slotNaming is an entry's naming of a timer for a slot.
type slotNaming struct {
	slot int64
	ends expiry
}

// farNaming is a far entry's naming of a timer for a slot.
type farNaming struct {
	period int64
	slotNaming
}

// expiry is when an entry expires, in Unix milliseconds.
type expiry int64

// expiryOf returns the expiry of a message.
func expiryOf(m *jet.Msg) expiry {
	if ttl := jet.TTL(m); ttl > 0 {
		return expiry(m.Time.Add(ttl).UnixMilli())
	}
	return math.MaxInt64
}

// indexed reports whether an index entry names a timer in the slot of its due time, and lasts until then.
func (a *audit) indexed(id schemas.TimerID, r audited) bool {
	geo := a.dec.shards.geo
	n, slot := a.named[id], geo.Slot(r.tick)
	var until expiry
	if a.outlive > 0 {
		until = expiry(geo.TickStart(r.tick+1) + a.outlive.Milliseconds())
	}
	return slices.ContainsFunc(n.slots, func(s slotNaming) bool { return s.slot == slot && s.ends >= until }) ||
		slices.ContainsFunc(n.far, func(f farNaming) bool {
			mark, marked := a.marked[f.period]
			return f.slot == slot && marked && min(f.ends, mark) >= until
		})
}

// accounted returns the number of records that may have been pending when the owner had read
// the stream up to sequence seen: records that are pending, that have changed since, or that
// cannot be decoded.
func (a *audit) accounted(seen uint64) (n int64) {
	for _, r := range a.records {
		if r.pending || r.unread || r.rev > seen {
			n++
		}
	}
	return n
}

// step looks for a gap before a message. It is called for all messages in stream order.
func (a *audit) step(seq uint64, ms int64) {
	if n := seq - a.lastSeq - 1; a.lastSeq > 0 && n > 0 && (a.gap == nil || n > a.gap.Last-a.gap.First+1) {
		a.gap = &Gap{First: a.lastSeq + 1, Last: seq - 1, AfterMs: a.lastMs, BeforeMs: ms}
	}
	a.lastSeq, a.lastMs = seq, ms
}

// read reads every record and index entry of the shard. It passes the pending and the claimed
// records to fn, and records of newer formats that may have to fire.
func (a *audit) read(ctx context.Context, fn func(Timer) error) error {
	sh := &a.dec.shards.subjects[a.shard]
	return a.jet.Scan(ctx, sh.stream, jet.Range{Filters: []string{sh.timer + "*", sh.slot + ">", sh.far + ">"}}, func(m jet.Msg) (bool, error) {
		a.step(m.Sequence, m.Time.UnixMilli())
		raw := &m
		if strings.HasPrefix(raw.Subject, sh.slot) {
			a.entry(sh, raw)
			return true, nil
		}
		if strings.HasPrefix(raw.Subject, sh.far) {
			a.farEntry(raw)
			return true, nil
		}
		id, err := schemas.ParseTimerID(lastToken(raw.Subject))
		if err != nil {
			a.dec.decode(raw) // records the key as damaged
			return true, nil  //nolint:nilerr // a damaged key does not stop the audit
		}
		t, ok := a.dec.decode(raw)
		if !ok {
			// The timer has a record, although an unreadable one.
			a.records[id] = audited{rev: raw.Sequence, unread: true}
			if jet.IsMarker(raw) {
				delete(a.records, id)
			}
			if t.Unread == UnreadOpen {
				return true, fn(t)
			}
			return true, nil
		}
		a.records[id] = audited{rev: t.Rev, tick: a.dec.shards.geo.Tick(t.Record.DueMs), pending: t.Record.Pending()}
		if t.Record.Pending() || t.Record.State == schemas.StateDelivered {
			return true, fn(t)
		}
		return true, nil
	})
}

// entry records the timers that an index entry names.
func (a *audit) entry(sh *shardSubjects, m *jet.Msg) {
	var slot int64
	if _, err := fmt.Sscanf(strings.TrimPrefix(m.Subject, sh.slot), "%d.", &slot); err != nil {
		return
	}
	ends := expiryOf(m)
	for _, id := range a.dec.timersOf([]*jet.Msg{m}) {
		a.name(id, m, func(n *naming) { n.slots = append(n.slots, slotNaming{slot, ends}) })
	}
}

// farEntry records the timers that a far entry names, or that a period has a mark.
func (a *audit) farEntry(m *jet.Msg) {
	shards := a.dec.shards
	period, mark, ok := shards.farPeriodOf(a.shard, m.Subject)
	switch {
	case !ok:
		return
	case mark:
		a.marked[period] = expiryOf(m)
		return
	}
	ends := expiryOf(m)
	a.dec.farTimers(m, func(id schemas.TimerID, tick int64) {
		f := farNaming{period, slotNaming{shards.geo.Slot(period*shards.farTicks() + tick), ends}}
		a.name(id, m, func(n *naming) { n.far = append(n.far, f) })
	})
}

// name records that an index entry names a timer.
func (a *audit) name(id schemas.TimerID, m *jet.Msg, add func(*naming)) {
	n := a.named[id]
	n.newestMs = max(n.newestMs, m.Time.UnixMilli())
	add(&n)
	a.named[id] = n
}

// missing returns the timers that the index names and that have no record. It leaves out
// timers whose final records may have expired: those indexed longer ago than the retention,
// less goneMargin.
func (a *audit) missing(nowMs int64, retention time.Duration) []schemas.TimerID {
	var out []schemas.TimerID
	for id, n := range a.named {
		if _, ok := a.records[id]; !ok && nowMs-n.newestMs < (retention-goneMargin).Milliseconds() {
			out = append(out, id)
		}
	}
	return out
}
