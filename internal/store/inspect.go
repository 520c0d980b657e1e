package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Inspection is the result of Inspect.
type Inspection struct {
	// Damage is the recorded damage of the shard, including the findings of this inspection.
	Damage ShardDamage
	// Key and Evidence are set if there is a sign of a loss that has not been audited yet; see
	// ShardLoss. The caller must then call Audit.
	Key, Evidence string
	// Messages is a lower bound of the lost messages; 0 if it is unknown.
	Messages uint64
	// Missing is the number of pending timers that a count has missed. Inspect leaves it 0;
	// the caller sets it for an audit after a count.
	Missing int64
	// Suspect is true if the sign may have a harmless cause. The audit then decides.
	Suspect bool
	// LastSeq is the last sequence of the shard's stream, and Msgs the number of its messages,
	// at StoredMs (Unix milliseconds, by the server's clock).
	LastSeq, Msgs uint64
	StoredMs      int64
	// Gone lists records that were of a newer format. They are now gone, final, or readable,
	// in each revision up to Rev.
	Gone []NewerRecord
}

// Expectation is the state of a shard's stream that its owner has recorded in the clock.
type Expectation struct {
	// Msgs is the number of messages at MsgsMs (Unix milliseconds); 0 if it is unknown.
	Msgs   uint64
	MsgsMs int64
	// Seen is the last sequence that the owner had read.
	Seen uint64
	// Pending is Clock.Pending as of Seen; -1 if it is unknown.
	Pending int64
}

// Expects returns the state of the shard's stream that a clock records.
func (c *Clock) Expects() Expectation {
	x := Expectation{Msgs: c.Msgs, MsgsMs: c.MsgsMs, Seen: max(c.Seen, c.Tail), Pending: -1}
	if c.Counted {
		x.Pending = c.Pending
	}
	return x
}

// Inspector finds damage to shards for their owners: messages of a stream that the server
// has lost, and records that cannot be decoded. It writes its findings to the shard's damage
// report; see DamageReports. Safe for concurrent use with different shards.
//
// An inspection sends a few requests. It may suspect a loss where there is none, and then
// asks for an audit, which reads the whole shard and decides. It misses a loss only if the
// server removed messages in the middle of a stream and counts them as deleted, or lost
// fewer than countSlack.
type Inspector struct {
	jet     *jet.Client
	shards  *Shards
	nodes   *Nodes
	dec     *decoder
	index   *Index
	reports DamageReports
	// retention is the TTL of final records. replicated is true if the shards' streams have
	// replicas.
	retention  time.Duration
	replicated bool
}

// Inspect examines a shard for its owner: it loads the recorded damage, reads damaged
// records again, and compares the stream with the owner's position. seen is the last
// sequence that this owner or a previous one has read. end is the last sequence of the
// stream when the owner took the shard, 0 if unknown. With an expectation, it also
// compares the number of messages: pass one in the first inspection after the server may
// have restarted. Without damage it takes a few requests. Inspect starts over if the recorded
// damage changes meanwhile, by another process or by a clock write of this one. Errors:
// schemas.ErrUnavailable; ErrRevision if that happens reportTries times; the cause of ctx.
// Inspection.Gone is valid also with an error.
func (i *Inspector) Inspect(ctx context.Context, shard int, seen, end uint64, expect *Expectation) (in Inspection, err error) {
	var gone []NewerRecord
	err = onConflict(ctx, reportTries, reportPause, func() (err error) {
		in, err = i.inspect(ctx, shard, seen, end, expect)
		gone = append(gone, in.Gone...)
		return err
	})
	in.Gone = gone
	if errors.Is(err, ErrRevision) && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return in, err
}

// inspect makes one attempt of Inspect. It fails with ErrRevision if the recorded damage has changed.
func (i *Inspector) inspect(ctx context.Context, shard int, seen, end uint64, expect *Expectation) (Inspection, error) {
	var in Inspection
	was, err := i.reports.read(ctx, shard)
	if err != nil {
		return in, err
	}
	d := &i.dec.damaged[shard]
	for _, r := range was.Records {
		if d.note(r) {
			i.dec.undecodable.Add(1)
		}
	}
	if in.Gone, err = i.recheck(ctx, shard); err != nil {
		return in, err
	}
	if i.replicated {
		end = 0 // it may come from a newly elected leader that had not caught up
	}
	found, err := i.signs(ctx, shard, seen, end, expect, &in)
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
	return in, i.reports.replace(ctx, was, in.Damage)
}

// Interruptions returns how often the connection to the server was lost and made again.
func (i *Inspector) Interruptions() uint64 { return i.jet.Conn().Stats().Reconnects }

// knows reports whether a loss has been audited; key is its ShardLoss.Key.
func (d *ShardDamage) knows(key string) bool {
	return slices.Contains(d.Known, key) || d.Loss != nil && d.Loss.Key == key
}

// recheck reads damaged records again, because they may have been repaired or removed. It
// returns the value of Inspection.Gone.
func (i *Inspector) recheck(ctx context.Context, shard int) (gone []NewerRecord, err error) {
	d := &i.dec.damaged[shard]
	good := func(r DamagedRecord, rev uint64) {
		d.good(r.Timer, rev)
		if id, err := schemas.ParseTimerID(r.Timer); err == nil && r.Newer {
			gone = append(gone, NewerRecord{ID: id, Rev: rev})
		}
	}
	for n, r := range d.list() {
		if n == rechecks {
			break
		}
		m, err := i.jet.Last(ctx, i.shards.subjects[shard].stream, i.shards.subjects[shard].timer+r.Timer)
		switch {
		case errors.Is(err, schemas.ErrNotFound):
			// Only the revisions up to this one are known to be gone: a later one may have come after the request.
			good(r, r.Revision)
		case err != nil:
			return gone, err
		default:
			if _, err := i.dec.timer(m); err == nil || errors.Is(err, schemas.ErrNotFound) || errors.Is(err, schemas.ErrNewer) && i.dec.unread(m).Unread == UnreadFinal {
				good(r, m.Sequence)
			}
		}
	}
	return gone, nil
}

// sign is evidence of a loss; see the fields of Inspection.
type sign struct {
	key, evidence string
	messages      uint64
	suspect       bool
}

// signs looks for evidence of lost messages in a shard's stream. Deleted, superseded and
// expired messages leave gaps, too, but none of these signs, except signs with suspect set.
func (i *Inspector) signs(ctx context.Context, shard int, seen, end uint64, expect *Expectation, in *Inspection) ([]sign, error) {
	sh := &i.shards.subjects[shard]
	info, err := i.jet.Stream(ctx, sh.stream)
	if err != nil {
		return nil, err
	}
	st := info.State
	in.LastSeq, in.Msgs, in.StoredMs = st.LastSeq, st.Msgs, info.TimeStamp.UnixMilli()
	if end == 0 || end > st.LastSeq {
		end = st.LastSeq
	}
	var found []sign
	if n := i.dec.damaged[shard].unreadable.Load(); n > 0 {
		found = append(found, sign{
			key: fmt.Sprintf("unreadable %d", n), messages: uint64(n),
			evidence: "the server has messages that it cannot read: a block of the stream's file is damaged",
		})
	}
	if end < seen {
		// A leader that is behind catches up; only a lasting difference is a loss.
		if i.dec.damaged[shard].settled(true, i.replicated) {
			found = append([]sign{{
				key: fmt.Sprintf("end %d of %d", end, seen), messages: seen - end,
				evidence: fmt.Sprintf("the stream ended at sequence %d, and its owner had read up to %d", end, seen),
			}}, found...)
		}
		return found, nil
	}
	i.dec.damaged[shard].settled(false, i.replicated)
	if st.LastSeq == 0 {
		return found, nil
	}
	if st.FirstSeq > 1 {
		f, err := i.lostStart(ctx, sh)
		if err != nil {
			return nil, err
		}
		found = append(found, f...)
	}
	f, err := i.lostEnd(ctx, sh, &info)
	if err != nil {
		return nil, err
	}
	found = append(found, f...)
	if expect != nil {
		found = append(found, i.tooFew(&info, expect)...)
	}
	return found, nil
}

// countSlack is the number of messages by which a stream may shrink without a sign of a
// loss. It allows for superseded revisions that were counted just before their removal.
const countSlack = 64

// tooFew compares the number of messages of a shard's stream with the number that an owner
// recorded. Every write of a record adds one message and removes at most one, so the number
// falls only when messages expire. Messages of pending timers do not expire. Of the others,
// tooFew estimates the part that may have expired from the time since the owner's count.
func (i *Inspector) tooFew(info *jet.StreamInfo, x *Expectation) []sign {
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
	part := 2 * float64(info.TimeStamp.UnixMilli()-x.MsgsMs) / float64(min(i.retention, i.index.keep).Milliseconds())
	if float64(lost) <= countSlack+mayExpire*min(max(part, 0), 1) {
		return nil
	}
	return []sign{{
		key: fmt.Sprintf("count %d of %d", st.Msgs, x.Msgs), messages: lost, suspect: true,
		evidence: fmt.Sprintf("the stream has %d messages, and had %d at %s", st.Msgs, x.Msgs, schemas.FormatTime(x.MsgsMs)),
	}}
}

// lostStart looks for a lost beginning of a shard's stream. Open writes the key meta before
// all records, so its sequence is 1. If the block with this message was lost, Open or a load
// (see loadDamaged) has written it again, with a later sequence.
func (i *Inspector) lostStart(ctx context.Context, sh *shardSubjects) ([]sign, error) {
	m, err := i.jet.Last(ctx, sh.stream, sh.meta)
	if errors.Is(err, schemas.ErrNotFound) {
		return nil, nil // the next load writes it again; see loadDamaged
	}
	if err != nil || m.Sequence == 1 {
		return nil, err
	}
	return []sign{{
		key: fmt.Sprintf("start %d", m.Sequence), messages: m.Sequence - 1,
		evidence: fmt.Sprintf("the stream has lost its first message, and with it up to %d others that were stored before sequence %d", m.Sequence-2, m.Sequence),
	}}, nil
}

// lostEnd looks for a lost end of a shard's stream. No message supersedes the newest one, so
// it must exist until it expires.
func (i *Inspector) lostEnd(ctx context.Context, sh *shardSubjects, info *jet.StreamInfo) ([]sign, error) {
	st := &info.State
	if info.TimeStamp.Sub(st.LastTime) > min(i.retention, i.index.keep)-goneMargin {
		return nil, nil
	}
	there, err := i.jet.Has(ctx, sh.stream, st.LastSeq)
	if err != nil || there {
		return nil, err
	}
	again, err := i.jet.Stream(ctx, sh.stream)
	if err != nil || again.State.LastSeq != st.LastSeq {
		return nil, err
	}
	gap, err := i.endGap(ctx, sh, st.LastSeq)
	if err != nil {
		return nil, err
	}
	return []sign{{
		key: fmt.Sprintf("gap at %d", st.LastSeq), messages: gap,
		evidence: fmt.Sprintf("the last %d messages of the stream, up to sequence %d, are not in its file", gap, st.LastSeq),
	}}, nil
}

// goneMargin is subtracted from TTLs when a message is missing: a message that would expire
// within it may have expired.
const goneMargin = 5 * time.Second

// endGap returns the number of sequences up to last that have no message.
func (i *Inspector) endGap(ctx context.Context, sh *shardSubjects, last uint64) (uint64, error) {
	m, err := i.jet.Last(ctx, sh.stream, "$KV."+strings.TrimPrefix(sh.stream, "KV_")+".>")
	if errors.Is(err, schemas.ErrNotFound) {
		return last, nil
	}
	if err != nil {
		return 0, err
	}
	return last - m.Sequence, nil
}
