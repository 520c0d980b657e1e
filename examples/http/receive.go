package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// maxBody bounds the body of a callback: an event of 1 MiB as JSON with its data in base64.
const maxBody = 2 << 20

// notNow asks Belfry to call again after a time. It uses up no attempt.
type notNow struct{ after time.Duration }

func (e notNow) Error() string { return "not now" }

// errNever says that no attempt can succeed.
var errNever = errors.New("this callback can never succeed")

// receive verifies a callback, calls handle, and answers by its result. The key is the same
// for each attempt of a run.
func receive(hook *standardwebhooks.Webhook, handle func(ctx context.Context, key string, e event.Event) (string, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := hook.Verify(body, r.Header); err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		var e event.Event
		if err := json.Unmarshal(body, &e); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		result, err := handle(r.Context(), r.Header.Get("webhook-id"), e)
		var later notNow
		switch {
		case err == nil:
			_, _ = io.WriteString(w, result) // if it gets lost, Belfry calls again
		case errors.As(err, &later):
			w.Header().Set("Retry-After", strconv.Itoa(int(later.after.Seconds())))
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		case errors.Is(err, errNever):
			http.Error(w, err.Error(), http.StatusGone)
		default:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
}
