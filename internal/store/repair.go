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

// RepairFinding is one damaged part of a store.
type RepairFinding struct {
	// Kind is layout, clock, key, record, index or loss.
	Kind  string `json:"kind"`
	Shard int    `json:"shard"` // -1 for a part that belongs to no shard
	// Key is the subject of the damaged key. For an index entry it is the timer id.
	Key string `json:"key"`
	// Revision is the revision of the damaged value; 0 if there is none.
	Revision uint64 `json:"revision,omitempty"`
	Problem  string `json:"problem"`
	// Repair describes the repair; empty if Belfry cannot repair it.
	Repair string `json:"repair,omitempty"`
	// Applied is true after the repair. Error is the reason why a repair failed.
	Applied bool   `json:"applied,omitempty"`
	Error   string `json:"error,omitempty"`

	do func(context.Context) error // makes the repair; nil if there is none
}

// Repair examines the layout, the clocks, the records and the index of a store, and calls fn
// for each damaged part. With apply it repairs each part before it calls fn. Nodes may run
// at the same time, because every repair is a compare-and-set: if a node changes the key
// first, the finding has an Error, and the next Repair examines the key again. Repair reads
// every record of every shard, and holds about 100 bytes for each timer of one shard.
//
// Errors: those of fn; schemas.CodeDamaged if the layout cannot be rebuilt;
// schemas.ErrUnavailable.
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

// layout examines the recorded layout, and sets the fields that depend on it. It reads the
// layout from its copy if it is damaged, and rebuilds it if both are.
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
		f := RepairFinding{Kind: "layout", Shard: -1, Key: metaSubject, Revision: rev, Problem: err.Error(), Repair: "restore it from its copy"}
		var cerr error
		if m, _, cerr = read(metaCopySubject); cerr != nil {
			if !errors.Is(cerr, schemas.ErrDamaged) {
				return cerr
			}
			if m, err = r.rebuiltLayout(ctx); err != nil {
				return err
			}
			f.Repair = "its copy is damaged, too: write a new layout with the number of buckets and the default slots: " + describe(m.Geometry)
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
	// Write records in the oldest format, because the nodes that run may read only that.
	layout, levels := layoutRecord{jet: r.jet, log: r.log}, newLevels(r.nodes, layoutRecord{}, r.log)
	r.shards = newShards(r.jet, m.Geometry)
	r.dec = newDecoder(r.shards, NewestLevel, r.log)
	r.clocks = newClocks(r.jet, r.shards, r.nodes, layout, r.log, r.reports.of(r.dec))
	r.records = &Records{
		jet: r.jet, shards: r.shards, levels: levels, gc: newRevisionGC(r.jet, r.shards, r.nodes, 1, false, r.log), cache: newRecordCache(r.jet),
		index: &Index{jet: r.jet, shards: r.shards, nodes: r.nodes, levels: levels, keep: DefaultIndexKeep},
	}
	return nil
}

// rebuiltLayout returns a layout with as many shards as there are buckets, and the default
// slots. Error: schemas.CodeDamaged if there are no buckets.
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
		return meta{}, schemas.Errorf(schemas.CodeDamaged, "the recorded layout is damaged, and there are no buckets of timers from which to rebuild it: %w", err)
	}
	return m, nil
}

// clocksAndKeys finds damaged clocks, and foreign keys in bucket clock.
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
			f.Repair = "restore it from its copy"
			if at.Clock.Tail == 0 {
				f.Repair = "there is no copy: write a new clock, which makes the shard's owner read the whole shard"
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
		err := r.found(RepairFinding{Kind: "key", Shard: -1, Key: key, Problem: "another client has written this key", Repair: "remove it", do: func(ctx context.Context) error {
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

// markerTTL is how long the marker of a removed key stays.
const markerTTL = 24 * time.Hour

// purgeKey removes a key by compare-and-set, and leaves a marker as a KV client does. Errors:
// ErrRevision, schemas.ErrUnavailable.
func (r *repair) purgeKey(ctx context.Context, subject string, rev uint64) error {
	_, err := r.jet.Purge(ctx, "remove "+subject, subject, nil, rev, markerTTL)
	return err
}

// shard examines the records and the index of a shard.
func (r *repair) shard(ctx context.Context, n int) error {
	a := newAudit(r.jet, r.dec, n)
	// The scan passes all revisions in order, and a later readable revision or delete marker
	// removes a timer from the set of damaged records. So the set has only records whose newest
	// revision is damaged.
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
			Kind: "index", Shard: n, Key: id.String(), Revision: rec.rev, Problem: "the waiting timer has no index entry", Repair: "write its index entry",
			do: func(ctx context.Context) error { return r.records.index.PutIndex(ctx, id, rec.tick) },
		})
		if err != nil {
			return err
		}
	}
	nowMs, _ := r.nodes.carriedMs() // layout has read the time
	for _, id := range a.missing(nowMs, DefaultRetention) {
		err := r.found(RepairFinding{Kind: "index", Shard: n, Key: id.String(), Problem: "an index entry names the timer, but it has no record: the record was lost, or the add was never acknowledged; the entry will expire"})
		if err != nil {
			return err
		}
	}
	return nil
}

// record reports a damaged record. It repairs the record from its previous revision, or
// from an event of the timer that is newer; if there is neither, it moves the bytes to
// timers.rejected.
func (r *repair) record(ctx context.Context, n int, d DamagedRecord) error {
	f := RepairFinding{Kind: "record", Shard: n, Key: r.shards.subjects[n].timer + d.Timer, Revision: d.Revision, Problem: d.Reason}
	id, err := schemas.ParseTimerID(d.Timer)
	switch {
	case d.Newer:
		return r.found(f) // only nodes of the newer version can read it
	case err != nil || r.shards.geo.Shard(id) != n:
		f.Repair = "the key belongs to no timer of this shard: move its bytes to " + schemas.SubjectRejected
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
	// If the timer was claimed after the previous revision, that revision would fire again.
	if was != nil && (ev == nil || ev.claimed <= was.Sequence) {
		f.Repair = fmt.Sprintf("restore its previous revision, %d", was.Sequence)
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
			if err := r.index(ctx, id, rec); err != nil {
				return err
			}
			_, err := r.records.Update(ctx, Write{ID: id, Rev: d.Revision, Record: rec, TTL: ttl})
			return err
		}
		return r.found(f)
	}
	f.Repair = "there is no older revision and no event of it: move its bytes to " + schemas.SubjectRejected + "; the timer can then be added again"
	f.do = func(ctx context.Context) error { return r.reject(ctx, f) }
	return r.found(f)
}

// olderRevision is a readable revision of a damaged record.
type olderRevision struct {
	*jet.Msg
	waits bool // it is queued to fire
}

// previous returns the newest readable revision of a record before revision rev; nil if the
// bucket has none.
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

// restore writes an older revision of a record again in place of revision rev. A record that is not
// final is marked as moved: otherwise the shard's owner would take it for a new timer or a new claim,
// and change the number of pending timers. Errors: ErrRevision, schemas.ErrUnavailable.
func (r *repair) restore(ctx context.Context, id schemas.TimerID, rev uint64, was *jet.Msg) error {
	rec, err := NewestLevel.decodeRecord(was.Data)
	if err != nil {
		return err
	}
	if err := r.index(ctx, id, &rec); err != nil {
		return err
	}
	data := was.Data
	if !rec.State.Final() && rec.Moves == 0 {
		rec.Moves = 1
		data = rec.AppendFormat(nil, schemas.RecordFormat(data[0]))
	}
	subject, _ := r.shards.timerSubject(id)
	w := jet.WriteHeader{Header: jet.Header{}}
	w.CAS(rev, jet.TTL(was))
	w.RollUp()
	_, err = r.jet.Publish(ctx, "write timer", subject, w.Header, data)
	return err
}

// index writes the index entry of a repaired record that still has work to do. A queued record gets the
// entry of its due time. A delivered or retrying record gets an entry for the sweeper, which passed over the
// record while it was damaged. The sweeper writes a missing final record, or fires a run again if
// functions have not received its event.
func (r *repair) index(ctx context.Context, id schemas.TimerID, rec *schemas.Record) error {
	dueMs := rec.DueMs
	switch {
	case rec.Queued:
	case rec.State == schemas.StateDelivered, rec.State == schemas.StateRetrying:
		var err error
		if dueMs, err = r.nodes.nowMs(ctx); err != nil {
			return err
		}
	default:
		return nil
	}
	return r.records.index.PutIndex(ctx, id, r.shards.geo.Tick(dueMs))
}

// firedRecord is a record that was rebuilt from an event.
type firedRecord struct {
	rec     schemas.Record
	claimed uint64 // the revision of the claim, from the event's headers
	stream  string // of the event
}

// fromEvents rebuilds a record from its newest dead letter, or else from its newest fired
// event. It returns nil if there is neither. It may read all of TIMERS_DEAD and TIMERS_FIRED.
func (r *repair) fromEvents(ctx context.Context, id schemas.TimerID) (found *firedRecord, err error) {
	for _, src := range []struct{ stream, filter string }{{schemas.StreamDead, schemas.SubjectDeadPrefix + "*"}, {schemas.StreamFired, schemas.SubjectFiredPrefix + "*"}} {
		err := r.jet.Scan(ctx, src.stream, jet.Range{Filters: []string{src.filter}}, func(m jet.Msg) (bool, error) {
			claim, err := schemas.ParseClaim(m.Header.Get(schemas.HeaderClaim))
			if err != nil || claim.Timer != id || claim.Schedule == id {
				return true, nil //nolint:nilerr // the message is of another timer, of another publisher, or of a run, from which no schedule can be rebuilt
			}
			_, spec, fired, err := schemas.ParseFired(m.Header, m.Data)
			if err != nil {
				return true, nil //nolint:nilerr // an unreadable event is no source
			}
			spec.Of(schemas.ServiceOfSubject(m.Subject))
			rec := claim.Record(&spec, fired)
			rec.State, rec.DoneMs = schemas.StateFail, m.Time.UnixMilli()
			if src.stream == schemas.StreamFired {
				rec.State = schemas.StateSuccess
				if rec.Callback != "" {
					// Nothing shows whether the callback was made. As delivered, the record gets a result
					// from functions or the sweeper.
					rec.State, rec.DoneMs = schemas.StateDelivered, 0
					rec.Moves = max(rec.Moves, 1) // not a new claim; see restore
					if rec.Body, err = schemas.StripFired(m.Header, m.Data); err != nil {
						return true, nil //nolint:nilerr // as above
					}
				}
			}
			found = &firedRecord{rec, claim.Revision, src.stream}
			return true, nil // a later event of the timer replaces this one
		})
		if err != nil || found != nil {
			return found, err
		}
	}
	return nil, nil
}

// reject publishes the bytes of a damaged record to timers.rejected, and removes the key.
// Errors: ErrRevision if the key has changed, schemas.ErrUnavailable.
func (r *repair) reject(ctx context.Context, f RepairFinding) error {
	m, err := r.jet.Last(ctx, r.shards.subjects[f.Shard].stream, f.Key)
	switch {
	case errors.Is(err, schemas.ErrNotFound):
		return nil // the server cannot read the value: there is nothing to move
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

// losses reports the losses of messages that the owners of the shards have recorded. Their
// repair only marks them as known.
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
			problem += "; timers without a record: " + strings.Join(l.Timers, ", ")
			if l.TimersMore > 0 {
				problem += fmt.Sprintf(" and %d more", l.TimersMore)
			}
		}
		err := r.found(RepairFinding{Kind: "loss", Shard: d.Shard, Key: damageSubject(d.Shard), Problem: problem, Repair: "mark it as known, which ends the reports", do: func(ctx context.Context) error {
			_, err := r.reports.change(ctx, d.Shard, func(d *ShardDamage) {
				if d.Loss != nil {
					noted := *d.Loss
					noted.Noted = true
					d.Loss = &noted
				}
			})
			return err
		}})
		if err != nil {
			return err
		}
	}
	return nil
}
