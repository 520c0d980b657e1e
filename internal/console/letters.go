package console

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/schemas"
)

const (
	// lettersPage is the number of dead letters that one page groups.
	lettersPage = 200
	// replayTime bounds one replay of a group. It must stay below the time-out of the HTTP server.
	replayTime = 15 * time.Second
)

// deadPage is the page of dead letters.
type deadPage struct {
	Service string
	Groups  []*deadGroup
	Total   int
	More    string
	// Replayed and Problems say what a replay did; Asked is false before one.
	Asked    bool
	Replayed int
	Problems []string
}

// deadGroup are the dead letters of a page with the same cause and service.
type deadGroup struct {
	Service, Tenant, Code, Cause string
	Letters                      []schemas.DeadInfo
	// Replayable is the number of letters that can be replayed.
	Replayable int
}

// listDead is the page of dead letters, grouped by cause.
func listDead(q *request) (view, error) {
	page, err := q.deadPage()
	return view{name: "dead", title: "Dead letters", data: page}, err
}

func (q *request) deadPage() (deadPage, error) {
	page := deadPage{Service: q.text("service")}
	reply, err := q.ops.DeadList(q.Context(), schemas.DeadListRequest{Service: page.Service, Cursor: q.text("cursor"), Limit: lettersPage})
	if err != nil {
		return page, err
	}
	for i := range reply.Dead {
		reply.Dead[i].ErrorData = q.id.ConcealText(reply.Dead[i].ErrorData)
	}
	page.Groups, page.Total, page.More = groupsOf(reply.Dead), len(reply.Dead), q.more(reply.Cursor)
	return page, nil
}

// varying are the parts of an error that differ between letters of the same cause.
var varying = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}|[a-v0-9]{26}|\d+`)

// groupsOf groups dead letters by service, code and cause: the error with its numbers replaced. The
// largest group is first.
func groupsOf(letters []schemas.DeadInfo) []*deadGroup {
	groups := map[string]*deadGroup{}
	for _, d := range letters {
		cause := d.ErrorData
		key := strings.Join([]string{d.Tenant, d.Service, d.ErrorCode, varying.ReplaceAllString(cause, "#")}, "\x00")
		g := groups[key]
		if g == nil {
			g = &deadGroup{Service: d.Service, Tenant: d.Tenant, Code: d.ErrorCode, Cause: cause}
			groups[key] = g
		}
		g.Letters = append(g.Letters, d)
		if d.Consumer == "" {
			g.Replayable++
		}
	}
	var all []*deadGroup
	for _, g := range groups {
		all = append(all, g)
	}
	slices.SortFunc(all, func(a, b *deadGroup) int {
		return cmp.Or(len(b.Letters)-len(a.Letters), strings.Compare(a.Tenant+a.Service+a.Code+a.Cause, b.Tenant+b.Service+b.Code+b.Cause))
	})
	return all
}

// replayDead replays the dead letters of the timers in a form, one after the other.
func replayDead(q *request) (view, error) {
	ids := slices.Compact(slices.Sorted(slices.Values(q.PostForm["timer"])))
	switch {
	case len(ids) == 0:
		return view{}, schemas.Errorf(schemas.CodeBadRequest, "no dead letter is selected")
	case len(ids) > maxBulk:
		return view{}, schemas.Errorf(schemas.CodeBadRequest, "%d dead letters are selected; the limit is %d", len(ids), maxBulk)
	}
	begun, replayed := time.Now(), 0
	var problems []string
	for i, id := range ids {
		if time.Since(begun) > replayTime {
			problems = append(problems, fmt.Sprintf("%d dead letters are left: replay again", len(ids)-i))
			break
		}
		reply, err := q.ops.DeadReplay(q.Context(), schemas.ReplayRequest{TimerRef: schemas.TimerRef{Timer: id}}, q.caller())
		switch {
		case errors.Is(err, schemas.ErrUnavailable):
			return view{}, err
		case err != nil:
			problems = append(problems, fmt.Sprintf("%.40s: %s", id, q.id.ConcealText(err.Error())))
		default:
			replayed += reply.Replayed
		}
	}
	page, err := q.deadPage()
	page.Asked, page.Replayed, page.Problems = true, replayed, problems
	return view{name: "dead", title: "Dead letters", data: page}, err
}

// rejectedPage is the page of adds that were rejected after they had been stored.
type rejectedPage struct {
	Rejected []schemas.RejectedInfo
	More     string
}

// listRejected is the page of rejected adds, newest first on each page.
func listRejected(q *request) (view, error) {
	reply, err := q.ops.RejectedList(q.Context(), schemas.RejectedListRequest{Limit: pageSize, Cursor: q.text("cursor")})
	for i := range reply.Rejected {
		r := &reply.Rejected[i]
		r.Error = q.id.ConcealText(r.Error)
		if !q.can.Payload {
			r.Data = ""
		}
	}
	slices.Reverse(reply.Rejected)
	return view{name: "rejected", title: "Rejections", data: rejectedPage{reply.Rejected, q.more(reply.Cursor)}}, err
}
