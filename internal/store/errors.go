package store

import (
	"errors"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// ErrRevision is the error of a compare-and-set that found another revision.
var ErrRevision = jet.ErrWrongRevision

// errNotFound is schemas.ErrNotFound, wrapping jet.ErrNotFound.
var errNotFound = &schemas.Error{Code: schemas.CodeNotFound, Err: jet.ErrNotFound}

// Permanent reports whether an error of a write or a publish is about the message itself:
// JetStream refuses this message now and in every retry; see jet.Permanent.
func Permanent(err error) bool {
	return schemas.CodeOf(err) == schemas.CodeTooLarge || jet.Permanent(err)
}

// codes maps kinds of jet's errors to codes. All other kinds are CodeUnavailable.
var codes = []struct {
	kind error
	code schemas.Code
}{
	{jet.ErrFull, schemas.CodeStoreFull},
	{jet.ErrTooLarge, schemas.CodeTooLarge},
	{jet.ErrBadHeader, schemas.CodeInvalidEvent},
	{jet.ErrDisabled, schemas.CodeConfig},
	{jet.ErrDenied, schemas.CodeConfig},
}

// MapError turns an error of jet into an error with a code of schemas. It returns
// ErrRevision unchanged.
func MapError(err error) error {
	var e *jet.Error
	switch {
	case errors.As(err, &e):
	case errors.Is(err, jet.ErrNotFound):
		return errNotFound
	default:
		return err
	}
	for _, c := range codes {
		if errors.Is(e.Kind, c.kind) {
			return &schemas.Error{Code: c.code, Msg: e.Msg, Err: e}
		}
	}
	return &schemas.Error{Code: schemas.CodeUnavailable, Msg: e.Msg, Err: e}
}
