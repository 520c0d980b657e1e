package router

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// A bulk operation changes all timers, or dead letters, that a filter selects. Each request changes
// one page, and the cursor in its answer selects the next page. Belfry keeps no state between
// requests, so any node can continue an operation, and a caller can repeat it from the start: items
// that are done are not changed again. Each timer is changed by compare-and-set, and only if the
// filter still selects it at that revision.
//
// A cursor begins with a number that all pages of an operation share: the due time of a reschedule,
// or the time of the first page of an operation on dead letters. The cursor of the list follows it. A
// replay at a rate has the due time of its next letter before both.

// cursorSeparator is between that number and the cursor of the list.
const cursorSeparator = "/"

// bulkCursor splits the cursor of a request. first is the number of the first page.
func bulkCursor(cursor string, first int64, verb string) (n int64, list string, err error) {
	if cursor == "" {
		return first, "", nil
	}
	text, list, ok := strings.Cut(cursor, cursorSeparator)
	n, err = strconv.ParseInt(text, 10, 64)
	if !ok || list == "" || err != nil {
		return 0, "", schemas.Errorf(schemas.CodeBadRequest, "cursor %.40q was not returned by %s", cursor, verb)
	}
	return n, list, nil
}

// nextCursor is the inverse of bulkCursor.
func nextCursor(n int64, list string) string {
	if list == "" {
		return ""
	}
	return strconv.FormatInt(n, 10) + cursorSeparator + list
}

// bulkLimit returns the number of items of a page.
func bulkLimit(limit int) (int, error) {
	if limit < 0 || limit > schemas.MaxBulk {
		return 0, schemas.Errorf(schemas.CodeBadRequest, "limit is %d; it must be 1 to %d", limit, schemas.MaxBulk)
	}
	if limit == 0 {
		limit = schemas.DefaultBulk
	}
	return limit, nil
}

// bulkQuery returns the list of the timers that a request selects. The operation can change timers in
// states.
func (s *Service) bulkQuery(q *schemas.BulkRequest, states []schemas.State) (store.ListQuery, error) {
	list := store.ListQuery{States: q.States, Group: q.Group, Schedule: q.Schedule}
	if q.Service == "" && q.Group == "" {
		return list, schemas.Errorf(schemas.CodeBadRequest, "select the timers by service or group")
	}
	for _, state := range q.States {
		if !slices.Contains(states, state) {
			return list, schemas.Errorf(schemas.CodeBadRequest, "state %s cannot be selected: timers in that state cannot be changed", state)
		}
	}
	if len(q.States) == 0 {
		list.States = []schemas.State{schemas.StatePending, schemas.StatePaused}
	}
	var err error
	if list.Service, list.Tenant, err = s.scope.selects(q.Service); err != nil {
		return list, err
	}
	if q.Service == "" {
		// A group belongs to one tenant: other tenants may use the same name. See also group.
		list.Tenant = &s.scope.Tenant
	}
	list.Limit, err = bulkLimit(q.Limit)
	return list, err
}

// BulkCancel cancels a page of timers, or only lists them (q.DryRun). from is the verified part of
// the caller, q.By the caller's own claim. After unavailable some timers of the page may be
// cancelled; the same request continues. Errors: bad_request, unavailable.
func (s *Service) BulkCancel(ctx context.Context, q schemas.BulkRequest, from schemas.Caller) (schemas.BulkReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (reply schemas.BulkReply, err error) {
		list, err := s.bulkQuery(&q, []schemas.State{schemas.StatePending, schemas.StatePaused, schemas.StateRetrying})
		if err != nil {
			return reply, err
		}
		by, err := claimed(from, q.By)
		if err != nil {
			return reply, err
		}
		list.Cursor = q.Cursor
		page, err := s.o.Store.List(ctx, list)
		if err != nil {
			return reply, err
		}
		reply, err = s.bulk(ctx, page.Timers, q.DryRun, &list, func(rec *schemas.Record) (edit, error) { return s.ops.cancel(rec, by) })
		reply.Cursor = page.Cursor
		return reply, err
	})
}

// BulkReschedule moves a page of timers to one due time, or only lists them. Timers that are due
// then already are not selected. It is otherwise as BulkCancel. Further errors: invalid_attribute.
func (s *Service) BulkReschedule(ctx context.Context, q schemas.BulkRescheduleRequest, from schemas.Caller) (schemas.BulkReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (reply schemas.BulkReply, err error) {
		if q.Schedule != nil && *q.Schedule {
			return reply, schemas.Errorf(schemas.CodeBadRequest, "a schedule cannot be rescheduled: update it")
		}
		q.Schedule = new(bool)
		list, err := s.bulkQuery(&q.BulkRequest, []schemas.State{schemas.StatePending, schemas.StatePaused})
		if err != nil {
			return reply, err
		}
		by, err := claimed(from, q.By)
		if err != nil {
			return reply, err
		}
		due, err := s.ops.due(schemas.RescheduleRequest{At: q.At, After: q.After})
		if err != nil {
			return reply, err
		}
		if due, list.Cursor, err = bulkCursor(q.Cursor, due, "bulk.reschedule"); err != nil {
			return reply, err
		}
		if due < 0 || due-s.nowMs() > s.ops.MaxHorizon.Milliseconds() {
			return reply, schemas.Errorf(schemas.CodeBadRequest, "cursor %.40q was not returned by bulk.reschedule", q.Cursor)
		}
		page, err := s.o.Store.List(ctx, list)
		if err != nil {
			return reply, err
		}
		// The list is in the order of the last change, so it returns moved timers a second time.
		timers := slices.DeleteFunc(page.Timers, func(t store.Timer) bool { return t.Record.DueMs == due })
		reply, err = s.bulk(ctx, timers, q.DryRun, &list, func(rec *schemas.Record) (edit, error) { return s.ops.reschedule(rec, due, by) })
		reply.Cursor = nextCursor(due, page.Cursor)
		return reply, err
	})
}

// bulk applies f to timers of a list.
func (s *Service) bulk(ctx context.Context, timers []store.Timer, dry bool, list *store.ListQuery, f func(*schemas.Record) (edit, error)) (schemas.BulkReply, error) {
	reply := schemas.BulkReply{BulkCounts: schemas.BulkCounts{Matched: len(timers)}, Timers: make([]schemas.TimerInfo, 0, len(timers))}
	ops := s.ops
	ops.Revision = 0 // each timer has its own revision
	errs := make([]error, len(timers))
	if !dry {
		each(indexes(len(timers)), func(i int) { timers[i], errs[i] = ops.changeSelected(ctx, timers[i].ID, list, f) })
	}
	for i := range timers {
		if err := errs[i]; err != nil {
			code := schemas.CodeOf(err)
			if stops(code) {
				return reply, schemas.Errorf(code, "%w; some of the timers may be changed: repeat the request", err)
			}
			reply.Refuse(code, 1)
			continue
		}
		if !dry {
			reply.Done++
		}
		info := schemas.FromRecord(timers[i].ID, &timers[i].Record, timers[i].Rev)
		info.LastAttempts = nil
		reply.Timers = append(reply.Timers, info)
	}
	return reply, nil
}

// stops reports whether an error about one item comes from the store, so that the rest of the page
// would fail with it.
func stops(code schemas.Code) bool {
	return code == "" || code == schemas.CodeUnavailable || code == schemas.CodeStoreFull
}

// changeSelected applies f to a timer that a list has selected. Errors: those of f; conflict if the
// list does not select the timer any more.
func (o *Operations) changeSelected(ctx context.Context, id schemas.TimerID, list *store.ListQuery, f func(*schemas.Record) (edit, error)) (store.Timer, error) {
	return o.change(ctx, id, func(rec *schemas.Record) (edit, error) {
		selected := list.Selects(rec)
		e, err := f(rec)
		if err == nil && !e.unchanged && !selected {
			return edit{unchanged: true}, schemas.Errorf(schemas.CodeConflict, "the timer has changed, and the filter does not select it any more")
		}
		return e, err
	})
}

// bulkDead returns the dead letters that a request selects, also damaged ones,
// and the cursor of the next page.
func (s *Service) bulkDead(ctx context.Context, q *schemas.BulkDeadRequest, verb string) (page store.DeadPage, err error) {
	dq := store.DeadQuery{Sequence: q.Sequence, ErrorCode: q.ErrorCode}
	switch {
	case q.TimerRef == (schemas.TimerRef{}) && q.Service == "" && q.Sequence == 0 && len(q.Sequences) == 0 && q.ErrorCode == "":
		return page, schemas.Errorf(schemas.CodeBadRequest, "select the dead letters by timer (timer, or id and source), service, sequence, sequences or error_code")
	case q.Sequence != 0 && len(q.Sequences) > 0:
		return page, schemas.Errorf(schemas.CodeBadRequest, "give either sequence or sequences")
	case len(q.Sequences) > schemas.MaxBulkSequences:
		return page, schemas.Errorf(schemas.CodeBadRequest, "sequences has %d numbers; the limit is %d", len(q.Sequences), schemas.MaxBulkSequences)
	}
	if dq.Service, dq.Tenant, err = s.scope.selects(q.Service); err != nil {
		return page, err
	}
	if q.TimerRef != (schemas.TimerRef{}) {
		if dq.TimerID, dq.Run, err = s.scope.deadRef(q.TimerRef); err != nil {
			return page, err
		}
	}
	if dq.Limit, err = bulkLimit(q.Limit); err != nil {
		return page, err
	}
	until, cursor, err := bulkCursor(q.Cursor, s.nowMs(), verb)
	if err != nil {
		return page, err
	}
	// The new dead letter of a replayed timer that fails again is not part of the operation.
	dq.Until, dq.Cursor = time.UnixMilli(until+1), cursor
	if len(q.Sequences) > 0 {
		page, err = s.deadSequences(ctx, dq, q.Sequences, verb)
	} else {
		page, err = s.o.Store.DeadList(ctx, dq)
	}
	page.Cursor = nextCursor(until, page.Cursor)
	return page, err
}

// deadSequences is a page of the dead letters with these sequences, in their order, that dq selects. As in
// a list, the cursor is the last sequence of the page.
func (s *Service) deadSequences(ctx context.Context, dq store.DeadQuery, sequences []uint64, verb string) (page store.DeadPage, err error) {
	after := uint64(0)
	if dq.Cursor != "" {
		if after, err = strconv.ParseUint(dq.Cursor, 10, 64); err != nil {
			return page, schemas.Errorf(schemas.CodeBadRequest, "cursor %.40q was not returned by %s", dq.Cursor, verb)
		}
		dq.Cursor = ""
	}
	left := slices.Compact(slices.Sorted(slices.Values(sequences)))
	left = slices.DeleteFunc(left, func(seq uint64) bool { return seq <= after })
	n := min(len(left), dq.Limit)
	for _, seq := range left[:n] {
		dq.Sequence = seq
		one, err := s.o.Store.DeadList(ctx, dq)
		if err != nil {
			return page, err
		}
		page.Letters = append(page.Letters, one.Letters...)
	}
	if n < len(left) {
		page.Cursor = strconv.FormatUint(left[n-1], 10)
	}
	return page, nil
}

// pace gives the letters of a replay their due times. Its cursor has the due time of the next letter
// before the time of the operation.
type pace struct {
	interval time.Duration
	nextNs   int64 // Unix nanoseconds
	last     time.Time
}

// paceOf returns the pace of a request, nil without a rate, and the rest of its cursor.
func (s *Service) paceOf(q *schemas.BulkDeadRequest, verb string) (*pace, string, error) {
	if q.Rate == "" {
		return nil, q.Cursor, nil
	}
	r, err := flow.ParseRate(q.Rate)
	if err == nil {
		err = flow.Limit{Rate: r, Burst: r.DefaultBurst()}.Check()
	}
	if err != nil {
		return nil, "", schemas.Errorf(schemas.CodeBadRequest, "%w", err)
	}
	next, rest, err := bulkCursor(q.Cursor, s.nowMs()*int64(time.Millisecond), verb)
	return &pace{interval: r.Interval(), nextNs: next}, rest, err
}

// due returns the due time of the next letter, in Unix milliseconds; 0 for at once.
func (p *pace) due(nowMs int64) int64 {
	if p == nil {
		return 0
	}
	p.nextNs = max(p.nextNs, nowMs*int64(time.Millisecond))
	return (p.nextNs + int64(time.Millisecond) - 1) / int64(time.Millisecond)
}

// replayed notes that a letter was replayed with a due time.
func (p *pace) replayed(dueMs int64) {
	if p != nil {
		p.nextNs += int64(p.interval)
		p.last = schemas.TimeOf(dueMs)
	}
}

// finish adds the due time of the last letter, and the pace's part of the cursor, to a reply.
func (p *pace) finish(reply *schemas.BulkDeadReply) {
	if p != nil {
		reply.Last, reply.Cursor = p.last, nextCursor(p.nextNs, reply.Cursor)
	}
}

// BulkReplay replays a page of dead letters as DeadReplay does, or only lists them (q.DryRun). A
// letter that cannot be replayed stays, and its reason is counted. With q.Rate the letters are put
// back at once, and are due one after the other. A page that is repeated after an error begins with the
// same due time again. Caller and errors are as in BulkCancel; further errors: invalid_timer_id.
func (s *Service) BulkReplay(ctx context.Context, q schemas.BulkDeadRequest, from schemas.Caller) (schemas.BulkDeadReply, error) {
	const verb = "bulk.replay"
	p, cursor, err := s.paceOf(&q, verb)
	if err != nil {
		return schemas.BulkDeadReply{}, err
	}
	q.Cursor = cursor
	reply, err := s.bulkLetters(ctx, &q, from, verb, func(ctx context.Context, l letter, damaged error, by schemas.Caller) error {
		if damaged != nil {
			return schemas.Errorf(schemas.CodeDamaged, "%w", damaged)
		}
		due := p.due(s.nowMs())
		if due-s.nowMs() > s.ops.MaxHorizon.Milliseconds() {
			return schemas.Errorf(schemas.CodeBadRequest, "at %s the dead letter would be due after %s, further ahead than the limit of %s", q.Rate, schemas.FormatTime(due), s.ops.MaxHorizon)
		}
		err := s.replayOne(ctx, l, due, by)
		if err == nil {
			p.replayed(due)
		}
		return err
	})
	p.finish(&reply)
	return reply, err
}

// BulkDiscard removes a page of dead letters for good, or only lists them. The records of their
// timers do not change. Each removal is logged with the caller, and is not counted as expired.
// Everything else is as in BulkReplay, without a rate.
func (s *Service) BulkDiscard(ctx context.Context, q schemas.BulkDeadRequest, from schemas.Caller) (schemas.BulkDeadReply, error) {
	if q.Rate != "" {
		return schemas.BulkDeadReply{}, schemas.Errorf(schemas.CodeBadRequest, "rate spreads the calls of a replay, and a discard calls nothing: leave rate out")
	}
	return s.bulkLetters(ctx, &q, from, "bulk.discard", func(ctx context.Context, l letter, _ error, by schemas.Caller) error {
		if err := s.o.Store.DeadDelete(ctx, l.raw.Sequence); err != nil {
			return err
		}
		e := s.o.Log.Info().Uint64("sequence", l.raw.Sequence).Stringer("timer", l.info.Timer).Str("service", schemas.ServiceOfSubject(l.raw.Subject)).Str("error_code", l.info.ErrorCode)
		callerFields(e, by).Msg("dead letter discarded")
		return nil
	})
}

// bulkLetters applies f to a page of dead letters, one at a time, in their order. damaged is the
// reason why a letter cannot be decoded.
func (s *Service) bulkLetters(ctx context.Context, q *schemas.BulkDeadRequest, from schemas.Caller, verb string, f func(ctx context.Context, l letter, damaged error, by schemas.Caller) error) (schemas.BulkDeadReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (reply schemas.BulkDeadReply, err error) {
		by, err := claimed(from, q.By)
		if err != nil {
			return reply, err
		}
		page, err := s.bulkDead(ctx, q, verb)
		if err != nil {
			return reply, err
		}
		reply = schemas.BulkDeadReply{BulkCounts: schemas.BulkCounts{Matched: len(page.Letters)}, Dead: make([]schemas.DeadInfo, 0, len(page.Letters)), Cursor: page.Cursor}
		for _, m := range page.Letters {
			l, damaged := s.deadInfo(m)
			if !q.DryRun {
				err := f(ctx, l, damaged, by)
				if code := schemas.CodeOf(err); err != nil && stops(code) {
					return reply, schemas.Errorf(code, "%w; %d dead letters of the page were done: repeat the request", err, reply.Done)
				} else if err != nil {
					reply.Refuse(code, 1)
					continue
				}
				reply.Done++
			}
			reply.Dead = append(reply.Dead, l.info)
		}
		return reply, nil
	})
}
