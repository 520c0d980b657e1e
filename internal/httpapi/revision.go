package httpapi

import (
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/belfryio/belfry/router"
)

// etag returns the ETag of a timer: its revision in quotes.
func etag(revision uint64) string { return strconv.Quote(strconv.FormatUint(revision, 10)) }

// revisionOf returns the revision in the header If-Match of a change, 0 for any. given is false
// without one.
func revisionOf(h http.Header, method string) (revision uint64, given bool, err error) {
	values := h.Values("If-Match")
	if len(values) == 0 || method == http.MethodGet {
		return 0, false, nil
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

// precondition maps the conflict of a change with If-Match to 412.
func (q *request) precondition(err error) error {
	if q.ifMatch && errors.Is(err, router.ErrOtherRevision) {
		return &Error{Status: http.StatusPreconditionFailed, Code: codePrecondition, Detail: err.Error()}
	}
	return err
}
