package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// RepairFinding is one thing that Repair found.
type RepairFinding struct {
	// Kind is layout, clock, key, record, index or loss.
	Kind  string `json:"kind"`
	Shard int    `json:"shard"` // -1 where it is of none
	// Key is the key's subject, or what else names it.
	Key      string `json:"key"`
	Revision uint64 `json:"revision,omitempty"`
	Problem  string `json:"problem"`
	// Repair is what applying does; empty where nothing can be done here.
	Repair string `json:"repair,omitempty"`
	// Applied says that it was done; Error why it was not.
	Applied bool   `json:"applied,omitempty"`
	Error   string `json:"error,omitempty"`

	do func(context.Context) error
}

// Repair examines layout, clocks, records and index of a store that was opened by
// Look, and reports what is damaged to fn. With apply it repairs each finding before
// it reports it, by compare-and-set, so nodes may run meanwhile: a finding that
// changes under it has an Error and is left for the next run. It reads every shard
// as a whole, and holds about 100 bytes a timer of one shard in memory.
func (v *View) Repair(ctx context.Context, apply bool, fn func(RepairFinding) error) error {
	r := repair{jet: v.jet, log: v.log, nodes: v.nodes, health: v.Health, reports: v.DamageReports, found: func(f RepairFinding) error {
		if apply && f.do != nil {
			if err := f.do(ctx); err != nil {
				f.Error = err.Error()
			} else {
				f.Applied = true
			}
		}
		return fn(f)
	}}
	if err := r.layout(ctx); err != nil {
		return err
	}
	defer r.records.gc.rem.close()
	if err := r.clocksAndKeys(ctx); err != nil {
		return err
	}
	for n := range r.shards.geo.Shards {
		if err := r.shard(ctx, n); err != nil {
			return err
		}
	}
	return r.losses(ctx)
}

// repair is one run of Repair.
type repair struct {
	jet     *jet.Client
	log     zerolog.Logger
	nodes   *Nodes
	health  Health
	reports DamageReports
	found   func(RepairFinding) error

	// Set by layout.
	shards  *Shards
	clocks  *Clocks
	dec     *decoder
	records *Records
}

// layout finds out the geometry, and prepares the store for what follows.
func (r *repair) layout(ctx context.Context) error {
	now, err := r.health.LeaderNow(ctx)
	if err != nil {
		return err
	}
	r.nodes.stamp.Store(&Stamp{ServerNs: now.UnixNano(), Received: time.Now()})
	read := func(subject string) (meta, uint64, error) {
		msg, err := r.jet.Last(ctx, clockStream, subject)
		if errors.Is(err, schemas.ErrNotFound) {
			return meta{}, 0, schemas.Errorf(schemas.CodeDamaged, "the recorded layout is gone")
		}
		if err != nil {
			return meta{}, 0, err
		}
		m, err := decodeMeta(msg.Data)
		return m, msg.Sequence, err
	}
	m, rev, err := read(metaSubject)
	if errors.Is(err, schemas.ErrDamaged) {
		f := RepairFinding{Kind: "layout", Shard: -1, Key: metaSubject, Revision: rev, Problem: err.Error(), Repair: "write it again from its copy"}
		var cerr error
		if m, _, cerr = read(metaCopySubject); cerr != nil {
			if !errors.Is(cerr, schemas.ErrDamaged) {
				return cerr
			}
			if m, err = r.rebuiltLayout(ctx); err != nil {
				return err
			}
			f.Repair = "its copy is damaged, too: write one of " + describe(m.Geometry) + ", by the number of buckets and the default slots"
		}
		f.do = func(ctx context.Context) error {
			b, err := json.Marshal(m)
			if err != nil {
				return fmt.Errorf("store: %w", err)
			}
			_, err = r.jet.Put(ctx, metaSubject, b, rev, 0)
			return err
		}
		if err := r.found(f); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	// Records are written in the oldest format: it is not known what other nodes read.
	layout, levels := layoutRecord{jet: r.jet, log: r.log}, newLevels(r.nodes, layoutRecord{}, r.log)
	r.shards = newShards(r.jet, m.Geometry)
	r.dec = newDecoder(r.shards, NewestLevel, r.log)
	r.clocks = newClocks(r.jet, r.shards, r.nodes, layout, r.log, r.reports.of(r.dec))
	r.records = &Records{
		jet: r.jet, shards: r.shards, levels: levels, gc: newRevisionGC(r.jet, r.shards, r.nodes, 1, false, r.log),
		index: &Index{jet: r.jet, shards: r.shards, nodes: r.nodes, levels: levels, keep: DefaultIndexKeep},
	}
	return nil
}

// rebuiltLayout is the layout by the buckets that there are.
func (r *repair) rebuiltLayout(ctx context.Context) (meta, error) {
	streams, err := r.health.Streams(ctx)
	if err != nil {
		return meta{}, err
	}
	m := meta{Format: newestLayout, Geometry: schemas.DefaultGeometry()}
	m.Geometry.Shards = 0
	for _, h := range streams {
		if strings.HasPrefix(h.Name, "KV_timers_") {
			m.Geometry.Shards++
		}
	}
	if err := m.Geometry.Validate(); err != nil {
		return meta{}, schemas.Errorf(schemas.CodeDamaged, "the recorded layout is damaged, and there is no store to rebuild it from: %w", err)
	}
	return m, nil
}

// clocksAndKeys finds damaged clocks and keys that are none of Belfry's.
func (r *repair) clocksAndKeys(ctx context.Context) error {
	c, err := r.clocks.ReadCluster(ctx)
	if err != nil {
		return err
	}
	for _, at := range c.Clocks {
		if at.Err == nil {
			continue
		}
		f := RepairFinding{Kind: "clock", Shard: at.Shard, Key: clockSubject(at.Shard), Revision: at.Rev, Problem: at.Err.Error()}
		if errors.Is(at.Err, schemas.ErrDamaged) {
			f.Repair = "write it again from its copy"
			if at.Clock.Tail == 0 {
				f.Repair = "write one from which the shard's owner reads the whole shard"
			}
			f.do = func(ctx context.Context) error {
				_, err := r.clocks.WriteClock(ctx, at.Shard, at.Clock, at.Rev)
				return err
			}
		}
		if err := r.found(f); err != nil {
			return err
		}
	}
	keys, err := clockKeysOneByOne(ctx, r.jet, []string{clockPrefix + "clock.*", nodePrefix + "*"})
	if err != nil {
		return err
	}
	var all Cluster
	for _, m := range keys {
		all.add(m)
	}
	all.limit(r.shards.geo.Shards)
	slices.Sort(all.Alien)
	for _, key := range all.Alien {
		err := r.found(RepairFinding{Kind: "key", Shard: -1, Key: key, Problem: "the key is not Belfry's", Repair: "remove it", do: func(ctx context.Context) error {
			m, err := r.jet.Last(ctx, clockStream, key)
			if err != nil {
				return err
			}
			return r.purgeKey(ctx, key, m.Sequence)
		}})
		if err != nil {
			return err
		}
	}
	return nil
}

// markerTTL is how long the marker of a key that was removed is kept.
const markerTTL = 24 * time.Hour

// purgeKey removes a key by compare-and-set, as a KV client does.
func (r *repair) purgeKey(ctx context.Context, subject string, rev uint64) error {
	_, err := r.jet.Purge(ctx, "remove "+subject, subject, nil, rev, markerTTL)
	return err
}

// shard examines the records and the index of a shard.
func (r *repair) shard(ctx context.Context, n int) error {
	a := newAudit(r.jet, r.dec, n)
	// A damaged record is followed by none of its timer.
	if err := a.read(ctx, func(Timer) error { return nil }); err != nil {
		return err
	}
	for _, d := range r.dec.damaged[n].list() {
		if err := r.record(ctx, n, d); err != nil {
			return err
		}
	}
	for id, rec := range a.records {
		if !rec.pending || a.indexed(id, rec) {
			continue
		}
		err := r.found(RepairFinding{
			Kind: "index", Shard: n, Key: id.String(), Revision: rec.rev, Problem: "the timer waits, and no index entry names it", Repair: "write its index entry",
			do: func(ctx context.Context) error { return r.records.index.PutIndex(ctx, id, rec.tick) },
		})
		if err != nil {
			return err
		}
	}
	nowMs, _ := r.nodes.carriedMs() // layout has read the time
	for _, id := range a.missing(nowMs, DefaultRetention) {
		err := r.found(RepairFinding{Kind: "index", Shard: n, Key: id.String(), Problem: "an index entry names the timer, and it has no record: it was lost, or its add was never acknowledged; the entry expires by itself"})
		if err != nil {
			return err
		}
	}
	return nil
}

// record reports a damaged record with the best source to repair it from.
func (r *repair) record(ctx context.Context, n int, d DamagedRecord) error {
	f := RepairFinding{Kind: "record", Shard: n, Key: r.shards.subjects[n].timer + d.Timer, Revision: d.Revision, Problem: d.Reason}
	id, err := schemas.ParseTimerID(d.Timer)
	switch {
	case d.Newer:
		return r.found(f) // for newer nodes
	case err != nil || r.shards.geo.Shard(id) != n:
		f.Repair = "keep its bytes on " + schemas.SubjectRejected + ", and remove the key, which is no timer's of this shard"
		f.do = func(ctx context.Context) error { return r.reject(ctx, f) }
		return r.found(f)
	}
	was, err := r.previous(ctx, n, f.Key, d.Revision)
	if err != nil {
		return err
	}
	var ev *firedRecord
	if was == nil || was.waits {
		if ev, err = r.fromEvents(ctx, id); err != nil {
			return err
		}
	}
	// A revision that waits, although the timer was claimed after it, would fire again.
	if was != nil && (ev == nil || ev.claimed <= was.Sequence) {
		f.Repair = fmt.Sprintf("write its previous revision, %d, again", was.Sequence)
		f.do = func(ctx context.Context) error { return r.restore(ctx, id, d.Revision, was.Msg) }
		return r.found(f)
	}
	if ev != nil {
		rec := &ev.rec
		f.Repair = "rebuild it from its event in " + ev.stream
		f.do = func(ctx context.Context) error {
			ttl := time.Duration(0)
			if rec.State.Final() {
				ttl = DefaultRetention
			}
			_, err := r.records.Update(ctx, Write{ID: id, Rev: d.Revision, Record: rec, TTL: ttl})
			return err
		}
		return r.found(f)
	}
	f.Repair = "nothing is left of it: keep its bytes on " + schemas.SubjectRejected + ", and remove it, so that it can be added again"
	f.do = func(ctx context.Context) error { return r.reject(ctx, f) }
	return r.found(f)
}

// olderRevision is a revision of a record, and whether it waits in the wheel.
type olderRevision struct {
	*jet.Msg
	waits bool
}

// previous returns the newest revision of a record before a damaged one that is in the
// bucket and can be decoded; nil if there is none.
func (r *repair) previous(ctx context.Context, n int, subject string, rev uint64) (*olderRevision, error) {
	var found *olderRevision
	for after := uint64(0); ; {
		msgs, more, err := r.jet.Next(ctx, r.shards.subjects[n].stream, subject, after, history)
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			after = m.Sequence
			if rec, err := NewestLevel.decodeRecord(m.Data); err == nil && m.Sequence < rev {
				found = &olderRevision{m, rec.Queued}
			}
		}
		if more == 0 || len(msgs) == 0 {
			return found, nil
		}
	}
}

// restore writes a revision again, as it was, over a damaged one.
func (r *repair) restore(ctx context.Context, id schemas.TimerID, rev uint64, was *jet.Msg) error {
	rec, err := NewestLevel.decodeRecord(was.Data)
	if err != nil {
		return err
	}
	if rec.Queued {
		if err := r.records.index.PutIndex(ctx, id, r.shards.geo.Tick(rec.DueMs)); err != nil {
			return err
		}
	}
	subject, _ := r.shards.timerSubject(id)
	w := jet.WriteHeader{Header: jet.Header{}}
	w.CAS(rev, jet.TTL(was))
	w.RollUp()
	_, err = r.jet.Publish(ctx, "write timer", subject, w.Header, was.Data)
	return err
}

// firedRecord is a record rebuilt from an event in a stream, and the revision of the claim
// that the event states.
type firedRecord struct {
	rec     schemas.Record
	claimed uint64
	stream  string
}

// fromEvents rebuilds a record from what is left of its run: a dead letter, or the event
// that was fired; nil if nothing is. It reads both streams.
func (r *repair) fromEvents(ctx context.Context, id schemas.TimerID) (found *firedRecord, err error) {
	for _, src := range []struct{ stream, filter string }{{schemas.StreamDead, schemas.SubjectDeadPrefix + "*"}, {schemas.StreamFired, schemas.SubjectFiredPrefix + "*"}} {
		err := r.jet.Scan(ctx, src.stream, jet.Range{Filters: []string{src.filter}}, func(m jet.Msg) (bool, error) {
			claim, err := schemas.ParseClaim(m.Header.Get(schemas.HeaderClaim))
			if err != nil || claim.Timer != id || claim.Schedule == id {
				return true, nil //nolint:nilerr // another timer's, nobody's, or a run, from which no schedule can be rebuilt
			}
			_, spec, fired, err := schemas.ParseFired(m.Header, m.Data)
			if err != nil {
				return true, nil //nolint:nilerr // an event that cannot be read rebuilds nothing
			}
			rec := claim.Record(&spec, fired)
			rec.State, rec.DoneMs = schemas.StateFail, m.Time.UnixMilli()
			if src.stream == schemas.StreamFired {
				rec.State = schemas.StateSuccess
				if rec.Callback != "" {
					// Whether the callback was made is not known: it is delivered until it is.
					rec.State, rec.DoneMs = schemas.StateDelivered, 0
					if rec.Body, err = schemas.StripFired(m.Header, m.Data); err != nil {
						return true, nil //nolint:nilerr // as above
					}
				}
			}
			found = &firedRecord{rec, claim.Revision, src.stream}
			return true, nil // the newest counts
		})
		if err != nil || found != nil {
			return found, err
		}
	}
	return nil, nil
}

// reject keeps the bytes of a damaged record where refused adds are, and removes it.
func (r *repair) reject(ctx context.Context, f RepairFinding) error {
	m, err := r.jet.Last(ctx, r.shards.subjects[f.Shard].stream, f.Key)
	switch {
	case errors.Is(err, schemas.ErrNotFound):
		return nil // the server cannot read it: there is nothing to keep
	case err != nil:
		return err
	case m.Sequence != f.Revision:
		return ErrRevision
	}
	h := jet.Header{
		schemas.HeaderErrorCode: []string{string(schemas.CodeDamaged)},
		schemas.HeaderError:     []string{fmt.Sprintf("record %s, revision %d: %s", f.Key, f.Revision, f.Problem)},
	}
	jet.SetMsgID(h, fmt.Sprintf("%s.%d", f.Key, f.Revision))
	_, err = r.jet.Publish(ctx, "publish "+schemas.SubjectRejected, schemas.SubjectRejected, h, m.Data)
	if err != nil {
		return err
	}
	return r.purgeKey(ctx, f.Key, f.Revision)
}

// losses reports what the owners of shards have put on record.
func (r *repair) losses(ctx context.Context) error {
	all, err := r.reports.ReadDamage(ctx)
	if err != nil {
		return err
	}
	for _, d := range all {
		if d.Loss == nil || d.Loss.Noted {
			continue
		}
		l := *d.Loss
		problem := l.Summary()
		if len(l.Timers) > 0 {
			problem += "; without a record: " + strings.Join(l.Timers, ", ")
			if l.TimersMore > 0 {
				problem += fmt.Sprintf(" and %d more", l.TimersMore)
			}
		}
		err := r.found(RepairFinding{Kind: "loss", Shard: d.Shard, Key: damageSubject(d.Shard), Problem: problem, Repair: "take note of it, so that it is reported no more", do: func(ctx context.Context) error {
			d, err := r.reports.read(ctx, d.Shard)
			if err != nil || d.Loss == nil {
				return err
			}
			d.Loss.Noted = true
			return r.reports.write(ctx, d)
		}})
		if err != nil {
			return err
		}
	}
	return nil
}
