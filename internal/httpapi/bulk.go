package httpapi

import (
	"context"
	"net/http"
	"strconv"

	"github.com/belfryio/belfry/internal/token"
	"github.com/belfryio/belfry/schemas"
)

// Bulk are the operations on a page of the timers, or dead letters, that a filter selects.
type Bulk interface {
	BulkCancel(ctx context.Context, q schemas.BulkRequest, from schemas.Caller) (schemas.BulkReply, error)
	BulkReschedule(ctx context.Context, q schemas.BulkRescheduleRequest, from schemas.Caller) (schemas.BulkReply, error)
	BulkReplay(ctx context.Context, q schemas.BulkDeadRequest, from schemas.Caller) (schemas.BulkDeadReply, error)
	BulkDiscard(ctx context.Context, q schemas.BulkDeadRequest, from schemas.Caller) (schemas.BulkDeadReply, error)
}

// Services lists services.
type Services interface {
	ServiceList(ctx context.Context, q schemas.ServiceListRequest) (schemas.ServiceListReply, error)
}

// bulkRoutes are the operations on many timers or dead letters, and the list of services.
var bulkRoutes = []route{
	{"POST", "/v1/bulk/cancel", token.ScopeWrite, nil, bulkCancel},
	{"POST", "/v1/bulk/reschedule", token.ScopeWrite, nil, bulkReschedule},
	{"POST", "/v1/bulk/replay", token.ScopeWrite, nil, bulkReplay},
	{"POST", "/v1/bulk/discard", token.ScopeWrite, nil, bulkDiscard},
	{"DELETE", "/v1/dead-letters/{sequence}", token.ScopeWrite, []string{"timer", "by"}, discardDead},
	{"GET", "/v1/services", token.ScopeRead, []string{"limit", "cursor"}, listServices},
}

// severalTimers refuses If-Match for a change of several timers: each has a revision of its own.
func (q *request) severalTimers() error {
	if q.ifMatch {
		return badField("If-Match", "this request changes several timers, and each has its own revision: leave the header out")
	}
	return nil
}

// bulkDecode reads the body of a bulk operation.
func (q *request) bulkDecode(v any) error {
	if err := q.severalTimers(); err != nil {
		return err
	}
	return q.decode(v)
}

// bulkCancel is POST /v1/bulk/cancel.
func bulkCancel(q *request) (answer, error) {
	var b schemas.BulkRequest
	if err := q.bulkDecode(&b); err != nil {
		return answer{}, err
	}
	reply, err := q.ops.BulkCancel(q.Context(), b, q.caller())
	return q.bulkAnswer(reply, err)
}

// bulkReschedule is POST /v1/bulk/reschedule. As in PATCH of one timer, the duration is in.
func bulkReschedule(q *request) (answer, error) {
	var b struct {
		schemas.BulkRequest
		In string `json:"in"`
		At string `json:"at"`
	}
	if err := q.bulkDecode(&b); err != nil {
		return answer{}, err
	}
	if (b.In == "") == (b.At == "") {
		return answer{}, badRequest("give either in or at")
	}
	reply, err := q.ops.BulkReschedule(q.Context(), schemas.BulkRescheduleRequest{BulkRequest: b.BulkRequest, After: b.In, At: b.At}, q.caller())
	return q.bulkAnswer(reply, err)
}

func (q *request) bulkAnswer(reply schemas.BulkReply, err error) (answer, error) {
	for i := range reply.Timers {
		q.conceal(&reply.Timers[i])
	}
	return answer{status: http.StatusOK, body: reply}, err
}

// bulkReplay is POST /v1/bulk/replay.
func bulkReplay(q *request) (answer, error) { return q.bulkDead(q.ops.BulkReplay) }

// bulkDiscard is POST /v1/bulk/discard.
func bulkDiscard(q *request) (answer, error) { return q.bulkDead(q.ops.BulkDiscard) }

func (q *request) bulkDead(do func(context.Context, schemas.BulkDeadRequest, schemas.Caller) (schemas.BulkDeadReply, error)) (answer, error) {
	var b schemas.BulkDeadRequest
	if err := q.bulkDecode(&b); err != nil {
		return answer{}, err
	}
	reply, err := do(q.Context(), b, q.caller())
	q.concealDead(reply.Dead)
	return answer{status: http.StatusOK, body: reply}, err
}

// discardDead is DELETE /v1/dead-letters/{sequence}. With the parameter timer, the dead letter must
// belong to that timer. The answer has the discarded dead letter.
func discardDead(q *request) (answer, error) {
	if err := q.severalTimers(); err != nil {
		return answer{}, err
	}
	seq, err := strconv.ParseUint(q.PathValue("sequence"), 10, 64)
	if err != nil || seq == 0 {
		return answer{}, badRequest("%.40q is not the sequence of a dead letter", q.PathValue("sequence"))
	}
	reply, err := q.ops.BulkDiscard(q.Context(), schemas.BulkDeadRequest{Sequence: seq, TimerRef: schemas.TimerRef{Timer: q.query.Get("timer")}, By: q.query.Get("by")}, q.caller())
	switch {
	case err != nil:
		return answer{}, err
	case len(reply.Dead) == 0:
		return answer{}, schemas.Errorf(schemas.CodeNotFound, "no dead letter %d, or it belongs to another timer", seq)
	}
	q.concealDead(reply.Dead)
	return answer{status: http.StatusOK, body: reply.Dead[0]}, nil
}

// concealDead removes the parts of dead letters that the caller may not see.
func (q *request) concealDead(list []schemas.DeadInfo) {
	for i := range list {
		list[i].ErrorData = q.concealText(list[i].ErrorData)
	}
}

// listServices is GET /v1/services.
func listServices(q *request) (answer, error) {
	limit, err := q.limit()
	if err != nil {
		return answer{}, err
	}
	page, err := q.ops.ServiceList(q.Context(), schemas.ServiceListRequest{Limit: limit, Cursor: q.query.Get("cursor")})
	return answer{status: http.StatusOK, body: page}, err
}
