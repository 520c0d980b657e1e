package console_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/app"
)

// TestClock: the pages of a development node have the clock, which a form moves.
func TestClock(t *testing.T) {
	t.Parallel()
	a := startNode(t, func(o *app.Options) { o.Development, o.Frozen = true, true })
	b := newBrowser(t, a)
	before := clockOf(b.get(t, "/timers").want(t, 200, "Run until idle", "(frozen), 0 ahead").body)
	after := clockOf(b.post(t, "/clock/advance", url.Values{"by": {"30d"}}, "Referer", b.base+"/timers?state=fail").want(t, 200, "The clock has moved.").body)
	if before == "" || after <= before {
		t.Errorf("got the clock at %q after 30 days, %q before", after, before)
	}
	b.post(t, "/clock/run-until-idle", nil, "Referer", "https://elsewhere.example/timers").want(t, 200, "Run until idle")
	b.post(t, "/clock/advance", url.Values{"by": {"soon"}}).want(t, 400, "not a duration")
	other := newBrowser(t, startNode(t, nil))
	other.get(t, "/timers").want(t, 200).without(t, "Run until idle")
	other.post(t, "/clock/advance", url.Values{"by": {"1h"}}).want(t, 400, "belfry dev")
}

// clockOf returns the time of the clock in a page.
func clockOf(page string) string {
	_, rest, _ := strings.Cut(page, `Clock <time datetime="`)
	at, _, _ := strings.Cut(rest, `"`)
	return at
}
