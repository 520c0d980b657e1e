package router

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Adds is the part of the store that removes adds, so that a redelivery does not create their timers
// again; *store.Store has it.
type Adds interface {
	// AddForgotten reports, without a request, that FindAdds would find nothing.
	AddForgotten(addedMs int64) bool
	FindAdds(ctx context.Context, addedMs int64, same func(account string, header map[string][]string, data []byte) bool) (seqs []uint64, err error)
	RemoveAdd(ctx context.Context, seq uint64) error
}

// Operations read and change single timers. Every change is a compare-and-set. They wait
// only in the methods of their interfaces, and read no clock but NowMs, so the simulation
// drives the same code as production. The fields are set once.
type Operations struct {
	Records Records
	Adds    Adds
	// Geometry is the geometry of the store.
	Geometry schemas.Geometry
	// Scope bounds the timers that the operations see; the zero value is the scope of the default
	// tenant.
	Scope Scope
	// SameTimer reports whether an add made a record. account is that of a tenant's add, "" for
	// an add of the default tenant.
	SameTimer func(account string, header map[string][]string, data []byte, rec *schemas.Record) bool
	// Retention is how long final records are kept.
	Retention time.Duration
	// MaxHorizon bounds how far ahead a timer may be moved.
	MaxHorizon time.Duration
	// NowMs is the cluster's time, never behind the leader's.
	NowMs func() int64
	// Zones is the zone data of schedules; nil for that of the process.
	Zones *calendar.ZoneData
	// Calendars returns the calendars that schedules exclude; nil if none may exclude any.
	Calendars func(context.Context) recurrence.Calendars
	// Register registers the service of a callback before an update stores it; nil for nothing.
	Register func(ctx context.Context, service string) error
	// Revision is the revision that a timer must have to be changed; 0 for any.
	Revision uint64
	// With Confirm, an operation that finds no record, that the record refuses (already_fired, already_done, conflict), or
	// that would change nothing, reads the record again with GetNewest. With replicas, a server that led the stream
	// before may have answered the first read (work-around 21, docs/internals/nats-server.md). An operation that writes
	// does not read again: its compare-and-set fails if the record was not the newest.
	Confirm bool
	// AwaitAdds waits for a bounded time for adds that were acknowledged before the call and are not settled. An operation
	// that finds no timer calls it, and looks again if it returns true. nil: operations do not wait.
	AwaitAdds func(ctx context.Context, tenant string) bool
	// Changed is called after each change, with the schedule of the record before, nil for a
	// one-shot timer, and the new record; nil for nothing.
	Changed func(before *schemas.Schedule, t *store.Timer)
}

// plan returns the plan of a schedule.
func (o *Operations) plan(ctx context.Context, id schemas.TimerID, s *schemas.Schedule) (*recurrence.Plan, error) {
	return recurrence.Basis{Zones: o.Zones, Calendars: o.calendars(ctx)}.PlanOf(id, s)
}

func (o *Operations) calendars(ctx context.Context) recurrence.Calendars {
	if o.Calendars == nil {
		return nil
	}
	return o.Calendars(ctx)
}

// Get reads a timer. Errors: bad_request, invalid_timer_id, not_found, unavailable.
func (o *Operations) Get(ctx context.Context, ref schemas.TimerRef) (store.Timer, error) {
	return atRef(ctx, o, ref, o.get)
}

// atRef carries out f on the timer that ref names. A run of a schedule has a record of its
// own; the run of a one-shot timer is in the timer's record. Errors: those of f, bad_request,
// invalid_timer_id; not_found says why a run has no record.
func atRef[T any](ctx context.Context, o *Operations, ref schemas.TimerRef, f func(context.Context, schemas.TimerID) (T, error)) (v T, err error) {
	id, err := ref.Resolve(o.Scope.Tenant)
	if err != nil {
		return v, err
	}
	run, isRun := ref.Run()
	if !isRun {
		return afterAdds(ctx, o, func() (T, error) { return f(ctx, id) })
	}
	v, err = f(ctx, id)
	if schemas.CodeOf(err) == schemas.CodeNotFound {
		t, err := o.withoutRecord(ctx, run)
		if err != nil {
			return v, err
		}
		return f(ctx, t.ID)
	}
	return v, err
}

// afterAdds carries out f. If f finds no timer, it waits for adds that may be on their way, and carries out f again.
func afterAdds[T any](ctx context.Context, o *Operations, f func() (T, error)) (T, error) {
	v, err := f()
	if schemas.CodeOf(err) == schemas.CodeNotFound && o.AwaitAdds != nil && o.AwaitAdds(ctx, o.Scope.Tenant) {
		return f()
	}
	return v, err
}

// withoutRecord returns the one-shot timer whose run has no record of its own, or the reason
// why a run has none.
func (o *Operations) withoutRecord(ctx context.Context, run schemas.RunID) (store.Timer, error) {
	parent := reading{Operations: o, id: run.Timer}
	parent.confirm() // by an earlier record the run may not have begun
	t, err := afterAdds(ctx, o, func() (store.Timer, error) { return parent.get(ctx) })
	switch r := &t.Record; {
	case err != nil || r.Schedule == nil && max(r.Run, 1) == run.Run:
		return t, err
	case r.Schedule == nil:
		return t, schemas.Errorf(schemas.CodeNotFound, "no run %s: timer %s is not a schedule, and its run is number %d", run, run.Timer, max(r.Run, 1))
	case run.Run >= r.Run:
		return t, schemas.Errorf(schemas.CodeNotFound, "no run %s: the timer has not reached it", run)
	case r.Callback == "":
		return t, schemas.Errorf(schemas.CodeNotFound, "run %s has no record: the schedule has no callback, so a run has only its event (see runs)", run)
	}
	return t, schemas.Errorf(schemas.CodeNotFound, "no run %s: it did not fire, or its record has expired (after %s); see runs", run, o.Retention)
}

func (o *Operations) get(ctx context.Context, id schemas.TimerID) (store.Timer, error) {
	return (&reading{Operations: o, id: id}).get(ctx)
}

// reading reads the record of a timer for one operation.
type reading struct {
	*Operations
	id schemas.TimerID
	// newest: read the record by Records.GetNewest.
	newest bool
}

// get reads the record. With Confirm it reads a missing one again, by GetNewest.
func (r *reading) get(ctx context.Context) (store.Timer, error) {
	t, err := r.read(ctx)
	if errors.Is(err, schemas.ErrNotFound) && r.confirm() {
		t, err = r.read(ctx)
	}
	if err == nil && !r.Scope.Sees(t.Record.Service) {
		t, err = store.Timer{ID: r.id}, schemas.ErrNotFound
	}
	if errors.Is(err, schemas.ErrNotFound) {
		return t, schemas.Errorf(schemas.CodeNotFound, "no timer %s: it was never added, is still on its way from timers.add, or its record has expired (after %s)", r.id, r.Retention)
	}
	return t, err
}

func (r *reading) read(ctx context.Context) (store.Timer, error) {
	if r.newest {
		return r.Records.GetNewest(ctx, r.id)
	}
	return r.Records.Get(ctx, r.id)
}

// confirm makes all further reads those of the newest record, and reports whether the earlier ones may have been older.
func (r *reading) confirm() bool {
	again := r.Confirm && !r.newest
	r.newest = r.newest || again
	return again
}

// mayBePast reports whether a newer record could change the result of an operation.
func mayBePast(err error, e edit, read *schemas.Record) bool {
	if s := read.State; s == schemas.StateSuccess || s == schemas.StateCancelled {
		return errors.Is(err, ErrOtherRevision) // success and cancelled are final
	}
	switch schemas.CodeOf(err) {
	case schemas.CodeAlreadyFired, schemas.CodeAlreadyDone, schemas.CodeConflict:
		return true
	}
	return err == nil && e.unchanged && !e.dry
}

// Cancel cancels a timer that is pending, paused, or queued for a retry. Cancelling a
// cancelled timer is no error. Errors: those of Get, already_fired, already_done.
func (o *Operations) Cancel(ctx context.Context, id schemas.TimerID, by schemas.Caller) (store.Timer, error) {
	return o.change(ctx, id, func(rec *schemas.Record) (edit, error) { return o.cancel(rec, by) })
}

func (o *Operations) cancel(rec *schemas.Record, by schemas.Caller) (edit, error) {
	unchanged, err := rec.Cancel(o.NowMs(), by)
	return edit{unchanged: unchanged, forgetAdd: true}, err
}

// CancelStale returns the write that cancels a timer, for a record from a replica that may be
// behind. ok is false if the caller must use Cancel instead: by this record the timer cannot be
// cancelled, or its add has to be removed first. The caller must also use Cancel if the write
// returns store.ErrRevision.
func (o *Operations) CancelStale(t *store.Timer, by schemas.Caller) (w store.Write, ok bool) {
	if !o.Scope.Sees(t.Record.Service) {
		return store.Write{}, false
	}
	if o.checkRevision(t.Rev) != nil {
		return store.Write{}, false
	}
	unchanged, err := t.Record.Cancel(o.NowMs(), by)
	if err != nil || unchanged || !o.Adds.AddForgotten(t.Record.AddedMs) {
		return store.Write{}, false
	}
	return store.Write{ID: t.ID, Rev: t.Rev, Record: &t.Record, TTL: o.Retention}, true
}

// Reschedule moves a pending or paused timer to another due time, in Unix milliseconds.
// Errors: those of Get, bad_request for a schedule, already_fired, already_done.
func (o *Operations) Reschedule(ctx context.Context, id schemas.TimerID, dueMs int64, by schemas.Caller) (store.Timer, error) {
	return o.change(ctx, id, func(rec *schemas.Record) (edit, error) { return o.reschedule(rec, dueMs, by) })
}

func (o *Operations) reschedule(rec *schemas.Record, dueMs int64, by schemas.Caller) (edit, error) {
	// Moved to an earlier time, the timer may fire and expire before the due time of
	// its add. A redelivery of the add would then not be checked against TIMERS_FIRED.
	e := edit{forgetAdd: dueMs < rec.DueMs}
	return e, rec.Reschedule(dueMs, o.NowMs(), by)
}

// edit describes how to write a changed record.
type edit struct {
	// unchanged: there is nothing to write. dry: nothing was to be written, whatever the record.
	unchanged, dry bool
	// forgetAdd: remove the record's add from TIMERS_ADD before the write.
	forgetAdd bool
}

// change applies f to a record and writes it, again after each conflict, until ctx ends.
func (o *Operations) change(ctx context.Context, id schemas.TimerID, f func(*schemas.Record) (edit, error)) (store.Timer, error) {
	return o.changeAt(ctx, id, func(rec *schemas.Record, _ uint64) (edit, error) { return f(rec) })
}

// changeAt is change for an operation that depends on the revision.
func (o *Operations) changeAt(ctx context.Context, id schemas.TimerID, f func(*schemas.Record, uint64) (edit, error)) (store.Timer, error) {
	var sent []byte // the record of the last write
	var before store.Timer
	r := reading{Operations: o, id: id}
	for {
		t, err := r.get(ctx)
		if err != nil {
			return t, err
		}
		if sent != nil && bytes.Equal(sent, t.Record.Append(nil)) {
			// The write was stored and its answer lost; its repetition was refused. Applied
			// again, a trigger would fire twice.
			return o.changed(&before, t), nil
		}
		before = t
		// If another operation has changed the record since a write without an answer, f runs again. That is
		// correct for a pause, a resume and an update: the two requests overlap, so either order is valid.
		// A trigger and a backfill find their request id in Progress.Requests and change nothing.
		var e edit
		if err = o.checkRevision(t.Rev); err == nil {
			e, err = f(&t.Record, t.Rev)
		}
		if mayBePast(err, e, &before.Record) && r.confirm() {
			continue
		}
		if err != nil || e.unchanged {
			return t, err
		}
		if e.forgetAdd {
			t.Rev, err = o.forgetAdd(ctx, &before)
		}
		if err == nil {
			w := store.Write{ID: t.ID, Rev: t.Rev, Record: &t.Record}
			if t.Record.State.Final() {
				w.TTL = o.Retention
			}
			sent = t.Record.Append(sent[:0])
			t.Rev, err = o.Records.Update(ctx, w)
		}
		switch {
		case err == nil:
			return o.changed(&before, t), nil
		case !errors.Is(err, store.ErrRevision):
			return t, err
		case ctx.Err() != nil:
			return t, context.Cause(ctx)
		}
		// A server that led the stream before may have refused the write, and the leader may have stored it.
		r.confirm()
	}
}

// ErrOtherRevision is the cause of a conflict with the revision that a request names.
var ErrOtherRevision = errors.New("another revision")

// revisionError returns an error of conflict whose cause is ErrOtherRevision.
func revisionError(format string, args ...any) error {
	return &schemas.Error{Code: schemas.CodeConflict, Msg: fmt.Sprintf(format, args...), Err: ErrOtherRevision}
}

// checkRevision returns an error of conflict if a timer does not have the required revision.
func (o *Operations) checkRevision(rev uint64) error {
	if o.Revision != 0 && o.Revision != rev {
		return revisionError("the timer has revision %d, not %d: get it, check what has changed, and send the request again", rev, o.Revision)
	}
	return nil
}

// changed reports a change.
func (o *Operations) changed(before *store.Timer, t store.Timer) store.Timer {
	if o.Changed != nil {
		o.Changed(before.Record.Schedule, &t)
	}
	return t
}

// forgetAdd removes the add of a timer from TIMERS_ADD, if it is still there, and returns
// the record's revision. Without that a redelivery of the add would create the timer again
// once its final record has expired.
//
// An add that is still there was not acknowledged, so the index entry of its timer may have
// been lost, which only a redelivery of the add would repair. forgetAdd therefore repairs
// the timer before it removes the add: the change for which it is called may yet fail.
func (o *Operations) forgetAdd(ctx context.Context, t *store.Timer) (rev uint64, err error) {
	seqs, err := o.Adds.FindAdds(ctx, t.Record.AddedMs, func(account string, header map[string][]string, data []byte) bool {
		return o.SameTimer(account, header, data, &t.Record)
	})
	if err != nil || len(seqs) == 0 {
		return t.Rev, err
	}
	rev, err = repair(ctx, o.Records, o.Geometry, o.NowMs, *t)
	if store.Permanent(err) {
		// The index entry is written. The unchanged record is too large for the server, but the
		// changed record may fit.
		rev, err = t.Rev, nil
	}
	for _, seq := range seqs {
		if err == nil {
			err = o.Adds.RemoveAdd(ctx, seq)
		}
	}
	return rev, err
}

// repair writes the index entry and the record of a timer again, which may have lost its
// index entry, and returns the new revision. The shard's owner may have read the entry's
// tick since, or claimed the record and died; then neither it nor the next owner would see
// the timer. Writing the record after its entry brings it to the owner's tail. It returns
// store.ErrRevision if the record has changed since it was read.
func repair(ctx context.Context, records Records, geo schemas.Geometry, nowMs func() int64, t store.Timer) (rev uint64, err error) {
	if !t.Record.Queued {
		// The entry of the due time is for the shard's next owner: the claim's answer may have been lost, and then the low
		// watermark waits at this tick. The other one is for the sweeper.
		for _, ms := range [...]int64{t.Record.DueMs, nowMs()} {
			if err := records.PutIndex(ctx, t.ID, geo.Tick(ms)); err != nil {
				return 0, err
			}
		}
	}
	return rewrite(ctx, records, &t)
}

// rewrite writes a record as it is, and returns its new revision. It marks the timer as moved, because it is not
// new. Errors: store.ErrRevision if the record is not the newest one, and those of the write.
func rewrite(ctx context.Context, records Records, t *store.Timer) (rev uint64, err error) {
	t.Record.Moves = max(t.Record.Moves, 1)
	return records.Update(ctx, store.Write{ID: t.ID, Rev: t.Rev, Record: &t.Record})
}

// due returns the due time of a request, in Unix milliseconds.
func (o *Operations) due(q schemas.RescheduleRequest) (int64, error) {
	now := o.NowMs() + 1
	var due int64
	switch {
	case (q.At == "") == (q.After == ""):
		return 0, schemas.Errorf(schemas.CodeBadRequest, "give either at or after")
	case q.At != "":
		var err error
		if due, err = schemas.ParseTime(q.At); err != nil {
			return 0, schemas.Errorf(schemas.CodeInvalidAttribute, "at %.80q: %w", q.At, err)
		}
	default:
		d, err := schemas.ParseDuration(q.After)
		if err != nil {
			return 0, schemas.Errorf(schemas.CodeInvalidAttribute, "after %.80q: %w", q.After, err)
		}
		if d < 0 || d > o.MaxHorizon {
			return 0, schemas.Errorf(schemas.CodeInvalidAttribute, "after %s: must be 0s to %s", d, o.MaxHorizon)
		}
		due = now + (d + time.Millisecond - 1).Milliseconds()
	}
	if due-now > o.MaxHorizon.Milliseconds() {
		return 0, schemas.Errorf(schemas.CodeInvalidAttribute, "%s is further ahead than the limit of %s", schemas.FormatTime(due), o.MaxHorizon)
	}
	return due, nil
}
