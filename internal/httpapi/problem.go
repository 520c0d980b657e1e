package httpapi

import (
	"cmp"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// Codes of errors that only HTTP has.
const (
	codeNoRoute         = "no_route"
	codeNoMethod        = "method_not_allowed"
	codeUnauthenticated = "unauthenticated"
	codeForbidden       = "forbidden"
	codeMediaType       = "unsupported_media_type"
	codePrecondition    = "precondition_failed"
)

// Error is an error with a status and a code of HTTP. Other errors have a schemas.Code.
type Error struct {
	Status int
	// Code is stable. Detail describes the error and its remedy.
	Code, Detail string
	// Challenge is the header WWW-Authenticate, or "".
	Challenge string
	// Field is the invalid field or parameter: a JSON Pointer without its first slash, see pathOf; ""
	// for none.
	Field string
}

func (e *Error) Error() string { return e.Detail }

// Refused returns the error of Config.Authorize for a request that it refuses. status is 400, 401, 403
// or 503, challenge the header WWW-Authenticate or "", and detail describes the error and its remedy.
func Refused(status int, challenge, detail string) *Error {
	code := codeForbidden
	switch status {
	case http.StatusUnauthorized:
		code = codeUnauthenticated
	case http.StatusBadRequest:
		code = string(schemas.CodeBadRequest)
	case http.StatusServiceUnavailable:
		code = string(schemas.CodeUnavailable)
	}
	return &Error{Status: status, Code: code, Detail: detail, Challenge: challenge}
}

func badRequest(format string, args ...any) error {
	return schemas.Errorf(schemas.CodeBadRequest, format, args...)
}

// badField is badRequest about a field or parameter.
func badField(name, format string, args ...any) error {
	return &Error{Status: http.StatusBadRequest, Code: string(schemas.CodeBadRequest), Field: name, Detail: name + ": " + badRequest(format, args...).Error()}
}

// titles are the summaries of errors, by code, with the status of errors that have only a code.
var titles = map[string]struct {
	status int
	title  string
}{
	string(schemas.CodeInvalidEvent):     {http.StatusUnprocessableEntity, "the event is invalid"},
	string(schemas.CodeInvalidAttribute): {http.StatusUnprocessableEntity, "an attribute is invalid"},
	string(schemas.CodeTooManyServices):  {http.StatusUnprocessableEntity, "too many services"},
	string(schemas.CodeTooLarge):         {http.StatusRequestEntityTooLarge, "too large"},
	string(schemas.CodeConflict):         {http.StatusConflict, "conflict"},
	string(schemas.CodeAlreadyFired):     {http.StatusConflict, "the timer has fired"},
	string(schemas.CodeAlreadyDone):      {http.StatusConflict, "the timer has ended"},
	string(schemas.CodeNotFound):         {http.StatusNotFound, "not found"},
	string(schemas.CodeInvalidTimerID):   {http.StatusBadRequest, "not a timer id"},
	string(schemas.CodeBadRequest):       {http.StatusBadRequest, "the request is malformed"},
	string(schemas.CodeLimited):          {http.StatusTooManyRequests, "over a limit of adds"},
	string(schemas.CodeStoreFull):        {http.StatusServiceUnavailable, "the store is full"},
	string(schemas.CodeUnavailable):      {http.StatusServiceUnavailable, "not available now"},
	string(schemas.CodeConfig):           {http.StatusInternalServerError, "a setting of the node is wrong"},
	string(schemas.CodeUnknownFormat):    {http.StatusInternalServerError, "the node is too old for a record"},
	string(schemas.CodeDamaged):          {http.StatusInternalServerError, "a record is damaged"},
	codeNoRoute:                          {http.StatusNotFound, "no such path"},
	codeNoMethod:                         {http.StatusMethodNotAllowed, "no such method at this path"},
	codeUnauthenticated:                  {http.StatusUnauthorized, "a token is needed"},
	codeForbidden:                        {http.StatusForbidden, "not allowed"},
	codeMediaType:                        {http.StatusUnsupportedMediaType, "unsupported content type"},
	codePrecondition:                     {http.StatusPreconditionFailed, "another revision"},
}

// problem is an error in an answer: an application/problem+json of RFC 9457, with the members
// code, pointer and results.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   string `json:"code"`
	// Pointer is a JSON Pointer to the invalid member of the request, as a URI fragment.
	Pointer string `json:"pointer,omitempty"`
	// Results are the verdicts about the events of a batch.
	Results []verdict `json:"results,omitempty"`

	challenge string
	// retryAfter is the value of the header Retry-After, 0 for none.
	retryAfter time.Duration
}

// problemTypes, followed by the code, is the type of a problem.
const problemTypes = "https://github.com/belfryio/belfry/blob/main/docs/http.md#"

// defaultRetry is the Retry-After of an answer of 503 or 429 whose error names no time.
const defaultRetry = time.Second

// problemOf maps an error to a problem. An error without a code is unavailable, as in
// router/natsapi.
func problemOf(err error) *problem {
	p := &problem{Code: string(cmp.Or(schemas.CodeOf(err), schemas.CodeUnavailable)), Detail: router.HeaderText(err.Error())}
	if e, ok := errors.AsType[*Error](err); ok {
		p.Code, p.Status, p.challenge, p.Pointer = e.Code, e.Status, e.Challenge, pointer(e.Field)
	} else if attribute := schemas.AttributeOf(err); attribute != "" {
		p.Pointer = pointer(pathOf(attribute))
	}
	p.Type, p.Title = problemTypes+p.Code, titles[p.Code].title
	p.Status = cmp.Or(p.Status, titles[p.Code].status, http.StatusServiceUnavailable)
	p.retryAfter = schemas.RetryAfterOf(err)
	if p.retryAfter <= 0 && (p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests) {
		p.retryAfter = defaultRetry
	}
	return p
}

// pointer returns the JSON Pointer of a member of the request, as a URI fragment; "" for none.
func pointer(field string) string {
	if field == "" {
		return ""
	}
	return "#" + (&url.URL{Fragment: "/" + field}).EscapedFragment()
}

// problemAnswer is the answer to a request that was not carried out.
func problemAnswer(err error) answer {
	if p, ok := errors.AsType[*batchError](err); ok {
		return answer{problem: p.problem}
	}
	return answer{problem: problemOf(err)}
}

// answer is the answer to a request.
type answer struct {
	status   int
	body     any // encoded as JSON
	location string
	// revision is the revision of the timer in the answer, 0 for none.
	revision uint64
	problem  *problem // of an error; all other fields are then empty
	// stream sends the whole answer; all other fields are then empty.
	stream func(http.ResponseWriter)
}

// finish counts and sends an answer. If a large answer exceeds the bound of memory, it sends an error
// instead.
func (a *API) finish(route string, pl *place, w http.ResponseWriter, ans answer) {
	if ans.stream != nil {
		pl.end()
		a.served.WithLabelValues(route, "ok").Inc()
		ans.stream(w)
		return
	}
	b, err := ans.encode()
	if err == nil {
		if full := pl.answers(len(b)); full != nil {
			ans = problemAnswer(full)
			b, err = ans.encode()
		}
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	code := "ok"
	if ans.problem != nil {
		code = ans.problem.Code
	}
	a.served.WithLabelValues(route, code).Inc()
	writeHeader(w, &ans)
	if ans.status == http.StatusNotModified {
		return
	}
	if _, err := w.Write(b); err != nil {
		a.o.Log.Debug().Err(err).Msg("an HTTP client closed its connection before its answer was sent")
	}
}

// encode returns the body of an answer, and sets the status of an error.
func (ans *answer) encode() ([]byte, error) {
	if p := ans.problem; p != nil {
		ans.status, ans.body = p.Status, p
	}
	b, err := json.Marshal(ans.body)
	return append(b, '\n'), err
}

// writeHeader sends the status and the headers of an answer.
func writeHeader(w http.ResponseWriter, ans *answer) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if p := ans.problem; p != nil {
		h.Set("Content-Type", "application/problem+json")
		if p.challenge != "" {
			h.Set("WWW-Authenticate", p.challenge)
		}
		if p.retryAfter > 0 {
			h.Set("Retry-After", strconv.FormatInt(int64(math.Ceil(p.retryAfter.Seconds())), 10))
		}
	}
	if ans.location != "" {
		h.Set("Location", ans.location)
	}
	if ans.revision != 0 {
		h.Set("ETag", etag(ans.revision))
	}
	if ans.status == http.StatusNotModified {
		h.Del("Content-Type")
	}
	w.WriteHeader(ans.status)
}
