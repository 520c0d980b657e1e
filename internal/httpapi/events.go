package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/belfryio/belfry/schemas"
)

// POST /v1/events takes CloudEvents in the HTTP protocol binding. The bindings of HTTP and NATS have
// the same headers and the same encoding, so both use the parser schemas.ParseAdd. The parser of the
// CloudEvents SDK rewrites a source such as /a%7Eb, so the same event would be one timer by HTTP and
// another one by NATS.

const (
	contentBatch  = "application/cloudevents-batch"
	maxBatch      = 500     // events of a batch
	maxBatchBytes = 8 << 20 // of its body
	// batchParallel bounds the events of one batch that are added at a time. It must stay well below
	// router.MaxAdds and a tenant's share of it.
	batchParallel = 128
)

// addEvents is POST /v1/events: one event, or a batch.
func addEvents(q *request) (answer, error) {
	media := strings.ToLower(strings.TrimSpace(q.Header.Get("Content-Type")))
	media, _, _ = strings.Cut(media, ";")
	media = strings.TrimSpace(media)
	if strings.HasPrefix(media, contentBatch) {
		if media != contentBatch+"+json" {
			return answer{}, &Error{Status: http.StatusUnsupportedMediaType, Code: codeMediaType, Detail: "the format of a batch must be JSON: " + contentBatch + "+json"}
		}
		return addBatch(q)
	}
	body, err := q.body(q.api.o.MaxEvent())
	if err != nil {
		return answer{}, err
	}
	reply, err := q.ops.Add(q.Context(), eventHeader(q.Header), body)
	if err != nil {
		return answer{}, err
	}
	out := addedOf(&reply)
	return out.answer(), nil
}

// eventHeader returns the headers of an event under their names on NATS, and the trace context of the
// request. It leaves out all other headers: they do not belong to the event, and some are secret.
func eventHeader(h http.Header) map[string][]string {
	event := map[string][]string{}
	for name, values := range h {
		name = strings.ToLower(name)
		if name == "content-type" || strings.HasPrefix(name, "ce-") {
			event[name] = values
		}
	}
	return withTrace(event, h)
}

// verdict is the result for one event of a batch: an added with its status, or a problem.
type verdict struct {
	added   *added
	problem *problem
}

// MarshalJSON implements json.Marshaler.
func (v verdict) MarshalJSON() ([]byte, error) {
	if v.problem != nil {
		return json.Marshal(v.problem)
	}
	return json.Marshal(struct {
		Status int `json:"status"`
		*added
	}{v.added.status(), v.added})
}

// batchError is the error of a batch with events that were not stored.
type batchError struct{ *problem }

func (e *batchError) Error() string { return e.Detail }

// addBatch adds the events of a batch. The answer has status 200 if all are stored, otherwise the
// status of an error. If a repetition can store more events, clients repeat a request with this
// status; the events that were stored are then duplicates.
func addBatch(q *request) (answer, error) {
	body, err := q.body(maxBatchBytes)
	if err != nil {
		return answer{}, err
	}
	events, err := eventsOf(body)
	if err != nil {
		return answer{}, err
	}
	results := q.addAll(events)
	failed := 0
	whole := &problem{Status: http.StatusOK}
	for _, v := range results {
		p := v.problem
		if p == nil {
			continue
		}
		failed++
		// An error that may go away later has precedence over an error that stays.
		if whole.Status == http.StatusOK || p.retryAfter > whole.retryAfter {
			*whole = *p
		}
	}
	if failed == 0 {
		return answer{status: http.StatusOK, body: map[string][]verdict{"results": results}}, nil
	}
	if whole.retryAfter == 0 {
		whole.Status = http.StatusUnprocessableEntity
	}
	whole.Pointer, whole.Results = "", results
	whole.Detail = fmt.Sprintf("%d of %d events were not stored: %s", failed, len(results), whole.Detail)
	return answer{}, &batchError{whole}
}

// eventsOf splits a batch.
func eventsOf(body []byte) (events []json.RawMessage, err error) {
	dec := json.NewDecoder(bytes.NewReader(body))
	if t, err := dec.Token(); err != nil || t != json.Delim('[') {
		return nil, badRequest("the body is not a JSON array of events")
	}
	for dec.More() {
		if len(events) == maxBatch {
			return nil, schemas.Errorf(schemas.CodeTooLarge, "the batch has more than %d events, the limit", maxBatch)
		}
		var event json.RawMessage
		if err := dec.Decode(&event); err != nil {
			return nil, malformed(err)
		}
		events = append(events, event)
	}
	return events, endOf(dec)
}

// addAll adds events, and returns their verdicts in the same order.
func (q *request) addAll(events []json.RawMessage) []verdict {
	results := make([]verdict, len(events))
	permits := make(chan struct{}, batchParallel)
	var adding sync.WaitGroup
	header := withTrace(nil, q.Header)
	for i, event := range events {
		permits <- struct{}{}
		adding.Add(1)
		// The media type says that the event is in structured mode.
		q.ops.AddAsync(header, event, func(reply schemas.AddReply, err error) {
			defer adding.Done()
			if err != nil {
				results[i].problem = problemOf(err)
			} else {
				out := addedOf(&reply)
				results[i].added = &out
			}
			<-permits
		})
	}
	adding.Wait() // each add is answered within router.OperationTimeout
	return results
}
