package httpapi

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Defaults of the attributes that an event must have.
const (
	DefaultSource = "/http"
	DefaultType   = "belfry.timer"
)

// headerKey is the header whose value becomes the id of an event without an id.
const headerKey = "Idempotency-Key"

// added is the answer to an add.
type added struct {
	Timer  schemas.TimerID `json:"timer"`
	ID     string          `json:"id,omitempty"`
	Source string          `json:"source,omitempty"`
	// Due is an RFC 3339 time with milliseconds.
	Due       string        `json:"due"`
	State     schemas.State `json:"state"`
	Duplicate bool          `json:"duplicate"`
	Remark    string        `json:"remark,omitempty"`
}

// addedOf describes an add.
func addedOf(r *schemas.AddReply) added {
	return added{Timer: r.Timer, Due: schemas.FormatTime(r.Due.UnixMilli()), State: r.State, Duplicate: r.Duplicate, Remark: r.Remark}
}

func (a *added) status() int {
	if a.Duplicate {
		return http.StatusOK
	}
	return http.StatusCreated
}

func (a *added) answer() answer {
	return answer{status: a.status(), body: a, location: "/v1/timers/" + a.Timer.String()}
}

// body reads the body of a request, up to limit bytes. The request has no place meanwhile.
func (q *request) body(limit int) ([]byte, error) {
	for _, coding := range q.Header.Values("Content-Encoding") {
		if !strings.EqualFold(coding, "identity") {
			return nil, &Error{Status: http.StatusUnsupportedMediaType, Code: codeMediaType, Field: "Content-Encoding", Detail: "send the body without Content-Encoding: it would be stored as it is"}
		}
	}
	if q.ContentLength > int64(limit) {
		return nil, bodyTooLarge(limit) // nothing of it is read
	}
	q.place.leave()
	b, err := readAll(&bodyReader{http.MaxBytesReader(q.w, q.Body, int64(limit)), &q.place}, q.ContentLength)
	switch _, large := errors.AsType[*http.MaxBytesError](err); {
	case large:
		return nil, bodyTooLarge(limit)
	case schemas.CodeOf(err) == schemas.CodeUnavailable:
		return nil, err
	case err != nil:
		return nil, badRequest("the body cannot be read: %w", err)
	}
	return b, q.place.enter()
}

func bodyTooLarge(limit int) error {
	return schemas.Errorf(schemas.CodeTooLarge, "the body has more than %d bytes, the limit: send a reference to large data instead", limit)
}

// firstBuffer is the size of the first buffer of a body, in bytes.
const firstBuffer = 16 << 10

// readAll reads a body of length bytes, -1 for unknown. Its buffer grows with what has arrived, to at most twice that
// and not beyond length, so that a slow client reserves no memory for bytes that it only announces.
func readAll(r io.Reader, length int64) ([]byte, error) {
	size := int64(firstBuffer)
	if length >= 0 {
		size = min(size, length+1) // one more, to see the end
	}
	b := make([]byte, 0, size)
	for {
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return b, err
		}
		if len(b) < cap(b) {
			continue
		}
		if size = 2 * int64(cap(b)); length >= int64(len(b)) {
			size = min(size, length+1)
		}
		grown := make([]byte, len(b), size)
		copy(grown, b)
		b = grown
	}
}

// addTimer is POST /v1/timers. The body is a JSON object with the fields. Alternatively the fields are
// query parameters and the body is the event's data.
func addTimer(q *request) (answer, error) {
	byKey, err := idempotencyKey(q.Header)
	if err != nil {
		return answer{}, err
	}
	if contentType := q.Header.Get("Content-Type"); len(q.query) > 0 && schemas.IsEventContent(contentType) {
		// ParseAdd would read the body as the event, without the fields.
		return answer{}, &Error{Status: http.StatusUnsupportedMediaType, Code: codeMediaType, Detail: fmt.Sprintf("a body of %.80q is an event by itself, and no data of a timer with fields in the query: send it to /v1/events without them, or send the fields as JSON with data and datacontenttype", contentType)}
	}
	body, err := q.body(q.api.o.MaxEvent())
	if err != nil {
		return answer{}, err
	}
	id := cmp.Or(byKey, uuid.NewString())
	var header map[string][]string
	var name added
	if len(q.query) > 0 {
		for attribute, def := range map[string]string{"id": id, "source": DefaultSource, "type": DefaultType} {
			q.query.Set(attribute, cmp.Or(q.query.Get(attribute), def))
		}
		name.ID, name.Source = q.query.Get("id"), q.query.Get("source")
		header = queryEvent(q.query, q.Header)
	} else {
		if err := jsonBody(q.Header); err != nil {
			return answer{}, err
		}
		d, err := draftOf(body)
		if err != nil {
			return answer{}, err
		}
		d.setDefault("id", id)
		d.setDefault("source", DefaultSource)
		d.setDefault("type", DefaultType)
		name.ID, name.Source = d.text("id"), d.text("source")
		body = d.event()
	}
	reply, err := q.ops.Add(q.Context(), withTrace(header, q.Header), body)
	if err != nil {
		return answer{}, addError(err, byKey != "" && name.ID == byKey)
	}
	out := addedOf(&reply)
	out.ID, out.Source = name.ID, name.Source
	return out.answer(), nil
}

// jsonBody refuses a body that is not JSON. It accepts the content type of a form, which curl -d sends
// by default, because no request to the API has a form.
func jsonBody(h http.Header) error {
	text := h.Get("Content-Type")
	media, _, err := mime.ParseMediaType(text)
	if text == "" || err == nil && (media == "application/json" || media == "application/x-www-form-urlencoded") {
		return nil
	}
	return &Error{Status: http.StatusUnsupportedMediaType, Code: codeMediaType, Detail: "the body must be application/json; send a CloudEvent to /v1/events, and data of another type with the fields in the query"}
}

// idempotencyKey returns the header Idempotency-Key, which may be in quotes; "" without one.
func idempotencyKey(h http.Header) (string, error) {
	values := h.Values(headerKey)
	if len(values) == 0 {
		return "", nil
	}
	key := strings.TrimSpace(values[0])
	if unquoted, ok := strings.CutPrefix(key, `"`); ok {
		if unquoted, ok = strings.CutSuffix(unquoted, `"`); ok {
			key = unquoted
		}
	}
	if len(values) > 1 || key == "" {
		return "", badField(headerKey, "the header must occur once, with a key that is not empty")
	}
	if !utf8.ValidString(key) { // in JSON two different invalid keys could become the same id
		return "", &Error{Status: http.StatusUnprocessableEntity, Code: string(schemas.CodeInvalidEvent), Field: headerKey, Detail: "the header " + headerKey + " is not UTF-8"}
	}
	return key, nil
}

// addError maps the error of an add to the fields of POST /v1/timers. A conflict about an
// idempotency key is 422, as draft-ietf-httpapi-idempotency-key-header asks for.
func addError(err error, byKey bool) error {
	switch code := schemas.CodeOf(err); {
	case byKey && code == schemas.CodeConflict:
		return &Error{Status: http.StatusUnprocessableEntity, Code: string(code), Field: headerKey, Detail: "this " + headerKey + " was used for another timer: " + err.Error()}
	case code == schemas.CodeInvalidAttribute || code == schemas.CodeInvalidEvent:
		if attribute := schemas.AttributeOf(err); attribute != "" {
			return &Error{Status: http.StatusUnprocessableEntity, Code: string(code), Field: fieldOf(attribute), Detail: err.Error()}
		}
	}
	return err
}

// listOrGet is GET /v1/timers. With id and source it returns one timer, with a parameter of
// searchNames a page of the search index, otherwise a page of the records.
func listOrGet(q *request) (answer, error) {
	if q.searches() {
		return searchTimers(q)
	}
	if q.query.Has("id") || q.query.Has("source") {
		return getTimer(q)
	}
	if q.query.Has("claim") {
		return answer{}, badField("claim", "needs one timer: name it by id and source, or by its path")
	}
	list := schemas.ListRequest{Service: q.query.Get("service"), Group: q.query.Get("group"), Cursor: q.query.Get("cursor")}
	var err error
	if list.States, list.Schedule, err = q.selection(); err != nil {
		return answer{}, err
	}
	if list.Limit, err = q.limit(); err != nil {
		return answer{}, err
	}
	page, err := q.ops.List(q.Context(), list)
	for i := range page.Timers {
		q.conceal(&page.Timers[i])
	}
	return answer{status: http.StatusOK, body: page}, err
}

// getTimer is GET of one timer.
func getTimer(q *request) (answer, error) {
	claim, err := q.flag("claim")
	if err != nil {
		return answer{}, err
	}
	info, err := q.ops.Inspect(q.Context(), schemas.GetRequest{TimerRef: q.ref(), Claim: claim})
	if err == nil && unchanged(q.Header, info.Revision) {
		return answer{status: http.StatusNotModified, revision: info.Revision}, nil
	}
	return q.timerAnswer(info), err
}

// cancelTimer is DELETE of one timer.
func cancelTimer(q *request) (answer, error) {
	t, err := q.ops.Cancel(q.Context(), schemas.CancelRequest{TimerRef: q.ref(), By: q.query.Get("by")}, q.caller())
	return q.recordAnswer(&t, err)
}

// moveTimer is PATCH of one timer, which sets another due time.
func moveTimer(q *request) (answer, error) {
	var move struct {
		In string `json:"in"`
		At string `json:"at"`
		By string `json:"by"`
	}
	if err := q.decode(&move); err != nil {
		return answer{}, err
	}
	if (move.In == "") == (move.At == "") {
		return answer{}, badRequest("give either in or at")
	}
	t, err := q.ops.Reschedule(q.Context(), schemas.RescheduleRequest{TimerRef: q.ref(), After: move.In, At: move.At, By: move.By}, q.caller())
	return q.recordAnswer(&t, err)
}

// maxSmallBody bounds the body of a request that has no event, in bytes.
const maxSmallBody = 64 << 10

// decode reads the JSON body of a request that has no event.
func (q *request) decode(v any) error {
	if err := jsonBody(q.Header); err != nil {
		return err
	}
	body, err := q.body(maxSmallBody)
	if err != nil {
		return err
	}
	return decode(body, v)
}

// timerAnswer is the answer with a timer.
func (q *request) timerAnswer(info schemas.TimerInfo) answer {
	q.conceal(&info)
	return answer{status: http.StatusOK, body: info, revision: info.Revision}
}

// recordAnswer is timerAnswer of a changed timer.
func (q *request) recordAnswer(t *store.Timer, err error) (answer, error) {
	if err != nil {
		return answer{}, err
	}
	return q.timerAnswer(schemas.FromRecord(t.ID, &t.Record, t.Rev)), nil
}
