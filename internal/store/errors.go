package store

import (
	"context"
	"errors"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// JetStream error codes that the store tells apart (server/errors.json).
const (
	codeWrongLastSeq      = 10071
	codeWrongLastSeqConst = 10164 // the same, on a stream with replicas
	codeResources         = 10023
	codeStoreFailed       = 10077 // maximum bytes, messages or messages per subject
	codeStorageExceeded   = 10047
	codeMemoryExceeded    = 10028
	codeNoMessage         = 10037
	codeTooLarge          = 10054 // the stream's max_msg_size
	codeHeaderTooLarge    = 10097 // schemas.MaxHeaderBytes
	codeSeqNotFound       = 10043
	codeDeleteFailed      = 10057
	codeConsumerNotFound  = 10014
	codeNoPeers           = 10005 // no server of the cluster can take it
)

// messageTooLarge is what nats-server says with codeStoreFailed of a message that its
// storage cannot hold, whatever room there is.
const messageTooLarge = "message too large"

// Permanent reports whether an error of a write or a publish is about the message
// itself: JetStream refuses it, and will refuse it the next time, too. What a change
// outside of the message can end is not permanent: a full stream or disk, a stream
// that is missing, a leader that is, a lost connection, a lost compare-and-set.
//
// These are (nats-server 2.15.2): error 10097, more than 65,535 bytes of headers;
// 10054, over the stream's max_msg_size; 10077 with "message too large"; and
// nats.go's own ErrMaxPayload, over the server's max_payload, and ErrBadHeaderMsg, a
// header name that it does not send.
func Permanent(err error) bool {
	return schemas.CodeOf(err) == schemas.CodeTooLarge || errors.Is(err, nats.ErrBadHeaderMsg)
}

// apiError maps a JetStream error to one of the errors of the package comment.
func apiError(op string, err *jetstream.APIError) error {
	switch err.ErrorCode {
	case codeWrongLastSeq, codeWrongLastSeqConst:
		return ErrRevision
	case codeNoMessage, codeSeqNotFound:
		return schemas.ErrNotFound
	case codeDeleteFailed:
		if strings.Contains(err.Description, "no message found") || strings.Contains(err.Description, "not found") {
			return schemas.ErrNotFound
		}
	case codeTooLarge:
		return schemas.Errorf(schemas.CodeTooLarge, "%s: over the stream's limit of a message (%w)", op, err)
	case codeHeaderTooLarge:
		return schemas.Errorf(schemas.CodeTooLarge, "%s: over JetStream's limit of %d bytes of headers (%w)", op, schemas.MaxHeaderBytes, err)
	case codeResources, codeStorageExceeded, codeMemoryExceeded:
		return schemas.Errorf(schemas.CodeStoreFull, "%s: JetStream is out of storage (%w): raise its limit, or the stream's, or shorten the retention", op, err)
	case codeStoreFailed:
		if strings.Contains(err.Description, messageTooLarge) {
			return schemas.Errorf(schemas.CodeTooLarge, "%s: over the limit of JetStream's file storage (%w)", op, err)
		}
		if strings.Contains(err.Description, "maximum") {
			return schemas.Errorf(schemas.CodeStoreFull, "%s: the stream is full (%w): raise its byte limit, or shorten the retention", op, err)
		}
	}
	if err.Code == 503 {
		return schemas.Errorf(schemas.CodeUnavailable, "%s: JetStream is not available (%w); the call may have taken effect", op, err)
	}
	return schemas.Errorf(schemas.CodeUnavailable, "%s: JetStream refused it: %w", op, err)
}

// mapError maps whatever a call to JetStream may return. A cancelled context
// stays what it is.
func mapError(op string, err error) error {
	var api *jetstream.APIError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &api):
		return apiError(op, api)
	case errors.Is(err, nats.ErrMaxPayload):
		return schemas.Errorf(schemas.CodeTooLarge, "%s: over the server's max_payload (%w)", op, err)
	case errors.Is(err, nats.ErrBadHeaderMsg):
		return schemas.Errorf(schemas.CodeInvalidEvent, "%s: NATS clients do not send the name of one of its headers (%w)", op, err)
	case errors.Is(err, jetstream.ErrMsgNotFound), errors.Is(err, jetstream.ErrKeyNotFound):
		return schemas.ErrNotFound
	case errors.Is(err, nats.ErrConnectionClosed):
		return schemas.Errorf(schemas.CodeUnavailable, "%s: the connection to NATS is closed (%w)", op, err)
	}
	return schemas.Errorf(schemas.CodeUnavailable, "%s: no answer from JetStream (%w); the call may have taken effect", op, err)
}
