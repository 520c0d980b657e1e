package functions

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// shrunk is the real store of a server that no longer accepts records with an event.
type shrunk struct{ *store.Store }

func (s shrunk) Update(ctx context.Context, w store.Write) (uint64, error) {
	if w.Record.Body.Mode != schemas.ModeNone {
		return 0, schemas.Errorf(schemas.CodeTooLarge, "over the server's max_payload")
	}
	return s.Store.Update(ctx, w)
}

// TestRetryThatCannotBeStored: if the record of a retry is refused permanently, the
// attempt was the last one.
func TestRetryThatCannotBeStored(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(_ int, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	r.start(func(o *Options) { o.Store = shrunk{r.store} })
	rec := r.await(r.fire(timer{callback: c.URL}), schemas.StateFail)
	if rec.Attempt != 1 || c.count() != 1 || !strings.Contains(rec.Outcome.Error, "max_payload") {
		t.Errorf("%d attempts, %d calls, outcome %+v", rec.Attempt, c.count(), rec.Outcome)
	}
	r.settled("s")
	page, err := r.store.DeadList(t.Context(), store.DeadQuery{Service: "s"})
	if err != nil || len(page.Letters) != 1 || page.Letters[0].Get(schemas.HeaderErrorCode) != string(callback.ReasonTooLarge) {
		t.Errorf("%d dead letters (%v)", len(page.Letters), err)
	}
}
