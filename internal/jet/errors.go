package jet

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The kinds of errors. Every error of this package wraps one of them, except that of a
// cancelled context.
var (
	// ErrWrongRevision: a compare-and-set found another revision.
	ErrWrongRevision = errors.New("another writer changed the key")
	// ErrNotFound: the stream has no such message.
	ErrNotFound = errors.New("not found")
	// ErrNoStream and ErrNoConsumer: there is no stream or consumer of that name.
	ErrNoStream   = errors.New("no such stream")
	ErrNoConsumer = errors.New("no such consumer")
	// ErrExists: a stream of that name exists with other settings.
	ErrExists = errors.New("already exists")
	// ErrFull: the stream, the account or the server has no room left.
	ErrFull = errors.New("out of storage")
	// ErrTooLarge: the message is over a limit of the server, the stream or its storage.
	ErrTooLarge = errors.New("message too large")
	// ErrBadHeader: NATS clients do not send a header of that name.
	ErrBadHeader = errors.New("bad header")
	// ErrRefused: JetStream refuses a change of a stream or consumer, and will refuse it
	// the next time.
	ErrRefused = errors.New("refused")
	// ErrDenied: the user of the connection lacks a permission.
	ErrDenied = errors.New("permission denied")
	// ErrDisabled: the server, or the account, has no JetStream.
	ErrDisabled = errors.New("JetStream is not enabled")
	// ErrUnavailable: no answer, or none that decides. The call may have taken effect.
	ErrUnavailable = errors.New("unavailable")

	// ErrTooMany: a multi-get has more results than one answer holds; ask for less.
	ErrTooMany = errors.New("more results than one answer holds")
	// ErrBehind: the replica that answered has not reached the caller's sequence. It comes
	// with ErrUnavailable.
	ErrBehind = errors.New("the replica that answered is behind")
	// ErrMissing: the replica that answered lacks a message that must exist. It comes
	// with ErrUnavailable.
	ErrMissing = errors.New("the replica that answered lacks a message that must exist")

	// ErrNoResponders is a cause of ErrUnavailable: nobody serves JetStream to this account.
	ErrNoResponders = nats.ErrNoResponders
)

// MaxHeaderBytes is JetStream's limit of a message's header block.
const MaxHeaderBytes = 1<<16 - 1

// Error is an error of a call.
type Error struct {
	// Kind is one of the sentinels.
	Kind error
	// Msg says what was tried and what happened, including the text of the cause.
	Msg string
	// Err wraps the causes.
	Err error
}

// Error returns Msg.
func (e *Error) Error() string { return e.Msg }

// Unwrap returns the kind and the causes.
func (e *Error) Unwrap() []error { return []error{e.Kind, e.Err} }

func errorf(kind error, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Kind: kind, Msg: err.Error(), Err: err}
}

// Permanent reports whether an error of a write or a publish is about the message
// itself: JetStream refuses it, and will refuse it the next time. Errors that a change
// outside of the message can end are not permanent: a full stream or disk, a missing
// stream, a missing leader, a lost connection, a lost compare-and-set.
//
// The permanent errors of nats-server 2.15.2 are: 10097, more than 65,535 bytes of
// headers; 10054, over the stream's max_msg_size; 10077 with "message too large"; and
// nats.go's own ErrMaxPayload, over the server's max_payload, and ErrBadHeaderMsg, a
// header name that it does not send.
func Permanent(err error) bool {
	return errors.Is(err, ErrTooLarge) || errors.Is(err, ErrBadHeader)
}

// JetStream's error codes (server/errors.json).
const (
	codeNoPeers             = 10005 // no server of the cluster can take the stream
	codeConsumerNotFound    = 10014
	codeResources           = 10023
	codeMaxStreams          = 10027 // of the account
	codeMemoryExceeded      = 10028
	codeNoMessage           = 10037
	codeNotEnabledAccount   = 10039
	codeSeqNotFound         = 10043
	codeStorageExceeded     = 10047
	codeTooLarge            = 10054 // the stream's max_msg_size
	codeDeleteFailed        = 10057
	codeStreamNameInUse     = 10058
	codeStreamNotFound      = 10059
	codeRestoreFailed       = 10062
	codeSnapshotFailed      = 10064
	codeWrongLastSeq        = 10071
	codeNotEnabled          = 10076
	codeStoreFailed         = 10077 // maximum bytes, messages or messages per subject
	codeHeaderTooLarge      = 10097 // MaxHeaderBytes
	codeRestoreNameInUse    = 10130
	codeWrongLastSeqReplica = 10164 // codeWrongLastSeq while an earlier write is undecided: work-around 7
)

// errorMapper turns whatever nats.go and JetStream return into errors of this package,
// and those into errors of the caller (Options.MapError).
type errorMapper struct{ translate func(error) error }

// wrap maps the error of an operation. The error of a cancelled context, and an error
// that was mapped before, stay what they are.
func (m errorMapper) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	var done *Error
	if errors.Is(err, context.Canceled) || errors.As(err, &done) || errors.Is(err, ErrWrongRevision) || errors.Is(err, ErrNotFound) {
		return err
	}
	err = wrapError(op, err)
	if m.translate != nil {
		return m.translate(err)
	}
	return err
}

// Wrap maps an error of an operation to an error of this package; see Client.Error.
func Wrap(op string, err error) error { return errorMapper{}.wrap(op, err) }

func (m errorMapper) errorf(kind error, format string, args ...any) error {
	err := errorf(kind, format, args...)
	if m.translate != nil {
		return m.translate(err)
	}
	return err
}

// notFound is ErrNotFound as the caller's.
func (m errorMapper) notFound() error {
	if m.translate != nil {
		return m.translate(ErrNotFound)
	}
	return ErrNotFound
}

func isNotFound(err error) bool      { return errors.Is(err, ErrNotFound) }
func isWrongRevision(err error) bool { return errors.Is(err, ErrWrongRevision) }

func wrapError(op string, err error) error {
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api):
		return apiError(op, api)
	case errors.Is(err, nats.ErrMaxPayload):
		return errorf(ErrTooLarge, "%s: over the server's max_payload (%w)", op, err)
	case errors.Is(err, nats.ErrBadHeaderMsg):
		return errorf(ErrBadHeader, "%s: NATS clients do not send the name of one of its headers (%w)", op, err)
	case errors.Is(err, jetstream.ErrMsgNotFound), errors.Is(err, jetstream.ErrKeyNotFound):
		return ErrNotFound
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return errorf(ErrNoStream, "%s: %w", op, err)
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		return errorf(ErrNoConsumer, "%s: %w", op, err)
	case errors.Is(err, nats.ErrConnectionClosed):
		return errorf(ErrUnavailable, "%s: the connection to NATS is closed (%w)", op, err)
	}
	return errorf(ErrUnavailable, "%s: no answer from JetStream (%w); the call may have taken effect", op, err)
}

func apiError(op string, err *jetstream.APIError) error {
	switch err.ErrorCode {
	case codeWrongLastSeq, codeWrongLastSeqReplica:
		return ErrWrongRevision
	case codeNoMessage, codeSeqNotFound:
		return ErrNotFound
	case codeStreamNotFound:
		return errorf(ErrNoStream, "%s: there is no such stream (%w)", op, err)
	case codeConsumerNotFound:
		return errorf(ErrNoConsumer, "%s: there is no such consumer (%w)", op, err)
	case codeTooLarge:
		return errorf(ErrTooLarge, "%s: over the stream's limit of a message (%w)", op, err)
	case codeHeaderTooLarge:
		return errorf(ErrTooLarge, "%s: over JetStream's limit of %d bytes of headers (%w)", op, MaxHeaderBytes, err)
	case codeResources, codeStorageExceeded, codeMemoryExceeded:
		return errorf(ErrFull, "%s: JetStream is out of storage (%w): raise its limit, or the stream's, or shorten the retention", op, err)
	case codeDeleteFailed, codeStoreFailed:
		if err := errorByText(op, err); err != nil {
			return err
		}
	}
	if err.Code == 503 {
		return errorf(ErrUnavailable, "%s: JetStream is not available (%w); the call may have taken effect", op, err)
	}
	return errorf(ErrUnavailable, "%s: JetStream refused it: %w", op, err)
}
