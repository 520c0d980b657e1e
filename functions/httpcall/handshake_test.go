package httpcall

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"github.com/belfryio/belfry/functions/callback"
)

// TestAskSDK: a target that is written with the CloudEvents SDK allows its origins at its rate, and
// refuses others for good.
func TestAskSDK(t *testing.T) {
	t.Parallel()
	p, err := cehttp.New(cehttp.WithDefaultOptionsHandlerFunc([]string{"POST"}, 100, []string{"belfry.example.com"}, false))
	if err != nil {
		t.Fatal(err)
	}
	with := httptest.NewServer(p)
	t.Cleanup(with.Close)
	if p, err = cehttp.New(); err != nil {
		t.Fatal(err)
	}
	without := httptest.NewServer(p)
	t.Cleanup(without.Close)
	for _, tt := range []struct {
		url, origin string
		want        int
		ok          bool
	}{{with.URL, "belfry.example.com", 100, true}, {with.URL, "other.example.com", 0, false}, {without.URL, "belfry.example.com", 0, false}} {
		cfg := loopback
		cfg.Origin = tt.origin
		got, out := newInvoker(t, cfg).Ask(t.Context(), callback.Request{Target: tt.url, Timeout: time.Minute}, 120)
		if got != tt.want || out.Success != tt.ok || out.Retryable || !tt.ok && (out.Reason != callback.ReasonWebhookRefused || !strings.Contains(out.Err, "to allow the origin "+tt.origin+" at 120 calls a minute; it answered")) {
			t.Errorf("origin %s at %s: got %d and %+v", tt.origin, tt.url, got, out)
		}
	}
}

// TestPermission: a permission needs the origin or *, and a rate that is a positive number, * or absent.
func TestPermission(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		origin, rate string
		want         int
		ok           bool
	}{
		{"a.example", "", 0, true}, {" A.Example ", "*", 0, true}, {"*", " 5 ", 5, true}, {"*", "99999999999999999999", 1<<31 - 1, true},
		{"", "5", 0, false}, {"b.example", "5", 0, false}, {"*", "0", 0, false}, {"*", "-1", 0, false}, {"*", "1.5", 0, false}, {"*", "many", 0, false},
	} {
		h := http.Header{}
		h.Set("WebHook-Allowed-Origin", tt.origin)
		h.Set("WebHook-Allowed-Rate", tt.rate)
		if got, why := permission(h, "a.example"); got != tt.want || (why == "") != tt.ok {
			t.Errorf("origin %q, rate %q: got %d, %q", tt.origin, tt.rate, got, why)
		}
	}
}
