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

// scheduleRow is a schedule in the list. Late says what is wrong with it, "" for nothing.
type scheduleRow struct {
	schemas.TimerInfo
	Late string
	rank int
}

// listSchedules is the page of schedules that have not ended: of a page, schedules that are late or
// silent are first, then the paused ones.
func listSchedules(q *request) (view, error) {
	page := schedulesPage{Service: q.text("service"), Group: q.text("group")}
	only := true
	reply, err := q.ops.List(q.Context(), schemas.ListRequest{
		States: []schemas.State{schemas.StatePending, schemas.StatePaused}, Schedule: &only, Service: page.Service, Group: page.Group, Cursor: q.text("cursor"), Limit: pageSize,
	})
	if err != nil {
		return view{}, err
	}
	now := q.console.o.NowMs()
	for i := range reply.Timers {
		q.id.Conceal(&reply.Timers[i])
		page.Schedules = append(page.Schedules, rowOf(reply.Timers[i], now))
	}
	slices.SortStableFunc(page.Schedules, func(a, b scheduleRow) int {
		return cmp.Or(a.rank-b.rank, a.Schedule.Next.Compare(b.Schedule.Next))
	})
	page.More = q.more(reply.Cursor)
	return view{name: "schedules", title: "Schedules", data: page}, nil
}

// lateMs is the time after which a schedule that is due and has not fired is late, in milliseconds.
const lateMs = 10_000

// rowOf says how a schedule is at a time in Unix milliseconds.
func rowOf(info schemas.TimerInfo, nowMs int64) scheduleRow {
	row := scheduleRow{TimerInfo: info, rank: 2}
	s := info.Schedule
	overdue := len(s.Overdue) > 0 && (s.Last == nil || !s.Last.Fired.After(s.Overdue[len(s.Overdue)-1].At))
	switch {
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
