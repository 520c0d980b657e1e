package app

import (
	"errors"
	"fmt"
)

// Errors of an App, to compare with errors.Is.
var (
	// ErrInUse means that another process uses a port or the data folder.
	ErrInUse = errors.New("in use by another process")
	// ErrUnreachable means that no NATS server answers at the URL, or that it refuses the
	// connection.
	ErrUnreachable = errors.New("server unreachable")
	// ErrHung means that the embedded server hangs and that the node cannot stop it. The
	// process must be replaced. That loses no acknowledged write.
	ErrHung = errors.New("embedded server hangs")
	// ErrStopped means that Start was called after Stop.
	ErrStopped = errors.New("app: stopped before")
)

// kindError is an error with its own text that also matches a sentinel and a cause in
// errors.Is.
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
