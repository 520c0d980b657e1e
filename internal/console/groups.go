package console

import (
	"cmp"
	"slices"
	"time"

	"github.com/belfryio/belfry/schemas"
)

const (
	// groupsLook bounds the timers that the page of groups reads, and groupsTime the time for which it
	// reads them.
	groupsLook = 2000
	groupsTime = 2 * time.Second
	// groupsPage is the number of timers that one call reads.
	groupsPage = 500
)

// groupsPageData is the page of groups. It has the groups of the timers that the page has read.
type groupsPageData struct {
	Group  string
	Groups []*groupRow
	// Looked is the number of timers that were read. Later is true if the page continues an earlier
	// page.
	Looked int
	Later  bool
	More   string
}

// groupRow has the numbers of pending and paused timers of a group.
type groupRow struct {
	Group                      string
	Pending, Paused, Schedules int
	// Due is the earliest due time of its pending timers.
	Due time.Time
	// Note is the note of one of its paused timers; "" for none.
	Note string
}

// listGroups is the page of groups. No operation lists groups, so it reads a bounded number of pending
// and paused timers, and shows that number. It shows only groups of the caller's tenant, because the
// operations on a group change only timers of that tenant.
func listGroups(q *request) (view, error) {
	page := groupsPageData{Group: q.text("group"), Later: q.text("cursor") != ""}
	ask := schemas.ListRequest{States: []schemas.State{schemas.StatePending, schemas.StatePaused}, Group: page.Group, Limit: groupsPage, Cursor: q.text("cursor")}
	rows := map[string]*groupRow{}
	for begun := time.Now(); ; {
		reply, err := q.ops.List(q.Context(), ask)
		if err != nil {
			return view{}, err
		}
		for i := range reply.Timers {
			if t := &reply.Timers[i]; t.Tenant == q.id.Tenant {
				page.Looked++
				if t.Group != "" {
					if rows[t.Group] == nil {
						rows[t.Group] = &groupRow{Group: t.Group}
						page.Groups = append(page.Groups, rows[t.Group])
					}
					rows[t.Group].add(t)
				}
			}
		}
		if ask.Cursor = reply.Cursor; ask.Cursor == "" || page.Looked >= groupsLook || time.Since(begun) > groupsTime {
			break
		}
	}
	slices.SortFunc(page.Groups, func(a, b *groupRow) int {
		return cmp.Or(cmp.Compare(b.Pending+b.Paused, a.Pending+a.Paused), cmp.Compare(a.Group, b.Group))
	})
	page.More = q.more(ask.Cursor)
	return view{name: "groups", title: "Groups", data: page}, nil
}

func (g *groupRow) add(t *schemas.TimerInfo) {
	if t.Schedule != nil {
		g.Schedules++
	}
	if t.State == schemas.StatePaused {
		g.Paused++
		g.Note = cmp.Or(g.Note, t.PauseNote)
		return
	}
	g.Pending++
	if g.Due.IsZero() || t.Due.Before(g.Due) {
		g.Due = t.Due
	}
}

// pauseGroup pauses the pending timers and schedules of a group.
func pauseGroup(q *request) (view, error) {
	note := q.text("note")
	return q.changeGroup(&job{path: "/groups/pause", ask: "Pause %s timers?", done: "%d timers are paused", button: "Pause them", fields: q.fields("group", "note")}, schemas.StatePending, func(cursor string) (schemas.GroupReply, error) {
		return q.ops.PauseGroup(q.Context(), schemas.PauseRequest{Group: q.text("group"), Note: note, Cursor: cursor}, q.caller())
	})
}

// resumeGroup resumes the paused timers and schedules of a group.
func resumeGroup(q *request) (view, error) {
	return q.changeGroup(&job{
		path: "/groups/resume", ask: "Resume %s timers?", done: "%d timers are resumed", button: "Resume them", fields: q.fields("group", "catchup"), lead: "A timer whose due time has passed fires at once.",
	}, schemas.StatePaused, func(cursor string) (schemas.GroupReply, error) {
		return q.ops.ResumeGroup(q.Context(), schemas.ResumeRequest{Group: q.text("group"), CatchUp: q.text("catchup"), Cursor: cursor}, q.caller())
	})
}

// changeGroup runs a job on the timers of a group in a state.
func (q *request) changeGroup(j *job, state schemas.State, do func(cursor string) (schemas.GroupReply, error)) (view, error) {
	group := q.text("group")
	if group == "" {
		return view{}, schemas.Errorf(schemas.CodeBadRequest, "name a group")
	}
	j.back = query("/groups", "group", group)
	j.step = func(dry bool, cursor string) (s jobStep, err error) {
		if !dry {
			r, err := do(cursor)
			return jobStep{BulkCounts: schemas.BulkCounts{Matched: r.Changed + r.Refused, Done: r.Changed, Refused: r.Refused}, cursor: r.Cursor}, err
		}
		list, err := q.ops.List(q.Context(), schemas.ListRequest{States: []schemas.State{state}, Group: group, Limit: stepPage, Cursor: cursor})
		s.timers = slices.DeleteFunc(list.Timers, func(t schemas.TimerInfo) bool { return t.Tenant != q.id.Tenant })
		s.Matched, s.cursor = len(s.timers), list.Cursor
		return s, err
	}
	return q.runJob(j)
}

// ordersPage is the page of ordering keys.
type ordersPage struct {
	Service string
	Keys    []schemas.OrderKeyInfo
	More    string
}

// listOrders is the page of the ordering keys that have events. The key that has not changed for the
// longest time is first.
func listOrders(q *request) (view, error) {
	page := ordersPage{Service: q.text("service")}
	reply, err := q.ops.OrderList(q.Context(), schemas.OrderListRequest{Service: page.Service, Limit: pageSize, Cursor: q.text("cursor")})
	for i := range reply.Keys {
		if head := reply.Keys[i].Head; head != nil {
			head.Error = q.id.ConcealText(head.Error)
		}
	}
	page.Keys, page.More = reply.Keys, q.more(reply.Cursor)
	return view{name: "orders", title: "Ordering keys", data: page}, err
}
