package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Calendars reads and writes calendars; *store.Store implements it.
type Calendars interface {
	CalendarsNow() (set *store.CalendarSet, fresh bool)
	RefreshCalendars(ctx context.Context) (*store.CalendarSet, error)
	PutCalendar(ctx context.Context, c store.Calendar, rev uint64) (uint64, error)
	DeleteCalendar(ctx context.Context, c store.Calendar, rev uint64) (uint64, error)
}

// currentCalendars reads the calendars for one operation, when a schedule needs them.
type currentCalendars struct {
	ctx  context.Context
	from Calendars
}

// Exclusions implements recurrence.Calendars. It reads the calendars again if the node's copy
// is not fresh, or lacks a calendar, which may be newer than the copy. The error is unavailable
// for a calendar that cannot be read: an add waits until the calendar is repaired, or until a
// node of its version reads it.
func (c currentCalendars) Exclusions(names []string) (*calendar.Exclusions, error) {
	if set, fresh := c.from.CalendarsNow(); fresh {
		if x, err := set.Exclusions(names); err == nil {
			return x, nil
		}
	}
	set, err := c.from.RefreshCalendars(c.ctx)
	if err != nil {
		return nil, err
	}
	x, err := set.Exclusions(names)
	if errors.Is(err, schemas.ErrDamaged) || errors.Is(err, schemas.ErrNewer) {
		err = schemas.Errorf(schemas.CodeUnavailable, "%w", err)
	}
	return x, err
}

// calendars returns the calendars for an operation.
func (s *Service) calendars(ctx context.Context) recurrence.Calendars {
	return CurrentCalendars(ctx, s.o.Store)
}

// addCalendars are the calendars for an add. It makes a context only when an add needs calendars: most do not.
type addCalendars struct{ s *Service }

// Exclusions implements recurrence.Calendars.
func (c addCalendars) Exclusions(names []string) (*calendar.Exclusions, error) {
	ctx, cancel := context.WithTimeout(c.s.run, OperationTimeout)
	defer cancel()
	return c.s.calendars(ctx).Exclusions(names)
}

// CurrentCalendars returns the calendars for one operation; see Operations.Calendars.
func CurrentCalendars(ctx context.Context, from Calendars) recurrence.Calendars {
	return currentCalendars{ctx, from}
}

// calendarCheck finds schedules that wait for their calendars. It reads the calendars at most once.
type calendarCheck struct {
	ctx  context.Context
	from Calendars
	set  *store.CalendarSet // as read by the check; nil if it has not read, or has failed
	err  error
}

// problem returns the reason why a schedule that excludes these calendars waits; "" if it does not.
func (c *calendarCheck) problem(names []string) string {
	if len(names) == 0 {
		return ""
	}
	if set, fresh := c.from.CalendarsNow(); fresh {
		if _, err := set.Exclusions(names); err == nil {
			return ""
		}
	}
	if c.set == nil && c.err == nil {
		c.set, c.err = c.from.RefreshCalendars(c.ctx)
	}
	err := c.err
	if err == nil {
		_, err = c.set.Exclusions(names)
	}
	if err == nil {
		return ""
	}
	return waitsFor(err)
}

// waitsFor is the text about a schedule whose calendars do not exist or cannot be read.
func waitsFor(err error) string {
	return fmt.Sprintf("The schedule waits, and no run fires meanwhile: %v.", err)
}

// scheduleProblem returns the reason why a schedule that is not final has no next run; "" if it has
// one.
func (s *Service) scheduleProblem(ctx context.Context, t *store.Timer) string {
	names := t.Record.Schedule.Exclude
	check := calendarCheck{ctx: ctx, from: s.o.Store}
	if text := check.problem(names); text != "" || len(names) == 0 {
		return text
	}
	p, err := s.ops.plan(ctx, t.ID, t.Record.Schedule)
	if err != nil || !p.NoneLeft(t.Record.Schedule) {
		return "" // the owner's log has the reason
	}
	return noneLeft(t.Record.Schedule)
}

// noneLeft is the text about a schedule whose remaining times are all on excluded dates.
func noneLeft(s *schemas.Schedule) string {
	return fmt.Sprintf("No run is left: %s exclude all remaining dates, the last of them with %s. The schedule runs again if they change before.", strings.Join(s.Exclude, ", "), schemas.FormatTime(s.NextMs))
}

// putTries bounds the tries of writeCalendar.
const putTries = 5

// CalendarPut replaces the dates of a calendar, or makes a new one. When it returns without an
// error, the change is in force on all nodes; see store.Calendars. With q.DryRun it writes
// nothing. The reply counts the schedules that exclude the calendar, and those whose next run
// moves. from is the verified part of the caller, q.By the caller's own claim. Errors:
// bad_request, conflict for another revision, store_full, unavailable.
func (s *Service) CalendarPut(ctx context.Context, q schemas.CalendarPutRequest, from schemas.Caller) (schemas.CalendarPutReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (reply schemas.CalendarPutReply, err error) {
		by, err := claimed(from, q.By)
		if err != nil {
			return reply, err
		}
		if err := store.CheckCalendarName(q.Name); err != nil {
			return reply, err
		}
		if len(q.Dates) == 0 {
			return reply, schemas.Errorf(schemas.CodeBadRequest, "the calendar has no dates: write dates such as 2027-12-25, or delete it")
		}
		now, err := s.o.Store.RefreshCalendars(ctx)
		if err != nil {
			return reply, err
		}
		after, err := now.With(q.Name, q.Dates)
		if err != nil {
			return reply, err
		}
		old, _ := now.Get(q.Name)
		if q.Revision != 0 && q.Revision != old.Rev {
			return reply, otherRevision(q.Name, old.Rev, q.Revision)
		}
		effect, err := s.effect(ctx, q.Name, after)
		if err != nil {
			return reply, err
		}
		reply.Schedules, reply.Moved, reply.Partial = len(effect.users), effect.moved, effect.partial
		c := store.Calendar{Name: q.Name, Dates: q.Dates, AtMs: s.nowMs(), By: by.Name()}
		if q.DryRun {
			c.Rev = old.Rev
			reply.Calendar = infoOf(c)
			return reply, nil
		}
		c.Rev, err = s.writeCalendar(ctx, now, c, q.Revision, s.o.Store.PutCalendar)
		if err != nil {
			return reply, err
		}
		s.o.Log.Info().Str("calendar", q.Name).Int("dates", len(q.Dates)).Uint64("revision", c.Rev).Str("by", c.By).Msg("calendar stored")
		reply.Calendar = infoOf(c)
		return reply, nil
	})
}

// writeCalendar writes a calendar with write, again after conflicts. set has just been read; a
// conflict reads another one. rev is the revision to replace; 0 for any.
func (s *Service) writeCalendar(ctx context.Context, set *store.CalendarSet, c store.Calendar, rev uint64, write func(context.Context, store.Calendar, uint64) (uint64, error)) (uint64, error) {
	for try := 1; ; try++ {
		old, _ := set.Get(c.Name)
		if rev != 0 && rev != old.Rev {
			return 0, otherRevision(c.Name, old.Rev, rev)
		}
		next, err := write(ctx, c, old.Rev)
		switch {
		case err == nil:
			return next, nil
		case !errors.Is(err, store.ErrRevision):
			return 0, err
		case try == putTries:
			return 0, schemas.Errorf(schemas.CodeConflict, "calendar %s is being changed by other requests: try again", c.Name)
		}
		if set, err = s.o.Store.RefreshCalendars(ctx); err != nil {
			return 0, err
		}
	}
}

func otherRevision(name string, is, want uint64) error {
	if is == 0 {
		return revisionError("calendar %s does not exist, and the request names revision %d: leave the revision out to make it", name, want)
	}
	return revisionError("calendar %s has revision %d, not %d: get it, check what has changed, and put it again", name, is, want)
}

// calendarEffect is the effect of a change of a calendar on schedules.
type calendarEffect struct {
	users   []string // schedules that exclude the calendar
	moved   int      // of them, schedules whose next run moves
	unread  int      // records of a newer format, which may be schedules that exclude the calendar
	partial bool     // effectTimeout ended before all schedules were read, or some are unread
}

// effect reads all schedules, and finds the schedules that exclude the calendar. after is the copy of
// the calendars after the change, from which it counts the next runs that move; nil for a
// deletion, which moves none.
func (s *Service) effect(ctx context.Context, name string, after *store.CalendarSet) (e calendarEffect, err error) {
	yes := true
	q := store.ListQuery{States: []schemas.State{schemas.StatePending, schemas.StatePaused}, Schedule: &yes}
	e.unread, e.partial, err = s.eachTimer(ctx, q, func(t *store.Timer) {
		if !slices.Contains(t.Record.Schedule.Exclude, name) {
			return
		}
		e.users = append(e.users, t.Record.Source+" "+t.Record.EventID)
		if after == nil {
			return
		}
		if p, err := recurrence.PlanOf(t.ID, t.Record.Schedule, after); err == nil && p.Replan(&t.Record, s.nowMs()) {
			e.moved++
		}
	})
	return e, err
}

// eachTimer calls fn with the timers of a query. unread counts the records of a newer format, of
// which fn gets none. partial is true if there are such records, or if effectTimeout ended before
// all were read.
func (s *Service) eachTimer(ctx context.Context, q store.ListQuery, fn func(*store.Timer)) (unread int, partial bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, effectTimeout)
	defer cancel()
	for q.Limit = store.MaxListLimit; ; {
		page, err := s.o.Store.List(ctx, q)
		if ctx.Err() != nil {
			return unread, true, nil
		}
		if err != nil {
			return 0, false, err
		}
		unread += page.Unread
		for i := range page.Timers {
			fn(&page.Timers[i])
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return unread, unread > 0, nil
		}
	}
}

// effectTimeout bounds the time in which eachTimer reads. With the time until a change is in
// force (store.CalendarFresh, store.FlowFresh) it must stay below OperationTimeout.
const effectTimeout = time.Second

// CalendarDelete deletes a calendar that no schedule excludes. A schedule that excludes it and
// is added at the same moment waits until the calendar exists again. Errors: bad_request,
// not_found, conflict for another revision or for a calendar in use, unavailable.
func (s *Service) CalendarDelete(ctx context.Context, q schemas.CalendarRequest, from schemas.Caller) (schemas.CalendarInfo, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (info schemas.CalendarInfo, err error) {
		by, err := claimed(from, q.By)
		if err != nil {
			return info, err
		}
		set, old, err := s.calendar(ctx, q.Name)
		if err != nil {
			return info, err
		}
		if q.Revision != 0 && q.Revision != old.Rev {
			return info, otherRevision(q.Name, old.Rev, q.Revision)
		}
		e, err := s.effect(ctx, q.Name, nil)
		switch {
		case err != nil:
			return info, err
		case len(e.users) > 0:
			some := strings.Join(e.users[:min(len(e.users), schemas.MaxCalendarUsers)], "; ")
			return info, schemas.Errorf(schemas.CodeConflict, "%d schedules exclude calendar %s (source and id): %.400s: update or delete them first, or put the calendar with another date", len(e.users), q.Name, some)
		case e.unread > 0:
			return info, schemas.Errorf(schemas.CodeUnavailable, "calendar %s is not deleted: %d records have a newer format than this node reads, and may be schedules that exclude it: try again when all nodes have the newer version (belfry status shows the format levels)", q.Name, e.unread)
		case e.partial:
			return info, schemas.Errorf(schemas.CodeUnavailable, "calendar %s is not deleted: the time was too short to read all schedules: try again when the store is less busy", q.Name)
		}
		c := store.Calendar{Name: q.Name, AtMs: s.nowMs(), By: by.Name()}
		if _, err = s.writeCalendar(ctx, set, c, old.Rev, s.o.Store.DeleteCalendar); err != nil {
			return info, err
		}
		s.o.Log.Info().Str("calendar", q.Name).Str("by", c.By).Msg("calendar deleted")
		return infoOf(old), nil
	})
}

// CalendarGet returns a calendar. Errors: bad_request, not_found, damaged and unknown_format for
// a calendar that cannot be read, unavailable.
func (s *Service) CalendarGet(ctx context.Context, q schemas.CalendarRequest) (schemas.CalendarInfo, error) {
	return do(ctx, s, s.quick, func(ctx context.Context) (schemas.CalendarInfo, error) {
		_, c, err := s.calendar(ctx, q.Name)
		return infoOf(c), err
	})
}

// calendar reads all calendars, and returns them and one of them. Errors: bad_request, not_found,
// damaged, unknown_format, unavailable.
func (s *Service) calendar(ctx context.Context, name string) (*store.CalendarSet, store.Calendar, error) {
	if err := store.CheckCalendarName(name); err != nil {
		return nil, store.Calendar{}, err
	}
	set, err := s.o.Store.RefreshCalendars(ctx)
	if err != nil {
		return nil, store.Calendar{}, err
	}
	if err := set.Err(name); err != nil {
		return nil, store.Calendar{}, err
	}
	c, ok := set.Get(name)
	if !ok {
		return nil, c, schemas.Errorf(schemas.CodeNotFound, "no calendar %s", name)
	}
	return set, c, nil
}

// CalendarList returns all calendars, without their dates. Errors: unavailable.
func (s *Service) CalendarList(ctx context.Context, _ struct{}) (schemas.CalendarListReply, error) {
	return do(ctx, s, s.quick, func(ctx context.Context) (reply schemas.CalendarListReply, err error) {
		set, err := s.o.Store.RefreshCalendars(ctx)
		if err != nil {
			return reply, err
		}
		reply.Calendars = []schemas.CalendarInfo{}
		for _, name := range set.Names() {
			c, _ := set.Get(name)
			info := infoOf(c)
			info.Name, info.Dates = name, nil
			if err := set.Err(name); err != nil {
				info.Error = err.Error()
			}
			reply.Calendars = append(reply.Calendars, info)
		}
		return reply, nil
	})
}

func infoOf(c store.Calendar) schemas.CalendarInfo {
	info := schemas.CalendarInfo{Name: c.Name, Revision: c.Rev, Count: len(c.Dates), Dates: c.Dates, By: c.By}
	if c.AtMs != 0 {
		info.Changed = schemas.TimeOf(c.AtMs)
	}
	return info
}
