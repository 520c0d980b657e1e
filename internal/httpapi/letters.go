package httpapi

import (
	"net/http"

	"github.com/belfryio/belfry/schemas"
)

// listDead is GET /v1/dead-letters.
func listDead(q *request) (answer, error) {
	list := schemas.DeadListRequest{Service: q.query.Get("service"), Cursor: q.query.Get("cursor"), TimerRef: schemas.TimerRef{Timer: q.query.Get("timer"), ID: q.query.Get("id"), Source: q.query.Get("source")}}
	var err error
	if list.Limit, err = q.limit(); err != nil {
		return answer{}, err
	}
	page, err := q.ops.DeadList(q.Context(), list)
	q.concealDead(page.Dead)
	return answer{status: http.StatusOK, body: page}, err
}

// replayDead is POST /v1/dead-letters/replay: the dead letter of one timer, or a page of the dead
// letters of a service.
func replayDead(q *request) (answer, error) {
	var b struct {
		Timer   string `json:"timer"`
		ID      string `json:"id"`
		Source  string `json:"source"`
		Service string `json:"service"`
		Limit   int    `json:"limit"`
		By      string `json:"by"`
	}
	if err := q.decode(&b); err != nil {
		return answer{}, err
	}
	replay := schemas.ReplayRequest{TimerRef: schemas.TimerRef{Timer: b.Timer, ID: b.ID, Source: b.Source}, Service: b.Service, Limit: b.Limit, By: b.By}
	reply, err := q.ops.DeadReplay(q.Context(), replay, q.caller())
	return answer{status: http.StatusOK, body: reply}, err
}

// listRejected is GET /v1/rejections.
func listRejected(q *request) (answer, error) {
	limit, err := q.limit()
	if err != nil {
		return answer{}, err
	}
	page, err := q.ops.RejectedList(q.Context(), schemas.RejectedListRequest{Limit: limit, Cursor: q.query.Get("cursor")})
	for i := range page.Rejected {
		r := &page.Rejected[i]
		r.Error = q.concealText(r.Error)
		if !q.id.Payload {
			r.Data = ""
		}
	}
	return answer{status: http.StatusOK, body: page}, err
}

// listOrderKeys is GET /v1/order-keys.
func listOrderKeys(q *request) (answer, error) {
	limit, err := q.number("limit", schemas.MaxOrderKeys)
	if err != nil {
		return answer{}, err
	}
	page, err := q.ops.OrderList(q.Context(), schemas.OrderListRequest{Service: q.query.Get("service"), Limit: limit, Cursor: q.query.Get("cursor")})
	for i := range page.Keys {
		if head := page.Keys[i].Head; head != nil {
			head.Error = q.concealText(head.Error)
		}
	}
	return answer{status: http.StatusOK, body: page}, err
}
