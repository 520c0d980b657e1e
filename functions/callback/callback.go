// Package callback has the types that package functions and its invokers share: the request
// of one attempt, its outcome, and the rules for every kind of callback (Retry-After, the
// texts that the record keeps).
//
// An invoker makes one call and reports whether another attempt could end differently. It
// does not decide about attempts, delays or records.
package callback

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry/schemas"
)

// Invoker makes one callback attempt. Invoke returns soon after ctx is done,
// never panics because of an answer, and reads a bounded part of it.
type Invoker interface {
	Invoke(ctx context.Context, r Request) Outcome
}

// Request is one attempt.
type Request struct {
	// Service is the timer's service.
	Service string
	// Target is a nats: subject, or a URL, which may hold credentials.
	Target string
	// Event is the fired event with the timerattempt of this attempt. It is
	// shared: invokers do not change it.
	Event *event.Event
	// Trace holds traceparent, tracestate and baggage where the user sent them.
	Trace map[string]string
	// Key is the idempotency key, <timer id>.<run>: the same for every attempt.
	Key string
	// Timeout is the timer's time-out, for the text of the error. For a worker it bounds the
	// time between two signs of progress.
	Timeout time.Duration
	// NowMs is the cluster's time, Unix milliseconds.
	NowMs int64
}

// Outcome is the outcome of one attempt.
type Outcome struct {
	Success bool
	// Retryable is true if a later attempt may succeed. It is false for success.
	Retryable bool
	// NotNow is true if the callee answered that it wants to be called later, and named a
	// delay.
	NotNow bool
	// Unattempted is true if no worker took the event, so that no attempt was made. It is set
	// only for workers' subjects, together with NotNow. Such an attempt is not counted while
	// functions waits for workers.
	Unattempted bool
	// RetryAfter is the minimum delay that the callee requested, 0 if none.
	RetryAfter time.Duration
	// Reason is why the attempt failed; it becomes timererrorcode of a dead letter.
	Reason Reason
	// Code is the HTTP status or the code of the micro error; 0 if there is none.
	Code int32
	// Err describes the failure, without credentials.
	Err string
	// Cause is Err without the target, for those who share the target's host and must not see the
	// paths that others call there. Only a connection error over HTTP has it.
	Cause string
	// Response is the start of the answer, at most schemas.MaxOutcomeResponse bytes.
	Response []byte
	// AtMs is when the call began, in Unix milliseconds of the cluster's clock, and Took its
	// duration. Functions sets them; both are 0 if nothing was called.
	AtMs int64
	Took time.Duration
}

// Reason is the reason why an attempt failed. Users see these words in dead letters and
// metrics, so they do not change.
type Reason string

// The reasons.
const (
	ReasonStatus           Reason = "http_status"       // an HTTP status other than 2xx; see Code
	ReasonRedirect         Reason = "redirect"          // 3xx: redirects are not followed
	ReasonTimeout          Reason = "timeout"           // no answer within timertimeout
	ReasonConnection       Reason = "connection"        // no connection, or it broke
	ReasonTLS              Reason = "tls"               // the certificate is not trusted, or TLS failed
	ReasonAddressRefused   Reason = "address_refused"   // the guard refused the resolved address
	ReasonNotAllowed       Reason = "not_allowed"       // the configuration does not allow this subject or host
	ReasonBadTarget        Reason = "bad_target"        // the callback cannot be called at all
	ReasonWebhookRefused   Reason = "webhook_refused"   // the callee does not allow the calls; see httpcall.Invoker.Ask
	ReasonNoResponders     Reason = "no_responders"     // no subscriber serves the NATS subject
	ReasonServiceError     Reason = "service_error"     // an error header on the NATS reply
	ReasonStreamRefused    Reason = "stream_refused"    // a stream captures the NATS subject, and did not store the message
	ReasonRetryLater       Reason = "retry_later"       // the callee said "not now"
	ReasonHandler          Reason = "handler_error"     // a worker's handler returned an error, or panicked
	ReasonHandlerPermanent Reason = "handler_permanent" // a worker's handler returned an error that no retry changes
	ReasonWorkerBusy       Reason = "worker_busy"       // all workers of the service were busy
	ReasonTooLarge         Reason = "too_large"         // the request is over the server's payload limit
	ReasonUndecodable      Reason = "undecodable_event" // the fired message is not a valid event
	ReasonInternal         Reason = "internal"          // a defect in Belfry; the attempt counts
)

// Permanent returns the outcome of a failure that a later attempt would repeat.
func Permanent(reason Reason, text string) Outcome {
	return Outcome{Reason: reason, Err: Clip(text, schemas.MaxOutcomeError)}
}

// Retry returns the outcome of a failure after which a later attempt may succeed.
func Retry(reason Reason, text string) Outcome {
	return Outcome{Retryable: true, Reason: reason, Err: Clip(text, schemas.MaxOutcomeError)}
}

// MaxRetryAfter bounds Retry-After: a callee that requests a year is called again after a
// day.
const MaxRetryAfter = 24 * time.Hour

// RetryAfter parses a Retry-After value: whole seconds, or an HTTP date. A date is relative
// to date, the Date header of the answer, so that the callee's clock need not be right; or to
// nowMs (Unix milliseconds) if there is none. A date in the past gives 0. The result is at
// most MaxRetryAfter; ok is false if the value is neither.
func RetryAfter(value, date string, nowMs int64) (d time.Duration, ok bool) {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0, false
	}
	if strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseUint(value, 10, 63)
		if err != nil || seconds > uint64(MaxRetryAfter/time.Second) {
			return MaxRetryAfter, true // more digits than fit are still a number
		}
		return time.Duration(seconds) * time.Second, true
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	base := time.UnixMilli(nowMs)
	if t, err := http.ParseTime(date); err == nil {
		base = t
	}
	return min(max(at.Sub(base), 0), MaxRetryAfter), true
}

// Clip returns a text that can be stored and sent as an attribute: valid UTF-8 without
// control characters, cut between characters to at most n bytes.
func Clip(s string, n int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// Excerpt copies the first schemas.MaxOutcomeResponse bytes of an answer, so that the
// answer itself can be freed.
func Excerpt(b []byte) []byte {
	b = b[:min(len(b), schemas.MaxOutcomeResponse)]
	if len(b) == 0 {
		return nil
	}
	return append([]byte(nil), b...)
}
