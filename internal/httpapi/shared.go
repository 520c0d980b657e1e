package httpapi

import (
	"context"
	"net/http"

	"github.com/belfryio/belfry/schemas"
)

// listFlows is GET /v1/flows.
func listFlows(q *request) (answer, error) {
	list, err := q.ops.FlowList(q.Context(), struct{}{})
	for i := range list.Limits {
		q.concealLimit(&list.Limits[i])
	}
	for i := range list.Holds {
		list.Holds[i].Reason = q.concealText(list.Holds[i].Reason)
	}
	return answer{status: http.StatusOK, body: list}, err
}

// getFlow is GET /v1/flows/{key}.
func getFlow(q *request) (answer, error) {
	status, err := q.ops.FlowGet(q.Context(), schemas.FlowRequest{Key: q.PathValue("key")})
	ans := answer{status: http.StatusOK, body: &status}
	if l := status.Limit; l != nil {
		q.concealLimit(l)
		if l.Key == q.PathValue("key") { // not the limit of a pattern
			ans.revision = l.Revision
		}
	}
	if status.Hold != nil {
		status.Hold.Reason = q.concealText(status.Hold.Reason)
	}
	return ans, err
}

// setFlow is PUT /v1/flows/{key}.
func setFlow(q *request) (answer, error) {
	var b struct {
		Rate      string `json:"rate"`
		Burst     int    `json:"burst"`
		Parallel  int    `json:"parallel"`
		Pending   int    `json:"pending"`
		Schedules int    `json:"schedules"`
		Services  int    `json:"services"`
		Bytes     int64  `json:"bytes"`
		Circuit   *int   `json:"circuit"`
		DryRun    bool   `json:"dry_run"`
		By        string `json:"by"`
	}
	if err := q.decode(&b); err != nil {
		return answer{}, err
	}
	return q.changing(q.limitRevision, func(revision uint64) (answer, error) {
		return flowAnswer(q.ops.FlowSet(q.Context(), schemas.FlowSetRequest{
			Key: q.PathValue("key"), Rate: b.Rate, Burst: b.Burst, Parallel: b.Parallel, Pending: b.Pending, Schedules: b.Schedules, Services: b.Services, Bytes: b.Bytes, Circuit: b.Circuit, Revision: revision, DryRun: b.DryRun, By: b.By,
		}, q.caller()))
	})
}

// limitRevision returns the revision of the limit in the path; 0 if there is none, or only that of a pattern.
func (q *request) limitRevision() (uint64, error) {
	status, err := q.ops.FlowGet(q.Context(), schemas.FlowRequest{Key: q.PathValue("key")})
	if l := status.Limit; err == nil && l != nil && l.Key == q.PathValue("key") {
		return l.Revision, nil
	}
	return 0, err
}

// pauseFlow is POST /v1/flows/{key}/pause. It also makes a limit that does not exist.
func pauseFlow(q *request) (answer, error) {
	change, err := q.flowChange(q.ops.FlowPause)
	if err != nil {
		return answer{}, err
	}
	return q.changing(q.limitRevision, change)
}

// resumeFlow is POST /v1/flows/{key}/resume.
func resumeFlow(q *request) (answer, error) {
	change, err := q.flowChange(q.ops.FlowResume)
	if err != nil {
		return answer{}, err
	}
	return change(q.revision)
}

// flowChange returns a change at a revision that a body with note and by describes; only a pause has a note.
func (q *request) flowChange(do func(context.Context, schemas.FlowRequest, schemas.Caller) (schemas.FlowReply, error)) (change func(revision uint64) (answer, error), err error) {
	var b struct {
		Note string `json:"note"`
		By   string `json:"by"`
	}
	if err := q.options(&b); err != nil {
		return nil, err
	}
	return func(revision uint64) (answer, error) {
		return flowAnswer(do(q.Context(), schemas.FlowRequest{Key: q.PathValue("key"), Note: b.Note, Revision: revision, By: b.By}, q.caller()))
	}, nil
}

// resetFlow is POST /v1/flows/{key}/reset.
func resetFlow(q *request) (answer, error) {
	var b struct {
		By string `json:"by"`
	}
	if err := q.options(&b); err != nil {
		return answer{}, err
	}
	reply, err := q.ops.FlowReset(q.Context(), schemas.FlowResetRequest{Key: q.PathValue("key"), By: b.By}, q.caller())
	reply.Before.Reason = q.concealText(reply.Before.Reason)
	return answer{status: http.StatusOK, body: reply}, err
}

// deleteFlow is DELETE /v1/flows/{key}.
func deleteFlow(q *request) (answer, error) {
	reply, err := q.ops.FlowDelete(q.Context(), schemas.FlowRequest{Key: q.PathValue("key"), Revision: q.revision, By: q.query.Get("by")}, q.caller())
	return flowAnswer(reply, err)
}

// flowAnswer is the answer to a change of a limit.
func flowAnswer(reply schemas.FlowReply, err error) (answer, error) {
	ans := answer{status: http.StatusOK, body: reply}
	if reply.Limit != nil {
		ans.revision = reply.Limit.Revision
	}
	return ans, err
}

// listCalendars is GET /v1/calendars.
func listCalendars(q *request) (answer, error) {
	list, err := q.ops.CalendarList(q.Context(), struct{}{})
	return answer{status: http.StatusOK, body: list}, err
}

// getCalendar is GET /v1/calendars/{name}.
func getCalendar(q *request) (answer, error) {
	c, err := q.ops.CalendarGet(q.Context(), schemas.CalendarRequest{Name: q.PathValue("name")})
	return answer{status: http.StatusOK, body: c, revision: c.Revision}, err
}

// putCalendar is PUT /v1/calendars/{name}.
func putCalendar(q *request) (answer, error) {
	var b struct {
		Dates  []string `json:"dates"`
		DryRun bool     `json:"dry_run"`
		By     string   `json:"by"`
	}
	if err := q.decode(&b); err != nil {
		return answer{}, err
	}
	name := q.PathValue("name")
	current := func() (uint64, error) {
		c, err := q.ops.CalendarGet(q.Context(), schemas.CalendarRequest{Name: name})
		return c.Revision, err
	}
	return q.changing(current, func(revision uint64) (answer, error) {
		reply, err := q.ops.CalendarPut(q.Context(), schemas.CalendarPutRequest{Name: name, Dates: b.Dates, Revision: revision, DryRun: b.DryRun, By: b.By}, q.caller())
		return answer{status: http.StatusOK, body: reply, revision: reply.Calendar.Revision}, err
	})
}

// deleteCalendar is DELETE /v1/calendars/{name}. The answer has the deleted calendar.
func deleteCalendar(q *request) (answer, error) {
	c, err := q.ops.CalendarDelete(q.Context(), schemas.CalendarRequest{Name: q.PathValue("name"), Revision: q.revision, By: q.query.Get("by")}, q.caller())
	return answer{status: http.StatusOK, body: c}, err
}
