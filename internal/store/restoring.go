package store

import (
	"context"
	"errors"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// restoringStream marks an account whose streams a restore is making. The restore makes it before
// the first stream and removes it after the last one. A restore that was killed leaves it, with some
// of the streams. A node would make the missing ones, empty, so Open refuses such an account.
const restoringStream = "BELFRY_RESTORING"

// restoringBytes is the limit of the stream, which stays empty.
const restoringBytes = 4096

// undoRestore tells the user how to remove an incomplete restore.
const undoRestore = "a restore was interrupted, or still runs, so some streams are missing: wait for its end, or remove the new data folder (in an account of your own: the streams TIMERS_…, KV_… and " + restoringStream + ") and restore again"

// BeginRestore marks the account as incomplete. The id is that of the restore: JetStream refuses the mark of another
// one, so of several restores that begin at the same moment only one goes on. It can be repeated with the same id.
// Errors: schemas.ErrConflict while another restore has begun and has not ended.
func BeginRestore(ctx context.Context, c *jet.Client, id string, replicas int) error {
	err := c.CreateStream(ctx, jet.StreamConfig{
		Name: restoringStream, Description: restoreMark(id), Subjects: []string{restoringStream},
		Storage: jet.FileStorage, Replicas: max(replicas, 1), MaxBytes: restoringBytes,
	})
	if errors.Is(err, jet.ErrExists) {
		return schemas.Errorf(schemas.CodeConflict, "%s", undoRestore)
	}
	return err
}

// restoreMark is the description of the stream that marks the account.
func restoreMark(id string) string { return "Belfry: restore " + id + " runs, or was interrupted" }

// markOf returns the mark of an account; "" without one.
func markOf(ctx context.Context, c *jet.Client) (mark string, err error) {
	info, err := c.Stream(ctx, restoringStream)
	if errors.Is(err, jet.ErrNoStream) {
		return "", nil
	}
	return info.Config.Description, err
}

// CheckOwnRestore returns an error if the account does not have the mark of the restore with the id: another restore has
// begun, or another client removed the mark, and another restore may have begun and ended since. Errors:
// schemas.ErrConflict.
func CheckOwnRestore(ctx context.Context, c *jet.Client, id string) error {
	mark, err := markOf(ctx, c)
	switch {
	case err != nil || mark == restoreMark(id):
		return err
	case mark == "":
		return schemas.Errorf(schemas.CodeConflict, "the mark %s of this restore is gone, so no stream was removed: another client removed it, and the streams may be those of another restore; if they are not, remove them, and restore again", restoringStream)
	}
	return schemas.Errorf(schemas.CodeConflict, "another restore into this account has begun, so no stream was removed: wait for its end, and check which backup the account has")
}

// EndRestore marks the account as complete. Errors: those of CheckOwnRestore.
func EndRestore(ctx context.Context, c *jet.Client, id string) error {
	if err := CheckOwnRestore(ctx, c, id); err != nil {
		return err
	}
	return c.DeleteStream(ctx, restoringStream)
}

// CheckRestored returns an error of the code if a restore into the account has begun and has not ended.
func CheckRestored(ctx context.Context, c *jet.Client, code schemas.Code) error {
	switch _, err := c.Stream(ctx, restoringStream); {
	case errors.Is(err, jet.ErrNoStream):
		return nil
	case err != nil:
		return err
	}
	return schemas.Errorf(code, "%s", undoRestore)
}

// CheckRestored is the function of this name, for doctor.
func (v *View) CheckRestored(ctx context.Context) error {
	return CheckRestored(ctx, v.jet, schemas.CodeConfig)
}

// restoredKeep is the TTL of the entries of IndexRestored. A node must own the shard within that time. The entries are few, so
// it leaves room for a restore that lasts a day, and for a pause before the nodes start.
const restoredKeep = 7 * 24 * time.Hour

// IndexRestored writes an index entry for each open record of a restored store, so that the sweeper of the next owner audits
// it: the callback may have ended while the backup was made, after the copy of the record. The record's own entry has expired
// if the backup is old. Other records need no entry: an owner whose low watermark is old reads all that wait (ScanQueued).
//
// The entries are in a tick that the sweeper has yet to audit and that the low watermark has passed, so that they delay no
// timer. Timers share them. IndexRestored reads every record, in bounded memory, and can be repeated. Call it before the first
// node starts. No record may be a revision that a kill has brought back (work-around 23), because it would fire again: a copy
// of nats-server 2.15 or later has none that the store did not have.
//
// Errors: schemas.ErrStoreFull after all other shards are done; schemas.ErrDamaged or schemas.ErrNewer if the layout cannot be
// read; schemas.ErrUnavailable.
func (v *View) IndexRestored(ctx context.Context) error {
	ready := func(do func(context.Context) error) error {
		return waitUntilReady(ctx, v.log, DefaultReadyWithin, do)
	}
	var r restoredIndex
	err := ready(func(ctx context.Context) (err error) {
		r, err = v.restoredIndex(ctx)
		return err
	})
	if errors.Is(err, schemas.ErrNotFound) {
		return nil // no node has written a layout, or records
	}
	if err != nil {
		return err
	}
	var full error
	for n := range r.index.shards.geo.Shards {
		err := ready(func(ctx context.Context) error { return r.shard(ctx, n) })
		if errors.Is(err, schemas.ErrStoreFull) {
			full = err
			continue
		}
		if err != nil {
			return err
		}
	}
	return full
}

// restoredIndex is one run of IndexRestored.
type restoredIndex struct {
	clocks *Clocks
	dec    *decoder
	index  *Index
}

// restoredIndex reads the layout and the leader's time. Errors: those of layoutRecord.read.
func (v *View) restoredIndex(ctx context.Context) (restoredIndex, error) {
	now, err := v.LeaderNow(ctx)
	if err != nil {
		return restoredIndex{}, err
	}
	v.nodes.stamp.Store(&Stamp{ServerNs: now.UnixNano(), Received: time.Now()})
	layout := layoutRecord{jet: v.jet, log: v.log}
	m, _, err := layout.read(ctx)
	if err != nil {
		return restoredIndex{}, err
	}
	levels := newLevels(v.nodes, layoutRecord{}, v.log)
	if m.Format >= layout2 { // all builds that open the store read shared entries
		levels.writes.Store(int32(LevelSharedIndex))
	}
	shards := newShards(v.jet, m.Geometry)
	dec := newDecoder(shards, NewestLevel, v.log)
	return restoredIndex{
		clocks: newClocks(v.jet, shards, v.nodes, layout, v.log, v.of(dec)), dec: dec,
		index: &Index{jet: v.jet, shards: shards, nodes: v.nodes, levels: levels, keep: restoredKeep},
	}, nil
}

// shard writes the entries of a shard.
func (r *restoredIndex) shard(ctx context.Context, n int) error {
	tick, err := r.tick(ctx, n)
	if err != nil {
		return err
	}
	open := make([]schemas.TimerID, 0, indexGroup)
	sh := &r.index.shards.subjects[n]
	err = r.index.jet.Scan(ctx, sh.stream, jet.Range{Filters: []string{sh.timer + "*"}}, func(m jet.Msg) (bool, error) {
		t, ok := r.dec.decode(&m)
		if s := t.Record.State; !ok || t.Record.Pending() || s.Final() || s == schemas.StatePaused {
			return true, nil
		}
		if open = append(open, t.ID); len(open) < indexGroup {
			return true, nil
		}
		err := r.index.PutIndexes(ctx, tick, open)
		open = open[:0]
		return true, err
	})
	if err != nil {
		return err
	}
	return r.index.PutIndexes(ctx, tick, open)
}

// tick returns the tick for the entries of a shard: the last one before the low watermark, unless the sweeper has passed it.
func (r *restoredIndex) tick(ctx context.Context, n int) (int64, error) {
	c, _, err := r.clocks.ReadClock(ctx, n)
	if errors.Is(err, schemas.ErrUnavailable) {
		return 0, err
	}
	if err != nil { // the next owner resumes from the copy, too
		nowMs, nerr := r.index.nodes.nowMs(ctx)
		if nerr != nil {
			return 0, nerr
		}
		if c, err = r.clocks.resume(ctx, n, nowMs); err != nil {
			return 0, err
		}
	}
	geo := r.index.shards.geo
	return max(geo.Tick(c.TimeMs)-1, geo.Tick(c.SweptMs), 0), nil
}
