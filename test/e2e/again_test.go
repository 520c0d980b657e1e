//go:build unix

package e2e

import (
	"net/http"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestAddedAgain adds timers a second time after their records have expired, but within
// the two minutes for which the streams recognise a message ID. The second timer is a new
// timer: it fires, is called back, and may fail.
func TestAddedAgain(t *testing.T) {
	t.Parallel()
	callee := newCallee(t, func(_ int, w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Ce-Id") == "refused" {
			w.WriteHeader(http.StatusGone)
		}
	})
	a := node(t, func(o *app.Options) { o.Retention = time.Second })
	c := connect(t, a.NATSURL())
	states := map[string]schemas.State{"plain": schemas.StateSuccess, "called": schemas.StateSuccess, "refused": schemas.StateFail}
	for range 2 {
		for id := range states {
			e := attrs{"id": id, "timersvc": "again", "timerafter": "50ms"}
			if id != "plain" {
				e["timercallback"] = callee.url
			}
			m := structured(e, `{}`)
			m.Subject = schemas.SubjectAPIPrefix + "add"
			var reply schemas.AddReply
			if err := c.callOnce(m, &reply); err != nil { // an add that is repeated may be a duplicate, or a third timer
				t.Fatal(err)
			}
			if reply.Duplicate {
				t.Fatalf("timer %s was answered as a duplicate after its record had expired", id)
			}
		}
		for id, want := range states {
			waittest.Until(t, id+" is concluded", func() bool {
				i, err := c.info(id)
				// If the record is gone, the timer had ended before.
				return schemas.CodeOf(err) == schemas.CodeNotFound || err == nil && i.State == want
			})
		}
		for id := range states {
			waittest.Until(t, "the record of "+id+" has expired", func() bool { return c.expired(id) })
		}
	}
	if n := len(c.firedEvents("again", 0)); n != 6 {
		t.Errorf("%d events fired, want two for each of the three timers", n)
	}
	for _, id := range []string{"called", "refused"} {
		if n := len(callee.of(id)); n != 2 {
			t.Errorf("%s was called back %d times, want 2", id, n)
		}
	}
	if n := c.left(schemas.StreamDead); n != 2 {
		t.Errorf("%d dead letters, want 2", n)
	}
}
