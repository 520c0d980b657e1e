package httpapi

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/belfryio/belfry/schemas"
)

// searchNames are the parameters that make GET /v1/timers a search.
var searchNames = []string{"q", "type", "runs_of", "due_from", "due_to", "done_from", "done_to", "host", "error", "attribute", "sort", "order"}

// maxSearch bounds the timers of a page of a search.
const maxSearch = 100

// errErrors refuses a search by error without scope payload. The matches would reveal the paths of
// callbacks, which the answers conceal.
var errErrors = &Error{Status: http.StatusForbidden, Code: codeForbidden, Field: "error", Detail: "the search by error needs scope payload: errors are compared as they are, with the paths of callbacks that an answer without that scope does not have"}

// searches reports whether GET /v1/timers asks the search index.
func (q *request) searches() bool {
	return slices.ContainsFunc(searchNames, q.query.Has) || q.query.Has("id") != q.query.Has("source")
}

// searchTimers is GET /v1/timers with a filter of the search index.
func searchTimers(q *request) (answer, error) {
	v := q.query
	if v.Has("error") && !q.id.Payload {
		return answer{}, errErrors
	}
	search := schemas.SearchRequest{
		Q: v.Get("q"), ID: v.Get("id"), Source: v.Get("source"), Type: v.Get("type"), Service: v.Get("service"), Group: v.Get("group"), RunsOf: v.Get("runs_of"),
		DueFrom: v.Get("due_from"), DueTo: v.Get("due_to"), DoneFrom: v.Get("done_from"), DoneTo: v.Get("done_to"), Host: v.Get("host"), Error: v.Get("error"),
		Sort: v.Get("sort"), Cursor: v.Get("cursor"),
	}
	var err error
	if search.States, search.Schedule, err = q.selection(); err != nil {
		return answer{}, err
	}
	if v.Has("attribute") {
		name, value, ok := strings.Cut(v.Get("attribute"), ":")
		if !ok {
			return answer{}, badField("attribute", "write <name>:<value>")
		}
		search.Attributes = map[string]string{name: value}
	}
	switch order := v.Get("order"); order {
	case "", "asc":
	case "desc":
		search.Descending = true
	default:
		return answer{}, badField("order", "must be asc or desc")
	}
	if search.Limit, err = q.number("limit", maxSearch); err != nil {
		return answer{}, err
	}
	page, err := q.ops.Search(q.Context(), search)
	for i := range page.Timers {
		q.conceal(&page.Timers[i])
	}
	return answer{status: http.StatusOK, body: page}, err
}

// flag reads a parameter that is true or false, false if it is missing.
func (q *request) flag(name string) (bool, error) {
	if !q.query.Has(name) {
		return false, nil
	}
	v, err := strconv.ParseBool(q.query.Get(name))
	if err != nil {
		return false, badField(name, "must be true or false")
	}
	return v, nil
}

// selection reads the parameters state and schedule.
func (q *request) selection() (states []schemas.State, schedule *bool, err error) {
	for _, word := range q.query["state"] {
		state, err := schemas.ParseState(word)
		if err != nil {
			return nil, nil, badField("state", "%w", err)
		}
		states = append(states, state)
	}
	if q.query.Has("schedule") {
		only, err := strconv.ParseBool(q.query.Get("schedule"))
		if err != nil {
			return nil, nil, badField("schedule", "must be true or false")
		}
		schedule = &only
	}
	return states, schedule, nil
}

// showCounts is GET /v1/counts.
func showCounts(q *request) (answer, error) {
	v := q.query
	counts := schemas.CountsRequest{Service: v.Get("service"), From: v.Get("from"), To: v.Get("to"), Bucket: v.Get("bucket")}
	var err error
	if counts.ByService, err = q.flag("by_service"); err != nil {
		return answer{}, err
	}
	reply, err := q.ops.Counts(q.Context(), counts)
	return answer{status: http.StatusOK, body: reply}, err
}
