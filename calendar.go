package belfry

import (
	"context"

	"github.com/belfryio/belfry/schemas"
)

// This file has the operations on calendars: named lists of dates on which schedules that
// name them in timerexclude do not run.

// Calendar describes a calendar. [Client.Calendars] leaves out its Dates.
type Calendar = schemas.CalendarInfo

// CalendarChange is the effect of [Client.PutCalendar]: the number of schedules that exclude the
// calendar, and the number of them whose next run moves.
type CalendarChange = schemas.CalendarPutReply

// CalendarOption changes a call of [Client.PutCalendar] or [Client.DeleteCalendar].
type CalendarOption interface{ applyCalendar(*calendarOptions) }

type calendarOptions struct {
	revision uint64
	dryRun   bool
	by       string
}

type calendarOption func(*calendarOptions)

func (f calendarOption) applyCalendar(o *calendarOptions) { f(o) }

// CalendarRevision makes a change fail with ErrConflict unless the calendar has this revision.
func CalendarRevision(revision uint64) CalendarOption {
	return calendarOption(func(o *calendarOptions) { o.revision = revision })
}

// CalendarDryRun makes [Client.PutCalendar] store nothing, and only count the schedules whose
// next runs would move.
func CalendarDryRun() CalendarOption {
	return calendarOption(func(o *calendarOptions) { o.dryRun = true })
}

// CalendarBy sets the name of the caller, at most 64 bytes of printable text. Belfry does not verify
// it.
func CalendarBy(name string) CalendarOption {
	return calendarOption(func(o *calendarOptions) { o.by = name })
}

func calendarOptionsOf(opts []CalendarOption) (o calendarOptions) {
	for _, opt := range opts {
		opt.applyCalendar(&o)
	}
	return o
}

// PutCalendar replaces all dates of a calendar, or makes a new one. A date is 2027-12-25, or
// *-12-25 for every year; a calendar has at most 4,000. It takes about two seconds: when it
// returns without an error, the change is in force, and no run that is claimed later is on a
// date that it excludes. Errors: ErrBadRequest, ErrConflict, ErrStoreFull, ErrUnavailable,
// after which the change may be in force.
func (c *Client) PutCalendar(ctx context.Context, name string, dates []string, opts ...CalendarOption) (CalendarChange, error) {
	o := calendarOptionsOf(opts)
	var r CalendarChange
	err := c.call(ctx, "calendar.put", schemas.CalendarPutRequest{Name: name, Dates: dates, Revision: o.revision, DryRun: o.dryRun, By: o.by}, &r)
	return r, err
}

// GetCalendar returns a calendar. Errors: ErrNotFound, ErrBadRequest, ErrUnavailable.
func (c *Client) GetCalendar(ctx context.Context, name string) (Calendar, error) {
	var r Calendar
	err := c.call(ctx, "calendar.get", schemas.CalendarRequest{Name: name}, &r)
	return r, err
}

// Calendars returns all calendars by name, without their dates. Errors: ErrUnavailable.
func (c *Client) Calendars(ctx context.Context) ([]Calendar, error) {
	var r schemas.CalendarListReply
	err := c.call(ctx, "calendar.list", struct{}{}, &r)
	return r.Calendars, err
}

// DeleteCalendar deletes a calendar that no schedule excludes, and returns its last state. Errors:
// ErrConflict, which names some of the schedules that exclude it, or says that it has another
// revision; ErrNotFound, ErrBadRequest; ErrUnavailable, with [Error.RetryAfter] if nothing is
// deleted because a node had no time to read all schedules: the next call then continues.
func (c *Client) DeleteCalendar(ctx context.Context, name string, opts ...CalendarOption) (Calendar, error) {
	o := calendarOptionsOf(opts)
	var r Calendar
	err := c.call(ctx, "calendar.delete", schemas.CalendarRequest{Name: name, Revision: o.revision, By: o.by}, &r)
	return r, err
}
