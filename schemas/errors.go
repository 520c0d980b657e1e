package schemas

import (
	"errors"
	"fmt"
)

// Code is the stable name of an error. It is what the API puts into micro's
// Nats-Service-Error-Code header and what timers.rejected carries in
// HeaderErrorCode; texts may change, codes do not.
type Code string

// The codes.
const (
	CodeInvalidEvent     Code = "invalid_event"     // not a CloudEvent, or one that breaks the spec
	CodeInvalidAttribute Code = "invalid_attribute" // a timer attribute is malformed or out of range
	CodeUnsupported      Code = "unsupported"       // an attribute that this version does not serve
	CodeTooLarge         Code = "too_large"         // the event is over the payload limit
	CodeConflict         Code = "conflict"          // the id is taken by a different timer
	CodeNotFound         Code = "not_found"         // no such timer, or its record has expired
	CodeAlreadyFired     Code = "already_fired"     // too late to cancel or reschedule
	CodeAlreadyDone      Code = "already_done"      // cancelled, or concluded, before
	CodeInvalidTimerID   Code = "invalid_timer_id"
	CodeBadRequest       Code = "bad_request"       // the API request itself is malformed
	CodeStoreFull        Code = "store_full"        // a stream is at its limit
	CodeUnavailable      Code = "unavailable"       // JetStream did not answer in time; the call may have taken effect
	CodeConfig           Code = "config"            // a setting is out of range or contradicts the store
	CodeUnknownFormat    Code = "unknown_format"    // the bytes were written by a newer version: upgrade this node
	CodeDamaged          Code = "damaged"           // the stored bytes are damaged: belfry repair
	CodeTooManyServices  Code = "too_many_services" // an add names a service beyond max-services
)

// Error is an error with a stable code.
type Error struct {
	Code Code
	Msg  string
	Err  error // the cause, or nil; its text is already in Msg
}

// Error implements error. Msg holds the text of the cause where that helps.
func (e *Error) Error() string {
	if e.Msg == "" {
		return string(e.Code)
	}
	return e.Msg
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes errors.Is(err, &Error{Code: c}) match any error of that code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Msg == ""
}

// Sentinels to compare with errors.Is.
var (
	ErrInvalidEvent     = &Error{Code: CodeInvalidEvent}
	ErrInvalidAttribute = &Error{Code: CodeInvalidAttribute}
	ErrUnsupported      = &Error{Code: CodeUnsupported}
	ErrConflict         = &Error{Code: CodeConflict}
	ErrNotFound         = &Error{Code: CodeNotFound}
	ErrAlreadyFired     = &Error{Code: CodeAlreadyFired}
	ErrAlreadyDone      = &Error{Code: CodeAlreadyDone}
	ErrStoreFull        = &Error{Code: CodeStoreFull}
	ErrTooLarge         = &Error{Code: CodeTooLarge}
	ErrTooManyServices  = &Error{Code: CodeTooManyServices}
	ErrBadRequest       = &Error{Code: CodeBadRequest}
	ErrConfig           = &Error{Code: CodeConfig}
	ErrUnavailable      = &Error{Code: CodeUnavailable}

	// ErrNewer and ErrDamaged are the two reasons why stored bytes cannot be
	// decoded. Never overwrite newer bytes; damaged ones can be repaired.
	ErrNewer   = &Error{Code: CodeUnknownFormat}
	ErrDamaged = &Error{Code: CodeDamaged}
)

// Errorf makes an Error. A %w operand becomes its cause.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Msg: err.Error(), Err: errors.Unwrap(err)}
}

// CodeOf returns the code of the first Error in err's chain, or "".
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}
