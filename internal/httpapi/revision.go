package httpapi

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// etag returns the ETag of a timer: its revision in quotes.
func etag(revision uint64) string { return strconv.Quote(strconv.FormatUint(revision, 10)) }

// comparing are the changes that take the header If-Match.
var comparing = []string{
	"DELETE /v1/timers", "PATCH /v1/timers", "DELETE /v1/timers/{timer}", "PATCH /v1/timers/{timer}", "PUT /v1/timers/{timer}",
	"POST /v1/timers/{timer}/pause", "POST /v1/timers/{timer}/resume", "POST /v1/timers/{timer}/trigger", "POST /v1/timers/{timer}/backfill",
	"PUT /v1/flows/{key}", "DELETE /v1/flows/{key}", "POST /v1/flows/{key}/pause", "POST /v1/flows/{key}/resume",
	"PUT /v1/calendars/{name}", "DELETE /v1/calendars/{name}",
}

// revisionOf returns the revision in the header If-Match of a change, 0 for any. given is false
// without one. A precondition that the change would not compare is an error.
func revisionOf(h http.Header, rt *route) (revision uint64, given bool, err error) {
	values := h.Values("If-Match")
	switch {
	case rt.method == http.MethodGet:
		return 0, false, nil
	case len(h.Values("If-None-Match")) > 0:
		return 0, false, badField("If-None-Match", "only GET of a timer compares this header: leave it out")
	case len(values) == 0:
		return 0, false, nil
	case !slices.Contains(comparing, rt.String()):
		return 0, false, badField("If-Match", "this request compares no revision: leave the header out")
	}
	text := strings.TrimSpace(values[0])
	if len(values) == 1 && text == "*" {
		return 0, true, nil
	}
	digits, quoted := strings.CutPrefix(text, `"`)
	digits, closed := strings.CutSuffix(digits, `"`)
	revision, err = strconv.ParseUint(digits, 10, 64)
	if len(values) > 1 || !quoted || !closed || err != nil || revision == 0 {
		return 0, false, badField("If-Match", `%.80q is not the ETag of an answer, such as "17"`, strings.Join(values, ", "))
	}
	return revision, true, nil
}

// unchanged reports whether the header If-None-Match of a request has the ETag of a revision.
func unchanged(h http.Header, revision uint64) bool {
	for _, value := range h.Values("If-None-Match") {
		for tag := range strings.SplitSeq(value, ",") {
			tag = strings.TrimPrefix(strings.TrimSpace(tag), "W/")
			if tag == etag(revision) || tag == "*" {
				return true
			}
		}
	}
	return false
}

// maxOvertaken bounds how often changing tries again because another request made a change meanwhile.
const maxOvertaken = 10

// changing carries out a change that also makes what does not exist. With If-Match: * it changes only
// what exists: at its current revision, so that a removal meanwhile is noticed.
func (q *request) changing(current func() (revision uint64, err error), change func(revision uint64) (answer, error)) (answer, error) {
	if !q.ifMatch || q.revision != 0 {
		return change(q.revision)
	}
	for overtaken := 0; ; overtaken++ {
		revision, err := current()
		if schemas.CodeOf(err) == schemas.CodeNotFound || err == nil && revision == 0 {
			return answer{}, &Error{Status: http.StatusPreconditionFailed, Code: codePrecondition, Field: "If-Match", Detail: "this does not exist, and If-Match: * changes only what exists"}
		}
		if err != nil {
			return answer{}, err
		}
		ans, err := change(revision)
		if !errors.Is(err, router.ErrOtherRevision) || overtaken == maxOvertaken {
			return ans, err
		}
	}
}

// precondition maps the conflict of a change with If-Match to 412.
func (q *request) precondition(err error) error {
	if q.ifMatch && errors.Is(err, router.ErrOtherRevision) {
		return &Error{Status: http.StatusPreconditionFailed, Code: codePrecondition, Detail: err.Error()}
	}
	return err
}
