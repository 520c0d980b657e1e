package jet

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// TestErrors checks the kinds of JetStream's errors.
func TestErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		api  jetstream.APIError
		want error
	}{
		{jetstream.APIError{Code: 400, ErrorCode: 10071}, ErrWrongRevision},
		{jetstream.APIError{Code: 400, ErrorCode: 10164}, ErrWrongRevision},
		{jetstream.APIError{Code: 404, ErrorCode: 10037}, ErrNotFound},
		{jetstream.APIError{Code: 400, ErrorCode: 10043}, ErrNotFound},
		{jetstream.APIError{Code: 503, ErrorCode: 10077, Description: "maximum bytes exceeded"}, ErrFull},
		{jetstream.APIError{Code: 503, ErrorCode: 10077, Description: "maximum messages exceeded"}, ErrFull},
		{jetstream.APIError{Code: 503, ErrorCode: 10023}, ErrFull},
		{jetstream.APIError{Code: 500, ErrorCode: 10047}, ErrFull},
		{jetstream.APIError{Code: 503, ErrorCode: 10008}, ErrUnavailable},
		{jetstream.APIError{Code: 400, ErrorCode: 10054}, ErrTooLarge},
	} {
		if err := apiError("op", &c.api); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v; want %v", c.api, err, c.want)
		}
	}
}
