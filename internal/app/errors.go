package app

import (
	"errors"
	"fmt"
)

// Errors that a caller tells apart with errors.Is.
var (
	// ErrInUse: a port or the data folder belongs to another process.
	ErrInUse = errors.New("in use by another process")
	// ErrUnreachable: no NATS server answers at the URL, or it refuses us.
	ErrUnreachable = errors.New("server unreachable")
	// ErrHung: the embedded server hangs and cannot be stopped, so neither can the node.
	// The process must be replaced; nothing acknowledged is lost by that.
	ErrHung = errors.New("embedded server hangs")
	// ErrStopped: Start after Stop.
	ErrStopped = errors.New("app: stopped before")
)

// kindError is a line of its own with a sentinel and a cause to be found.
type kindError struct {
	kind  error
	cause error
	text  string
}

func (e *kindError) Error() string   { return e.text }
func (e *kindError) Unwrap() []error { return []error{e.kind, e.cause} }

func errorOf(kind, cause error, format string, args ...any) error {
	if cause == nil {
		cause = kind
	}
	return &kindError{kind: kind, cause: cause, text: fmt.Sprintf(format, args...)}
}
