package router

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
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
		effect, err := s.effect(ctx, effectTimeout, q.Name, after, "")
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
	partial bool     // the time ended before all schedules were read, or some are unread
	cursor  string   // where the time ended
}

// effect reads all schedules from a cursor for at most limit, and finds the schedules that exclude the
// calendar. after is the copy of the calendars after the change, from which it counts the next runs that
// move; nil for a deletion, which moves none.
func (s *Service) effect(ctx context.Context, limit time.Duration, name string, after *store.CalendarSet, cursor string) (e calendarEffect, err error) {
	yes := true
	q := store.ListQuery{States: []schemas.State{schemas.StatePending, schemas.StatePaused}, Schedule: &yes, Cursor: cursor}
	e.unread, e.partial, err = s.eachTimer(ctx, limit, &q, func(t *store.Timer) {
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
	e.cursor = q.Cursor
	return e, err
}

// eachTimer calls fn with the timers of a query, for at most limit; q.Cursor then continues. unread counts
// the records of a newer format, of which fn gets none. partial is true if there are such records, or if
// the time ended before all were read.
func (s *Service) eachTimer(ctx context.Context, limit time.Duration, q *store.ListQuery, fn func(*store.Timer)) (unread int, partial bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for q.Limit = store.MaxListLimit; ; {
		page, err := s.o.Store.List(ctx, *q)
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

const (
	// effectTimeout bounds the time in which a change reads timers. With the time until the change is in
	// force (store.CalendarFresh, store.FlowFresh) it must stay below OperationTimeout.
	effectTimeout = time.Second
	// deletionTimeout bounds the time in which one request to delete a calendar reads schedules. It leaves
	// no time for the deletion, which is then left to the next request.
	deletionTimeout = 3 * time.Second
	// deletionKept bounds the age of a read that the next request continues. A schedule that is added
	// meanwhile may be missed.
	deletionKept = 2 * time.Minute
	// deletionWait is Error.RetryAfter of a deletion that is to be requested again.
	deletionWait = 100 * time.Millisecond
)

// deletions has the reads of schedules that requests to delete calendars have not finished, by calendar.
// A read costs some seconds for each 100,000 timers, and a request has less time.
type deletions struct {
	mu   sync.Mutex
	read map[string]deletionRead
}

// deletionRead is how far all schedules were read, and found not to exclude a calendar.
type deletionRead struct {
	cursor string
	whole  bool
	begun  time.Time
}

// take returns the read for a calendar, and forgets it. It is a new one if there is none, or an old one.
func (d *deletions) take(name string, now time.Time) deletionRead {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.read[name]
	delete(d.read, name)
	if now.Sub(r.begun) > deletionKept {
		return deletionRead{begun: now}
	}
	return r
}

// keep keeps the read for a calendar, and forgets the old ones.
func (d *deletions) keep(name string, r deletionRead, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.read, func(_ string, r deletionRead) bool { return now.Sub(r.begun) > deletionKept })
	if d.read == nil {
		d.read = map[string]deletionRead{}
	}
	d.read[name] = r
}

// mayDelete returns nil if no schedule excludes a calendar. Errors: conflict if one does; unavailable,
// with the time after which the request is to be repeated if it has not read all schedules yet.
func (s *Service) mayDelete(ctx context.Context, name string) error {
	begun := time.Now()
	read := s.deletions.take(name, begun)
	if !read.whole {
		e, err := s.effect(ctx, deletionTimeout, name, nil, read.cursor)
		switch {
		case err != nil:
			s.deletions.keep(name, read, begun)
			return err
		case len(e.users) > 0:
			some := strings.Join(e.users[:min(len(e.users), schemas.MaxCalendarUsers)], "; ")
			return schemas.Errorf(schemas.CodeConflict, "%d schedules exclude calendar %s (source and id): %.400s: update or delete them first, or put the calendar with another date", len(e.users), name, some)
		case e.unread > 0:
			return schemas.Errorf(schemas.CodeUnavailable, "calendar %s is not deleted: %d records have a newer format than this node reads, and may be schedules that exclude it: try again when all nodes have the newer version (belfry status shows the format levels)", name, e.unread)
		}
		read.cursor, read.whole = e.cursor, !e.partial
	}
	if read.whole && time.Since(begun) <= effectTimeout {
		return nil
	}
	s.deletions.keep(name, read, time.Now())
	err := schemas.Errorf(schemas.CodeUnavailable, "calendar %s is not deleted yet: the time of one request was too short to read all schedules: repeat the request within %s, and it continues", name, deletionKept)
	err.RetryAfter = deletionWait
	return err
}

// CalendarDelete deletes a calendar that no schedule excludes. A schedule that excludes it and
// is added meanwhile waits until the calendar exists again. Errors: bad_request, not_found,
// conflict for another revision or for a calendar in use, unavailable: with Error.RetryAfter if
// nothing is deleted because the time was too short to read all schedules. The next request
// then continues to read.
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
		if err := s.mayDelete(ctx, q.Name); err != nil {
			return info, err
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
