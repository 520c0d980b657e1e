// Package natscall invokes callbacks by NATS request/reply: one request with the
// fired event in binary mode to the subject of timercallback ("nats:<subject>").
//
// # Outcomes
//
//	a reply without the headers below                     success
//	a PubAck: a stream captures the subject               success with stream and seq;
//	                                                      a refusal is judged by its code, see puback.go
//	Nats-Service-Error or Nats-Service-Error-Code header  retryable
//	Retry-After header (whole seconds)                    "not now": retryable
//	no responders, time-out, connection lost              retryable
//	a subject that must not be called, a request over
//	the server's payload limit                            permanent
//
// Subjects that schemas.CheckSubject refuses are never called.
//
// # Workers
//
// On timers.work.<service>, the subject of the Go client's Work, a worker may reply
// several times (worker.go): progress messages, each of which restarts the time-out
// r.Timeout, up to schemas.MaxWork in total, and one answer. No responders, and "busy" for
// longer than a minute, are "not now" without an attempt (Outcome.Unattempted). After "busy"
// and "stopping" the same Invoke tries again.
//
// Each request carries Idempotency-Key and Nats-Msg-Id, both <timer id>.<run>.
package natscall

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/schemas"
)

// Headers of the micro protocol and of Belfry's own.
const (
	headerError      = "Nats-Service-Error"
	headerErrorCode  = "Nats-Service-Error-Code"
	headerRetryAfter = "Retry-After"
	headerKey        = "Idempotency-Key"
)

// Scheme starts a NATS callback.
const Scheme = schemas.NATSScheme

// Invoker calls over NATS. It is safe for concurrent use.
type Invoker struct {
	nc      *nats.Conn
	workers workers
	busyMax time.Duration // the constant, except in tests
}

// New returns an invoker that uses a connection; the caller closes the connection.
func New(nc *nats.Conn) *Invoker {
	return &Invoker{nc: nc, workers: workers{nc: nc}, busyMax: busyMax}
}

// Close ends the subscription for workers' replies. Do not call Invoke after it.
func (i *Invoker) Close() { i.workers.close() }

// Invoke implements callback.Invoker: it makes one request.
func (i *Invoker) Invoke(ctx context.Context, r callback.Request) callback.Outcome {
	subject := strings.TrimPrefix(r.Target, Scheme)
	_, service := schemas.SplitService(r.Service)
	if err := schemas.CheckSubject(subject, service); err != nil {
		return callback.Permanent(callback.ReasonBadTarget, fmt.Sprintf("subject %.100q: %s", subject, err.Error()))
	}
	hdr, data, err := schemas.EncodeEvent(*r.Event, schemas.ModeBinary)
	if err != nil {
		return callback.Permanent(callback.ReasonUndecodable, "the event cannot be sent over NATS: "+err.Error())
	}
	for k, v := range r.Trace {
		hdr[k] = []string{v}
	}
	hdr[headerKey] = []string{r.Key}
	hdr[nats.MsgIdHdr] = []string{r.Key}
	// Errors name the subject as its tenant knows it.
	msg := &nats.Msg{Subject: schemas.CallSubject(r.Service, subject), Header: hdr, Data: data}
	if strings.HasPrefix(subject, schemas.WorkSubjectPrefix) {
		return i.work(ctx, r, msg)
	}
	reply, err := i.nc.RequestMsgWithContext(ctx, msg)
	if err != nil {
		return failure(ctx, r, subject, err)
	}
	return outcomeOf(reply, subject, r.NowMs)
}

// outcomeOf turns a reply into an outcome.
func outcomeOf(m *nats.Msg, subject string, nowMs int64) callback.Outcome {
	excerpt := callback.Excerpt(m.Data)
	text, code := m.Header.Get(headerError), m.Header.Get(headerErrorCode)
	isError := text != "" || code != ""
	wait, notNow := callback.RetryAfter(m.Header.Get(headerRetryAfter), "", nowMs)
	if !isError && !notNow {
		if out, ok := pubAckOutcome(m, subject); ok {
			return out
		}
		return callback.Outcome{Success: true, Response: excerpt}
	}
	var out callback.Outcome
	switch {
	case isError:
		out = callback.Retry(callback.ReasonServiceError, errorText(subject, code, text))
	default:
		out = callback.Retry(callback.ReasonRetryLater, fmt.Sprintf("NATS subject %s asked for a later attempt (header %s)", subject, headerRetryAfter))
	}
	if notNow {
		out.NotNow, out.RetryAfter, out.Reason = true, wait, callback.ReasonRetryLater
	}
	if n, err := strconv.ParseInt(code, 10, 32); err == nil {
		out.Code = int32(n)
	}
	out.Response = excerpt
	return out
}

// errorText describes an error in a reply by the values of its headers, one of which may be empty.
func errorText(subject, code, text string) string {
	s := "NATS subject " + subject + " answered with error"
	if code != "" {
		s += " code " + code
	}
	if text != "" {
		s += ": " + text
	}
	return s
}

// failure turns the error of a request without a reply into an outcome.
func failure(ctx context.Context, r callback.Request, subject string, err error) callback.Outcome {
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return callback.Retry(callback.ReasonNoResponders, "no program answers requests on NATS subject "+subject+": start the program that serves it, or correct timercallback")
	case errors.Is(err, nats.ErrMaxPayload):
		return callback.Permanent(callback.ReasonTooLarge, "the request is larger than max_payload of the NATS server: send a reference to large data instead")
	case errors.Is(err, nats.ErrBadSubject):
		return callback.Permanent(callback.ReasonBadTarget, fmt.Sprintf("%.100q is not a NATS subject", subject))
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return callback.Retry(callback.ReasonTimeout, fmt.Sprintf("%s did not answer within the time-out of %s (timertimeout)", subject, r.Timeout))
	}
	return callback.Retry(callback.ReasonConnection, "request to "+subject+" failed: "+err.Error())
}
