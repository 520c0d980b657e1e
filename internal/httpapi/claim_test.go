package httpapi_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestClaimOfAnEarlierTerm: the node that claimed a timer is known after its term has ended.
func TestClaimOfAnEarlierTerm(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	named := func(name string) func(*app.Options) {
		return func(o *app.Options) { o.Data, o.Node = data, name }
	}
	first := startNodeWith(t, named("first"))
	timer := first.add(t, `{"in":"1ms","svc":"one"}`).Timer
	waittest.Until(t, "the timer fires", func() bool {
		return strings.Contains(string(first.send(t, "GET", "/v1/timers/"+timer, "").body), `"state":"success"`)
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := first.app.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	second := startNodeWith(t, named("second"))
	later := second.add(t, `{"in":"1ms","svc":"one"}`).Timer
	for id, node := range map[string]string{timer: "first", later: "second"} {
		var got schemas.TimerInfo
		waittest.Until(t, "the claim of "+node, func() bool {
			got = into[schemas.TimerInfo](t, second.send(t, "GET", "/v1/timers/"+id+"?claim=true", "").want(t, 200))
			return got.Claim != nil && got.Claim.Node == node
		})
	}
}
