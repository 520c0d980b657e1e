package jet

import (
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Work-around 5 (docs/internals/nats-server.md). nats-server has one error code for a stream
// that is full and for a message that its file storage can never hold, and one for a delete
// that fails and for a delete that finds no message. Only the texts tell them apart.

// messageTooLarge is the server's text for a message that its storage cannot hold, whatever
// room there is.
const messageTooLarge = "message too large"

// errorByText returns the error of codeDeleteFailed or codeStoreFailed by the server's text,
// or nil if the text decides nothing.
func errorByText(op string, err *jetstream.APIError) error {
	has := func(text string) bool { return strings.Contains(err.Description, text) }
	switch {
	case err.ErrorCode == codeDeleteFailed && has("not found"), err.ErrorCode == codeDeleteFailed && has("no message found"):
		return ErrNotFound
	case err.ErrorCode == codeStoreFailed && has(messageTooLarge):
		return errorf(ErrTooLarge, "%s: over the limit of JetStream's file storage (%w)", op, err)
	case err.ErrorCode == codeStoreFailed && has("maximum"):
		return errorf(ErrFull, "%s: the stream is full (%w): raise its byte limit, or shorten the retention", op, err)
	}
	return nil
}
