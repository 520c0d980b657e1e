package console

import (
	"cmp"
	"slices"

	"github.com/belfryio/belfry/schemas"
)

// schedulesPage is the list of schedules.
type schedulesPage struct {
	Service, Group string
	Schedules      []scheduleRow
	More           string
}

// scheduleRow is a schedule in the list. Late is the reason why it needs attention, "" for none.
type scheduleRow struct {
	schemas.TimerInfo
	Late string
	rank int
}

// listSchedules is the page of schedules that have not ended. On each page, schedules that are late or
// have missed a deadline come first, then the paused ones.
func listSchedules(q *request) (view, error) {
	page := schedulesPage{Service: q.text("service"), Group: q.text("group")}
	schedules, cursor, err := q.openSchedules(page.Service, page.Group)
	if err != nil {
		return view{}, err
	}
	now := q.console.o.NowMs()
	for i := range schedules {
		q.id.Conceal(&schedules[i])
		page.Schedules = append(page.Schedules, rowOf(schedules[i], now))
	}
	slices.SortStableFunc(page.Schedules, func(a, b scheduleRow) int {
		return cmp.Or(a.rank-b.rank, a.Schedule.Next.Compare(b.Schedule.Next))
	})
	page.More = q.more(cursor)
	return view{name: "schedules", title: "Schedules", data: page}, nil
}

// openSchedules returns a page of the schedules that have not ended, and the cursor of the next page.
// The search index finds them if the node has one; their states come from the records.
func (q *request) openSchedules(service, group string) (schedules []schemas.TimerInfo, cursor string, err error) {
	only, states := true, []schemas.State{schemas.StatePending, schemas.StatePaused}
	if cursor = q.text("cursor"); !q.listsByIndex(cursor) {
		reply, err := q.ops.List(q.Context(), schemas.ListRequest{States: states, Schedule: &only, Service: service, Group: group, Cursor: cursor, Limit: pageSize})
		return reply.Timers, reply.Cursor, err
	}
	reply, err := q.ops.Search(q.Context(), schemas.SearchRequest{States: states, Schedule: &only, Service: service, Group: group, Cursor: cursor, Limit: pageSize})
	if err != nil {
		return nil, "", err
	}
	for i := range reply.Timers {
		info, err := q.ops.Describe(q.Context(), schemas.TimerRef{Timer: reply.Timers[i].Timer.String()})
		switch {
		case schemas.CodeOf(err) == schemas.CodeNotFound:
			continue
		case err != nil:
			return nil, "", err
		}
		if info.Schedule != nil && !info.State.Final() {
			schedules = append(schedules, info)
		}
	}
	return schedules, reply.Cursor, nil
}

// lateMs is the time after which a schedule that is due and has not fired is late, in milliseconds.
const lateMs = 10_000

// rowOf returns the row of a schedule at a time in Unix milliseconds.
func rowOf(info schemas.TimerInfo, nowMs int64) scheduleRow {
	row := scheduleRow{TimerInfo: info, rank: 2}
	s := info.Schedule
	overdue := len(s.Overdue) > 0 && (s.Last == nil || !s.Last.Fired.After(s.Overdue[len(s.Overdue)-1].At))
	switch {
	case info.State.Final():
	case s.Problem != "":
		row.Late, row.rank = s.Problem, 0
	case info.State == schemas.StatePaused:
		row.rank = 1
	case overdue:
		row.Late, row.rank = "no success by its deadline", 0
	case nowMs-info.Due.UnixMilli() > lateMs:
		row.Late, row.rank = "due and not fired", 0
	}
	return row
}
