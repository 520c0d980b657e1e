package schemas

import (
	"errors"
	"fmt"
	"time"
)

// Code is the stable name of an error. The API sends it in the Nats-Service-Error-Code
// header of NATS micro, and a rejected add has it in HeaderErrorCode. Error texts may
// change; codes do not.
type Code string

// The codes.
const (
	CodeInvalidEvent     Code = "invalid_event"     // the message is not a valid CloudEvent
	CodeInvalidAttribute Code = "invalid_attribute" // a timer attribute is malformed or out of range
	CodeTooLarge         Code = "too_large"         // the event exceeds a size limit
	CodeConflict         Code = "conflict"          // a different timer with that source and id exists
	CodeNotFound         Code = "not_found"         // no such timer, or its record has expired
	CodeAlreadyFired     Code = "already_fired"     // too late to cancel or reschedule
	CodeAlreadyDone      Code = "already_done"      // the timer is cancelled or finished already
	CodeInvalidTimerID   Code = "invalid_timer_id"  // a timer id has the wrong length or alphabet
	CodeBadRequest       Code = "bad_request"       // the API request itself is malformed
	CodeStoreFull        Code = "store_full"        // a stream is at its limit
	CodeUnavailable      Code = "unavailable"       // JetStream did not answer in time; the call may have taken effect
	CodeConfig           Code = "config"            // a setting is out of range or contradicts the store
	CodeUnknownFormat    Code = "unknown_format"    // a newer version wrote the bytes: upgrade this node
	CodeDamaged          Code = "damaged"           // the stored bytes are damaged: run belfry repair
	CodeTooManyServices  Code = "too_many_services" // an add names a service beyond max-services
	CodeLimited          Code = "limited"           // the service or tenant has used up its adds a second; nothing was stored
)

// Error is an error with a stable code. Compare it with errors.Is and one of the Err
// variables, or read its code with CodeOf.
type Error struct {
	Code Code
	Msg  string
	Err  error // the cause, or nil; Msg already includes its text
	// Attribute is the attribute of the event that the error is about, or "".
	Attribute string
	// RetryAfter is the time after which the call may succeed, of CodeLimited, and of CodeUnavailable for a
	// calendar whose deletion the next request continues; otherwise 0.
	RetryAfter time.Duration
}

// Error returns Msg, or the code if Msg is empty.
func (e *Error) Error() string {
	if e.Msg == "" {
		return string(e.Code)
	}
	return e.Msg
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is an *Error with the same code and no text, such as
// ErrNotFound.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Msg == ""
}

// Errors to compare with errors.Is. Each matches every Error with its code.
var (
	ErrInvalidEvent     = &Error{Code: CodeInvalidEvent}
	ErrInvalidAttribute = &Error{Code: CodeInvalidAttribute}
	ErrConflict         = &Error{Code: CodeConflict}
	ErrNotFound         = &Error{Code: CodeNotFound}
	ErrAlreadyFired     = &Error{Code: CodeAlreadyFired}
	ErrAlreadyDone      = &Error{Code: CodeAlreadyDone}
	ErrStoreFull        = &Error{Code: CodeStoreFull}
	ErrTooLarge         = &Error{Code: CodeTooLarge}
	ErrTooManyServices  = &Error{Code: CodeTooManyServices}
	ErrLimited          = &Error{Code: CodeLimited}
	ErrBadRequest       = &Error{Code: CodeBadRequest}
	ErrConfig           = &Error{Code: CodeConfig}
	ErrUnavailable      = &Error{Code: CodeUnavailable}

	// ErrNewer and ErrDamaged are the two reasons why stored bytes cannot be
	// decoded. Never overwrite newer bytes; damaged ones can be repaired.
	ErrNewer   = &Error{Code: CodeUnknownFormat}
	ErrDamaged = &Error{Code: CodeDamaged}
)

// ErrorReply is the body of an API answer that is an error.
type ErrorReply struct {
	Code  string `json:"code"`
	Error string `json:"error"`
	// RetryAfterMs is Error.RetryAfter in milliseconds, 0 for none.
	RetryAfterMs int64 `json:"retry_after_ms,omitempty"`
}

// MaxRetryAfterMs bounds ErrorReply.RetryAfterMs: 30 days.
const MaxRetryAfterMs = 30 * 24 * 3600 * 1000

// Errorf returns an Error with the formatted text. The operand of %w becomes its cause.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Msg: err.Error(), Err: errors.Unwrap(err)}
}

// About sets the attribute and returns the error.
func (e *Error) About(attribute string) *Error {
	e.Attribute = attribute
	return e
}

// RetryAfterOf returns Error.RetryAfter of the first Error in err's chain, or 0.
func RetryAfterOf(err error) time.Duration {
	var e *Error
	if errors.As(err, &e) {
		return e.RetryAfter
	}
	return 0
}

// AttributeOf returns the first Error.Attribute in err's chain, or "".
func AttributeOf(err error) string {
	for e := (*Error)(nil); errors.As(err, &e); err = e.Err {
		if e.Attribute != "" {
			return e.Attribute
		}
	}
	return ""
}

// CodeOf returns the code of the first Error in err's chain, or "".
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
