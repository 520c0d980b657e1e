package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

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
func (s *Store) Repair(ctx context.Context, apply bool, fn func(RepairFinding) error) error {
	r := repair{s: s, found: func(f RepairFinding) error {
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
	if err := r.clocks(ctx); err != nil {
		return err
	}
	for n := range s.geo.Shards {
		if err := r.shard(ctx, n); err != nil {
			return err
		}
	}
	return r.losses(ctx)
}

type repair struct {
	s     *Store
	found func(RepairFinding) error
}

// layout finds out the geometry, and prepares the store for what follows.
func (r *repair) layout(ctx context.Context) error {
	s := r.s
	now, err := s.LeaderNow(ctx)
	if err != nil {
		return err
	}
	s.stamp.Store(&Stamp{ServerNs: now.UnixNano(), Received: time.Now()})
	read := func(subject string) (meta, uint64, error) {
		msg, err := s.jet.Last(ctx, clockStream, subject)
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
			_, err = s.jet.Put(ctx, metaSubject, b, rev, 0)
			return err
		}
		if err := r.found(f); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	s.cfg.Retention, s.cfg.IndexKeep, s.cfg.Replicas = DefaultRetention, DefaultIndexKeep, 1
	s.Shards = newShards(s.jet, m.Geometry)
	s.Clocks = newClocks(s.jet, s.Shards, s.Nodes, layoutRecord{jet: s.jet, log: s.log}, s.log, s.reportDamaged)
	return nil
}

// rebuiltLayout is the layout by the buckets that there are.
func (r *repair) rebuiltLayout(ctx context.Context) (meta, error) {
	streams, err := r.s.Streams(ctx)
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

// clocks finds damaged clocks and keys that are none of Belfry's.
func (r *repair) clocks(ctx context.Context) error {
	s := r.s
	c, err := s.ReadCluster(ctx)
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
				_, err := s.WriteClock(ctx, at.Shard, at.Clock, at.Rev)
				return err
			}
		}
		if err := r.found(f); err != nil {
			return err
		}
	}
	keys, err := clockKeysOneByOne(ctx, s.jet, []string{clockPrefix + "clock.*", nodePrefix + "*"})
	if err != nil {
		return err
	}
	var all Cluster
	for _, m := range keys {
		all.add(m)
	}
	all.limit(s.geo.Shards)
	slices.Sort(all.Alien)
	for _, key := range all.Alien {
		err := r.found(RepairFinding{Kind: "key", Shard: -1, Key: key, Problem: "the key is not Belfry's", Repair: "remove it", do: func(ctx context.Context) error {
			m, err := s.jet.Last(ctx, clockStream, key)
			if err != nil {
				return err
			}
			return s.purgeKey(ctx, key, m.Sequence)
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
func (s *Store) purgeKey(ctx context.Context, subject string, rev uint64) error {
	_, err := s.jet.Purge(ctx, "remove "+subject, subject, nil, rev, markerTTL)
	return err
}

// shard examines the records and the index of a shard.
func (r *repair) shard(ctx context.Context, n int) error {
	s := r.s
	a := newAudit(s, n)
	// A damaged record is followed by none of its timer.
	if err := a.read(ctx, func(Timer) error { return nil }); err != nil {
		return err
	}
	for _, d := range s.subjects[n].damaged.list() {
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
			do: func(ctx context.Context) error { return s.PutIndex(ctx, id, rec.tick) },
		})
		if err != nil {
			return err
		}
	}
	for _, id := range a.missing(s.lookedMs()) {
		err := r.found(RepairFinding{Kind: "index", Shard: n, Key: id.String(), Problem: "an index entry names the timer, and it has no record: it was lost, or its add was never acknowledged; the entry expires by itself"})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) lookedMs() int64 {
	ms, _ := s.carriedMs() // layout has read it
	return ms
}

// record reports a damaged record with the best source to repair it from.
func (r *repair) record(ctx context.Context, n int, d DamagedRecord) error {
	s := r.s
	f := RepairFinding{Kind: "record", Shard: n, Key: s.subjects[n].timer + d.Timer, Revision: d.Revision, Problem: d.Reason}
	id, err := schemas.ParseTimerID(d.Timer)
	switch {
	case d.Newer:
		return r.found(f) // for newer nodes
	case err != nil || s.geo.Shard(id) != n:
		f.Repair = "keep its bytes on " + schemas.SubjectRejected + ", and remove the key, which is no timer's of this shard"
		f.do = func(ctx context.Context) error { return s.reject(ctx, f) }
		return r.found(f)
	}
	was, err := s.previous(ctx, n, f.Key, d.Revision)
	if err != nil {
		return err
	}
	if was != nil {
		f.Repair = fmt.Sprintf("write its previous revision, %d, again", was.Sequence)
		f.do = func(ctx context.Context) error { return s.restore(ctx, id, d.Revision, was) }
		return r.found(f)
	}
	rec, from, err := s.fromEvents(ctx, id)
	if err != nil {
		return err
	}
	if rec != nil {
		f.Repair = "rebuild it from its event in " + from
		f.do = func(ctx context.Context) error {
			ttl := time.Duration(0)
			if rec.State.Final() {
				ttl = s.cfg.Retention
			}
			_, err := s.Update(ctx, Write{ID: id, Rev: d.Revision, Record: rec, TTL: ttl})
			return err
		}
		return r.found(f)
	}
	f.Repair = "nothing is left of it: keep its bytes on " + schemas.SubjectRejected + ", and remove it, so that it can be added again"
	f.do = func(ctx context.Context) error { return s.reject(ctx, f) }
	return r.found(f)
}

// previous is the newest revision of a record before a damaged one that is in the
// bucket and can be decoded; nil if there is none.
func (s *Store) previous(ctx context.Context, n int, subject string, rev uint64) (*jet.Msg, error) {
	var found *jet.Msg
	for after := uint64(0); ; {
		msgs, more, err := s.jet.Next(ctx, s.subjects[n].stream, subject, after, history)
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			after = m.Sequence
			if _, err := s.cfg.Level.decodeRecord(m.Data); err == nil && m.Sequence < rev {
				found = m
			}
		}
		if more == 0 || len(msgs) == 0 {
			return found, nil
		}
	}
}

// restore writes a revision again, as it was, over a damaged one.
func (s *Store) restore(ctx context.Context, id schemas.TimerID, rev uint64, was *jet.Msg) error {
	rec, err := s.cfg.Level.decodeRecord(was.Data)
	if err != nil {
		return err
	}
	if rec.Queued {
		if err := s.PutIndex(ctx, id, s.geo.Tick(rec.DueMs)); err != nil {
			return err
		}
	}
	subject, _ := s.timerSubject(id)
	w := jet.WriteHeader{Header: jet.Header{}}
	w.CAS(rev, jet.TTL(was))
	w.RollUp()
	_, err = s.jet.Publish(ctx, "write timer", subject, w.Header, was.Data)
	return err
}

// fromEvents rebuilds a record from what is left of its run: a dead letter, or the
// event that was fired. It reads both streams.
func (s *Store) fromEvents(ctx context.Context, id schemas.TimerID) (rec *schemas.Record, from string, err error) {
	for _, src := range []struct{ stream, filter string }{{schemas.StreamDead, schemas.SubjectDeadPrefix + "*"}, {schemas.StreamFired, schemas.SubjectFiredPrefix + "*"}} {
		err := s.jet.Scan(ctx, src.stream, jet.Range{Filters: []string{src.filter}}, func(m jet.Msg) (bool, error) {
			claim, err := schemas.ParseClaim(m.Header.Get(schemas.HeaderClaim))
			if err != nil || claim.Timer != id {
				return true, nil //nolint:nilerr // another timer's, or nobody's
			}
			_, spec, fired, err := schemas.ParseFired(m.Header, m.Data)
			if err != nil {
				return true, nil //nolint:nilerr // an event that cannot be read rebuilds nothing
			}
			r := claim.Record(&spec, fired)
			r.State, r.DoneMs = schemas.StateFail, m.Time.UnixMilli()
			if src.stream == schemas.StreamFired {
				r.State = schemas.StateSuccess
				if r.Callback != "" {
					// Whether the callback was made is not known: it is delivered until it is.
					r.State, r.DoneMs = schemas.StateDelivered, 0
					if r.Body, err = schemas.StripFired(m.Header, m.Data); err != nil {
						return true, nil //nolint:nilerr // as above
					}
				}
			}
			rec, from = &r, src.stream
			return true, nil // the newest counts
		})
		if err != nil || rec != nil {
			return rec, from, err
		}
	}
	return nil, "", nil
}

// reject keeps the bytes of a damaged record where refused adds are, and removes it.
func (s *Store) reject(ctx context.Context, f RepairFinding) error {
	var data []byte
	m, err := s.jet.Last(ctx, s.subjects[f.Shard].stream, f.Key)
	switch {
	case errors.Is(err, schemas.ErrNotFound):
		return nil // the server cannot read it: there is nothing to keep
	case err != nil:
		return err
	case m.Sequence != f.Revision:
		return ErrRevision
	}
	data = m.Data
	_, _, err = s.Publish(ctx, Msg{Subject: schemas.SubjectRejected, Data: data, MsgID: fmt.Sprintf("%s.%d", f.Key, f.Revision), Header: jet.Header{
		schemas.HeaderErrorCode: []string{string(schemas.CodeDamaged)},
		schemas.HeaderError:     []string{fmt.Sprintf("record %s, revision %d: %s", f.Key, f.Revision, f.Problem)},
	}})
	if err != nil {
		return err
	}
	return s.purgeKey(ctx, f.Key, f.Revision)
}

// losses reports what the owners of shards have put on record.
func (r *repair) losses(ctx context.Context) error {
	all, err := r.s.ReadDamage(ctx)
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
			d, err := r.s.readDamage(ctx, d.Shard)
			if err != nil || d.Loss == nil {
				return err
			}
			d.Loss.Noted = true
			return r.s.writeDamage(ctx, d)
		}})
		if err != nil {
			return err
		}
	}
	return nil
}
