package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// errSuspended is the result of a publish that was not sent because the lease is in doubt.
// The core retries it.
var errSuspended = errors.New("firing is suspended")

// perform carries out actions. Their results come back through put. It checks the lease
// at intervals, because an action may wait for a permit to write.
func (t *Term) perform(actions []Action) {
	for _, a := range actions {
		now := t.host.Monotonic()
		if t.actsSinceCheck++; t.actsSinceCheck >= t.cfg.LeaseCheckEvery || now-t.leaseCheckedAt > leaseCheckAfter {
			t.checkLease()
		}
		if t.lost {
			t.creates, t.indexes = nil, nil
			return // the next owner publishes what is claimed
		}
		if t.cfg.Trace != nil {
			t.cfg.Trace(a)
		}
		switch a := a.(type) {
		case ActClaim:
			w := store.Write{ID: a.ID, Rev: a.Rev, Record: a.Record}
			if a.Record.State.Final() {
				w.TTL = t.cfg.Core.Retention // a schedule without a run left
			}
			claimed := func(res store.Result) {
				t.put(EvClaimed{ID: a.ID, Rev: res.Rev, Err: res.Err})
			}
			if t.cfg.Tracing != nil {
				claimed = t.traceClaim(a, claimed)
			}
			t.cfg.Store.UpdateAsync(w, claimed)
		case ActPublish:
			if t.core.Paused() || !t.lease.Trusted(now) {
				// The lease expired after the core's decision; see Core.Pause.
				t.put(EvPublished{ID: a.ID, Err: errSuspended})
				continue
			}
			t.publish(a)
		case ActFinish:
			t.cfg.Store.UpdateAsync(store.Write{ID: a.ID, Rev: a.Rev, Record: a.Record, TTL: t.cfg.Core.Retention}, func(res store.Result) {
				if res.Err != nil && !errors.Is(res.Err, store.ErrRevision) {
					t.m.storeErrs.WithLabelValues("finish").Inc()
				}
				t.put(EvFinished{Finish: a, Err: res.Err})
			})
		case ActOverdue:
			if t.core.Paused() || !t.lease.Trusted(now) {
				t.put(EvPublished{ID: a.ID, Err: errSuspended})
				continue
			}
			t.publishOverdue(a)
		case ActDeadLetter:
			if t.core.Paused() || !t.lease.Trusted(now) {
				t.put(EvDeadLettered{ID: a.ID, Err: errSuspended})
				continue
			}
			t.later(0, func(ctx context.Context) {
				_, err := t.cfg.Store.PublishLetter(ctx, a.Msg)
				t.failed("dead letter", err)
				if err == nil && a.Ends {
					t.rejected(a.ID, a.Msg.Subject, a.Msg.Header[schemas.HeaderError][0])
				}
				t.put(EvDeadLettered{ID: a.ID, Err: err})
			})
		case ActFail:
			t.cfg.Store.UpdateAsync(store.Write{ID: a.ID, Rev: a.Rev, Record: a.Record, TTL: t.cfg.Core.Retention}, func(res store.Result) {
				if res.Err == nil {
					t.rejected(a.ID, schemas.SubjectDead(a.Record.Service), a.Record.Outcome.Error)
				} else if !isRevision(res.Err) {
					t.m.storeErrs.WithLabelValues("fail").Inc()
				}
				t.put(EvFailed{ID: a.ID, Rev: res.Rev, Err: res.Err})
			})
		case ActCreateRun:
			if t.core.Paused() || !t.lease.Trusted(now) {
				t.put(EvRunCreated{ID: a.ID, Err: errSuspended})
				continue
			}
			t.creates = append(t.creates, a)
		case ActIndex:
			if a.Ahead && a.Delay == 0 {
				t.indexes = append(t.indexes, a)
			} else {
				t.read(a)
			}
		default:
			t.read(a)
		}
	}
	if len(t.creates) > 0 {
		t.createRuns(t.creates)
		t.creates = nil
	}
	if len(t.indexes) > 0 {
		t.putIndexes(t.indexes)
		t.indexes = nil
	}
}

// rejected counts and logs a dead letter for an event that JetStream permanently rejects.
func (t *Term) rejected(id schemas.TimerID, subject, reason string) {
	t.m.refused.Inc()
	t.log.Error().Stringer("timer", id).Str("subject", subject).Str("error", reason).Msg("JetStream permanently rejects the event: stored it as a dead letter")
}

// read carries out the actions that read or report, and ActIndex and ActEndRun.
func (t *Term) read(a Action) {
	switch a := a.(type) {
	case ActLoad:
		t.later(a.Delay, func(ctx context.Context) {
			load, err := t.cfg.Store.LoadTicks(ctx, t.cfg.Shard, a.Ticks, a.Limit, a.After, a.Seen, t.near)
			t.failed("load", err)
			t.put(EvLoaded{Load: load, Err: err})
		})
	case ActScan:
		t.later(a.Delay, func(ctx context.Context) { t.scan(ctx, a.ThroughMs) })
	case ActReread:
		t.later(a.Delay, func(ctx context.Context) {
			got, err := t.cfg.Store.Get(ctx, a.ID)
			if !errors.Is(err, schemas.ErrNotFound) {
				t.failed("reread", err)
			}
			t.put(EvReread{ID: a.ID, Timer: got, Err: err})
		})
	case ActIndex:
		t.later(a.Delay, func(ctx context.Context) {
			err := t.cfg.Store.PutIndex(ctx, a.Record, a.Tick)
			t.failed("index", err)
			t.put(EvIndexed{ID: a.ID, Record: a.Record, Tick: a.Tick, Ahead: a.Ahead, Err: err})
		})
	case ActLook:
		t.later(a.Delay, func(ctx context.Context) {
			run, open, err := t.look(ctx, a)
			t.failed("look", err)
			t.put(EvLooked{ID: a.ID, State: run.State, DoneMs: run.DoneMs, Open: open, Err: err})
		})
	case ActEndRun:
		t.later(0, func(ctx context.Context) { t.failed("end run", t.endRun(ctx, a)) })
	case ActSkipped:
		t.skipped(a)
	case ActUnplanned:
		t.waits.note(a, t.cfg.Time.EarliestNs())
		t.failed("plan schedule", fmt.Errorf("schedule %s cannot be planned and waits: %w", a.ID, a.Err))
	case ActCount:
		t.later(a.Delay, func(ctx context.Context) {
			var c store.Count
			err := t.removeVoid(ctx)
			if err == nil {
				c, err = t.cfg.Store.CountPending(ctx, t.cfg.Shard, a.Through)
			}
			t.failed("count", err)
			t.put(EvCounted{Round: a.Round, Waiting: c.Waiting, Late: c.Late, Unread: c.Unread, Last: c.Last, Behind: c.Behind, Err: err})
		})
	case ActMissing:
		t.host.Missing(a.Missing)
	case ActDedupCheck:
		t.later(a.Delay, func(ctx context.Context) {
			found, err := t.cfg.Store.FiredSince(ctx, a.Subjects, time.UnixMilli(a.SinceMs), a.IDs)
			t.failed("confirm", err)
			t.put(EvDedupChecked{Found: found, Err: err})
		})
	}
}

// publish publishes a claimed event and measures its lateness.
func (t *Term) publish(a ActPublish) {
	claimed := t.cfg.Time.EarliestNs()
	published := func(_ uint64, duplicate bool, err error) {
		switch {
		case store.Permanent(err): // ActFail logs it, after the dead letter
		case err != nil:
			t.failed("publish", err)
		default:
			t.m.firedOf(a.Service).Inc()
			late := time.Duration(a.LateMs)*time.Millisecond + time.Duration(t.cfg.Time.EarliestNs()-claimed)
			t.m.lateness.Observe(max(late, 0).Seconds())
			if duplicate {
				t.m.duplicates.Inc()
			}
		}
		t.put(EvPublished{ID: a.ID, Duplicate: duplicate, Err: err})
	}
	if t.cfg.Tracing != nil {
		published = t.tracePublish(a, published)
	}
	t.cfg.Store.PublishAsync(a.Msg, published)
}

// scan carries out ActScan.
func (t *Term) scan(ctx context.Context, throughMs int64) {
	t.log.Info().Msg("index entries may have expired since the low watermark: reading every pending timer of the shard once")
	err := t.cfg.Store.ScanQueued(ctx, t.cfg.Shard, throughMs, func(found store.Timer) error {
		return t.host.Offer(ctx, EvScanned{Timer: found})
	})
	t.failed("scan", err)
	// An error means that the term has ended: nothing waits for the event.
	_ = t.host.Offer(ctx, EvScanDone{Err: err})
}

// later runs f concurrently after a delay, unless the term ends first.
func (t *Term) later(d time.Duration, f func(ctx context.Context)) {
	t.host.Go(func(ctx context.Context) {
		if t.host.Pause(ctx, d) {
			f(ctx)
		}
	})
}
