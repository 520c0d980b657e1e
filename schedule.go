package belfry

import (
	"context"
	"iter"
	"strconv"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

// Types of the operations on schedules.
type (
	// Schedule describes a schedule: its attributes, next nominal time and last run.
	Schedule = schemas.ScheduleInfo
	// ScheduleRun is a run of a schedule.
	ScheduleRun = schemas.RunInfo
	// Decision is the decision about a range of nominal times of a schedule: fired, skipped or missed.
	Decision = schemas.DecisionInfo
	// Preview has the next runs of a schedule, with the reasons for their times.
	Preview = schemas.PreviewReply
	// Backfilled is the answer to [Client.Backfill].
	Backfilled = schemas.BackfillReply
	// Updated is the answer to [Client.Update]: the schedule, and its next nominal times
	// before and after.
	Updated = schemas.UpdateReply
	// Why explains times of a schedule, or the time of a timer: fired, planned or not, and the reason.
	Why = schemas.WhyReply
	// CatchUp decides about the nominal times that a schedule missed during a pause.
	CatchUp = schemas.Misfire
)

// The values of [CatchUp].
const (
	CatchUpSkip = schemas.MisfireSkip // none fires
	CatchUpOne  = schemas.MisfireOne  // the latest fires at once, for all
	CatchUpAll  = schemas.MisfireAll  // each fires, oldest first, up to 1,000; the rest as with CatchUpOne
)

// RunTimerID returns the timer id of a run of a schedule with a callback. Get, Cancel and Replay
// take it.
func RunTimerID(schedule TimerID, run uint32) TimerID { return schemas.RunTimer(schedule, run) }

// Pause makes a pending timer or schedule wait until [Client.Resume]. After it has returned nil, only
// runs that [Client.Trigger] and [Client.Backfill] request fire. note is the reason, at most 256 bytes
// of printable text. Pausing again with the same note succeeds. Errors: ErrAlreadyFired,
// ErrAlreadyDone, ErrNotFound, ErrBadRequest, ErrUnavailable.
func (c *Client) Pause(ctx context.Context, id TimerID, note string, opts ...ControlOption) (Timer, error) {
	var t Timer
	err := c.call(ctx, "schedule.pause", schemas.PauseRequest{TimerRef: ref(id), Note: note, By: callerName(opts)}, &t)
	return t, err
}

// PauseGroup pauses the pending timers and schedules of a group and returns their number,
// also with an error. Repeating it pauses the rest. Only programs in Belfry's own account may
// call it. Errors: ErrBadRequest, ErrUnavailable.
func (c *Client) PauseGroup(ctx context.Context, group, note string, opts ...ControlOption) (int, error) {
	return c.group(ctx, "schedule.pause", func(cursor string) any {
		return schemas.PauseRequest{Group: group, Note: note, By: callerName(opts), Cursor: cursor}
	})
}

// Resume lets a paused timer or schedule fire again. A one-shot timer that became due meanwhile fires
// at once; catchUp decides about the nominal times that a schedule missed. Resuming a timer that is
// not paused succeeds. Errors are those of [Client.Pause].
func (c *Client) Resume(ctx context.Context, id TimerID, catchUp CatchUp, opts ...ControlOption) (Timer, error) {
	var t Timer
	err := c.call(ctx, "schedule.resume", schemas.ResumeRequest{TimerRef: ref(id), CatchUp: catchUp.String(), By: callerName(opts)}, &t)
	return t, err
}

// ResumeGroup resumes the paused timers and schedules of a group. It is otherwise as
// [Client.PauseGroup].
func (c *Client) ResumeGroup(ctx context.Context, group string, catchUp CatchUp, opts ...ControlOption) (int, error) {
	return c.group(ctx, "schedule.resume", func(cursor string) any {
		return schemas.ResumeRequest{Group: group, CatchUp: catchUp.String(), By: callerName(opts), Cursor: cursor}
	})
}

// group requests an operation for each page of a group.
func (c *Client) group(ctx context.Context, verb string, request func(cursor string) any) (n int, err error) {
	for cursor := ""; ; {
		var page schemas.GroupReply
		if err := c.call(ctx, verb, request(cursor), &page); err != nil {
			return n, err
		}
		n += page.Changed
		if cursor = page.Cursor; cursor == "" {
			return n, nil
		}
	}
}

// Trigger requests an extra run of a schedule at once, even of a paused one. The run has its own
// number and does not move the schedule. With [AllowOverlap] it fires even while the previous run has
// no result. Each call requests a run; after ErrUnavailable the run may have been requested, see
// [RequestName]. Errors: ErrAlreadyDone for a schedule that has ended, ErrBadRequest for a one-shot
// timer, ErrNotFound, ErrUnavailable, also if 16 requested runs have not fired yet.
func (c *Client) Trigger(ctx context.Context, id TimerID, opts ...ControlOption) (Timer, error) {
	var t Timer
	o := controlled(opts)
	err := c.call(ctx, "schedule.trigger", schemas.TriggerRequest{TimerRef: ref(id), Allow: o.allow, By: o.by, Request: o.request}, &t)
	return t, err
}

// BackfillPeriod is the period of a [Client.Backfill]. From and To are inclusive.
type BackfillPeriod struct {
	From, To time.Time
	// Every is the minimum time between two runs, up to 24 h; 0 for none.
	Every time.Duration
	// Again also fires nominal times that have fired.
	Again bool
	// DryRun changes nothing; the answer has the nominal times.
	DryRun bool
}

// Backfill fires the nominal times of a past period, at most 10,000, oldest first. A nominal
// time that has fired does not fire again, unless the period says so. A schedule has one
// backfill at a time. [AllowOverlap] is as in [Client.Trigger]. Errors: ErrConflict while
// another backfill is under way, ErrAlreadyDone, ErrNotFound, ErrBadRequest, ErrUnavailable.
func (c *Client) Backfill(ctx context.Context, id TimerID, p BackfillPeriod, opts ...ControlOption) (Backfilled, error) {
	o := controlled(opts)
	q := schemas.BackfillRequest{
		TimerRef: ref(id), From: p.From.UTC().Format(time.RFC3339Nano), To: p.To.UTC().Format(time.RFC3339Nano), Rate: p.Every.String(),
		Again: p.Again, Allow: o.allow, DryRun: p.DryRun, By: o.by,
	}
	var reply Backfilled
	err := c.call(ctx, "schedule.backfill", q, &reply)
	return reply, err
}

// Update replaces the schedule that has the event's source and id by the event with the add
// options, as in [Client.Add]. Its runs keep counting, and timerevery keeps its phase, unless
// timerstart changes. With [IfRevision] it replaces only that revision. Updating to the same
// event succeeds and changes nothing. Errors: those of [Client.Add], ErrConflict for another
// revision, ErrAlreadyDone, ErrNotFound, ErrBadRequest.
func (c *Client) Update(ctx context.Context, e event.Event, add []AddOption, opts ...ControlOption) (Updated, error) {
	data, err := encode(&e, add)
	if err != nil {
		return Updated{}, err
	}
	hdr := nats.Header{}
	o := controlled(opts)
	if o.revision != 0 {
		hdr.Set(schemas.HeaderIfMatch, strconv.FormatUint(o.revision, 10))
	}
	if o.by != "" {
		hdr.Set(schemas.HeaderBy, o.by)
	}
	var reply Updated
	err = c.request(ctx, "schedule.update", hdr, data, &reply)
	return reply, err
}

// Preview returns the next n runs of a stored schedule, at most 1,000, with explanations. The runs begin
// at from; the zero time is the present. Errors: ErrNotFound, ErrBadRequest, ErrUnavailable.
func (c *Client) Preview(ctx context.Context, id TimerID, from time.Time, n int) (Preview, error) {
	q := schemas.PreviewRequest{TimerRef: ref(id), N: n}
	if !from.IsZero() {
		q.From = from.UTC().Format(time.RFC3339Nano)
	}
	var reply Preview
	err := c.call(ctx, "schedule.preview", q, &reply)
	return reply, err
}

// Why explains a timer, or a time of a schedule: it fired, was skipped for a reason, is planned, or
// is not a time of the schedule. at is an RFC 3339 time, or
// in the schedule's zone a date such as "2027-03-28" or a local time such as
// "2027-03-28T02:30". A date asks about each of its nominal times, at most 100; "" asks about
// the last nominal time that is decided and the next one. For a one-shot timer at must be "".
// Errors: ErrNotFound, ErrBadRequest, ErrUnavailable.
func (c *Client) Why(ctx context.Context, id TimerID, at string) (Why, error) {
	var reply Why
	err := c.call(ctx, "schedule.why", schemas.WhyRequest{TimerRef: ref(id), At: at}, &reply)
	return reply, err
}

// Runs yields the runs of a schedule, newest first. A field that Belfry does not know any more is zero:
// the record of a run with a callback expires after the setting retention. The iteration ends after
// the first error: ErrNotFound, ErrBadRequest, ErrUnavailable.
func (c *Client) Runs(ctx context.Context, id TimerID) iter.Seq2[ScheduleRun, error] {
	return pages(func(cursor string) ([]ScheduleRun, string, error) {
		page, err := c.runs(ctx, id, cursor)
		return page.Runs, page.Cursor, err
	})
}

// Decisions returns the decisions about the last nominal times of a schedule, newest first, as at most
// 40 ranges. Errors: ErrNotFound, ErrBadRequest, ErrUnavailable.
func (c *Client) Decisions(ctx context.Context, id TimerID) ([]Decision, error) {
	page, err := c.runs(ctx, id, "")
	return page.Decisions, err
}

func (c *Client) runs(ctx context.Context, id TimerID, cursor string) (schemas.RunsReply, error) {
	var page schemas.RunsReply
	err := c.call(ctx, "schedule.runs", schemas.RunsRequest{TimerRef: ref(id), Limit: schemas.MaxRuns, Cursor: cursor}, &page)
	return page, err
}
