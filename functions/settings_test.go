package functions

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/belfryio/belfry/functions/httpcall"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

const (
	oldSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	newSecret = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)

func mustURL(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// TestReconfigureUnderLoad: secrets change while callbacks run. Each callback is signed
// with secrets that were valid when it started, and none fails.
func TestReconfigureUnderLoad(t *testing.T) {
	t.Parallel()
	verify := func(secret string, body []byte, h http.Header) bool {
		w, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Error(err)
			return false
		}
		return w.Verify(body, h) == nil
	}
	var byOld, byNew, invalid atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		switch {
		case err != nil:
			t.Error(err)
		case verify(oldSecret, body, q.Header):
			byOld.Add(1)
		case verify(newSecret, body, q.Header):
			byNew.Add(1)
		default:
			invalid.Add(1)
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(s.Close)
	r := newRig(t)
	secrets := func(list ...string) Settings {
		return Settings{Services: map[string]ServiceConfig{"s": {Secrets: list}}}
	}
	f := r.start(func(o *Options) { o.Settings = secrets(oldSecret) })
	const n = 120
	var ids []schemas.TimerID
	var wg sync.WaitGroup
	for i := range n {
		ids = append(ids, r.fire(timer{callback: s.URL}))
		switch i {
		case n / 3:
			if err := f.Reconfigure(secrets(oldSecret, newSecret)); err != nil {
				t.Fatal(err)
			}
		case n / 2:
			if err := f.Reconfigure(secrets("whsec_bad")); schemas.CodeOf(err) != schemas.CodeConfig {
				t.Errorf("a bad secret: %v", err)
			}
		case 2 * n / 3:
			if err := f.Reconfigure(secrets(newSecret)); err != nil {
				t.Fatal(err)
			}
		}
	}
	wg.Wait()
	for _, id := range ids {
		if rec := r.await(id, schemas.StateSuccess); rec.Attempt != 1 {
			t.Errorf("%s needed %d attempts", id, rec.Attempt)
		}
	}
	if invalid.Load() != 0 || byOld.Load() == 0 || byNew.Load() == 0 {
		t.Errorf("%d signed with the old secret, %d with the new one, %d with neither", byOld.Load(), byNew.Load(), invalid.Load())
	}
}

// TestModes: callbacks of a service with a secret are structured events, others binary
// ones, unless the service is configured otherwise.
func TestModes(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) {})
	r.start(func(o *Options) {
		o.Services = map[string]ServiceConfig{
			"signed": {Secrets: []string{newSecret}}, "binary": {Secrets: []string{newSecret}, Mode: ModeBinary}, "structured": {Mode: ModeStructured},
		}
	})
	for _, svc := range []string{"signed", "binary", "structured", "plain"} {
		r.await(r.fire(timer{svc: svc, callback: c.URL + "/" + svc}), schemas.StateSuccess)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range c.calls {
		structured := strings.HasPrefix(q.Header.Get("Content-Type"), "application/cloudevents+json")
		if want := q.URL.Path == "/signed" || q.URL.Path == "/structured"; structured != want {
			t.Errorf("%s: structured %v", q.URL.Path, structured)
		}
	}
}

// TestNotAllowedIsRetried: a callback that the configuration no longer permits is a
// failed attempt. It succeeds once the configuration permits it again.
func TestNotAllowedIsRetried(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) {})
	callee := r.server.Connect()
	if _, err := callee.Subscribe("orders.*", func(m *nats.Msg) { _ = m.Respond(nil) }); err != nil {
		t.Fatal(err)
	}
	if err := callee.Flush(); err != nil {
		t.Fatal(err)
	}
	f := r.start(func(o *Options) { o.Hosts, o.Subjects = []string{"other.example"}, []string{"bills.>"} })
	many := map[string]string{"timermaxattempts": "1000"}
	ids := []schemas.TimerID{r.fire(timer{callback: c.URL, attributes: many}), r.fire(timer{callback: "nats:orders.x", attributes: many})}
	for _, id := range ids {
		rec := r.await(id, schemas.StateRetrying)
		if !strings.Contains(rec.Outcome.Error, "does not allow") {
			t.Errorf("outcome %+v", rec.Outcome)
		}
	}
	if c.count() != 0 {
		t.Errorf("%d calls to a host that is not allowed", c.count())
	}
	if err := f.Reconfigure(Settings{Hosts: []string{"127.0.0.1"}, Subjects: []string{"orders.*"}}); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		r.await(id, schemas.StateSuccess)
	}
}

// TestBaseURL: a path is resolved against the base URL of the service at each attempt.
func TestBaseURL(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) {})
	f := r.start(nil)
	id := r.fire(timer{callback: "/hooks/orders?x=1", attributes: map[string]string{"timermaxattempts": "1000"}})
	if rec := r.await(id, schemas.StateRetrying); !strings.Contains(rec.Outcome.Error, "no base-url") {
		t.Errorf("outcome %+v", rec.Outcome)
	}
	if err := f.Reconfigure(Settings{Services: map[string]ServiceConfig{"s": {BaseURL: mustURL(t, c.URL+"/v1/"), Headers: map[string]string{"X-Api-Key": "hunter2"}}}}); err != nil {
		t.Fatal(err)
	}
	r.await(id, schemas.StateSuccess)
	c.mu.Lock()
	q := c.calls[0]
	c.mu.Unlock()
	if q.RequestURI != "/v1/hooks/orders?x=1" || q.Header.Get("X-Api-Key") != "hunter2" {
		t.Errorf("%s %v", q.RequestURI, q.Header)
	}
	// The service has a credential, which is sent only to the host of its base URL.
	other := httpCallee(t, func(int, http.ResponseWriter, *http.Request) {})
	if rec := r.await(r.fire(timer{callback: other.URL, attributes: map[string]string{"timermaxattempts": "1"}}), schemas.StateFail); !strings.Contains(rec.Outcome.Error, "the setting hosts of service s") || other.count() != 0 {
		t.Errorf("%+v, %d calls", rec.Outcome, other.count())
	}
}

// TestReconfigureConcurrency: a new limit applies to callbacks that start after the
// change.
func TestReconfigureConcurrency(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	release := make(chan struct{})
	var running, most atomic.Int64
	c := httpCallee(t, func(int, http.ResponseWriter, *http.Request) {
		n := running.Add(1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		<-release
		running.Add(-1)
	})
	set := func(n int) Settings { return Settings{Services: map[string]ServiceConfig{"s": {Concurrency: n}}} }
	f := r.start(func(o *Options) { o.Settings = set(1) })
	var ids []schemas.TimerID
	for range 6 {
		ids = append(ids, r.fire(timer{callback: c.URL}))
	}
	waittest.Until(t, "one callback", func() bool { return running.Load() == 1 })
	if err := f.Reconfigure(set(4)); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "four callbacks", func() bool { return running.Load() == 4 })
	close(release)
	for _, id := range ids {
		r.await(id, schemas.StateSuccess)
	}
	if most.Load() != 4 {
		t.Errorf("%d callbacks ran at once", most.Load())
	}
}

func TestSettingsAreChecked(t *testing.T) {
	t.Parallel()
	header := map[string]string{"X-Api-Key": "hunter2"}
	for name, s := range map[string]Settings{
		"service":           {Services: map[string]ServiceConfig{"a.b": {}}},
		"secret":            {Services: map[string]ServiceConfig{"s": {Secrets: []string{"whsec_hunter2"}}}},
		"mode":              {Services: map[string]ServiceConfig{"s": {Mode: "both"}}},
		"status":            {Services: map[string]ServiceConfig{"s": {PermanentStatuses: []int{200}}}},
		"subjects":          {Subjects: []string{"timers.>"}},
		"hosts":             {Hosts: []string{"a/b"}},
		"service subjects":  {Services: map[string]ServiceConfig{"s": {Subjects: []string{"a..b"}}}},
		"service hosts":     {Services: map[string]ServiceConfig{"s": {Hosts: []string{""}}}},
		"headers for all":   {Services: map[string]ServiceConfig{"s": {Headers: header}}},
		"cert":              {Services: map[string]ServiceConfig{"s": {PEM: httpcall.PEM{Cert: []byte("x")}, Hosts: []string{"x"}}}},
		"base URL's scheme": {Services: map[string]ServiceConfig{"s": {BaseURL: mustURL(t, "ftp://x")}}},
		"base URL's host":   {Services: map[string]ServiceConfig{"s": {BaseURL: mustURL(t, "https:///p")}}},
		"base URL's user":   {Services: map[string]ServiceConfig{"s": {BaseURL: mustURL(t, "https://u:hunter2@x/")}}},
		"base URL's query":  {Services: map[string]ServiceConfig{"s": {BaseURL: mustURL(t, "https://x/?k=hunter2")}}},
	} {
		if err := s.Check(); schemas.CodeOf(err) != schemas.CodeConfig || strings.Contains(fmt.Sprint(err), "hunter2") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, s := range map[string]Settings{
		"nothing":               {},
		"headers with hosts":    {Services: map[string]ServiceConfig{"s": {Headers: header, Hosts: []string{"x.example"}}}},
		"headers with a base":   {Services: map[string]ServiceConfig{"s": {Headers: header, BaseURL: mustURL(t, "https://x/p")}}},
		"nothing may be called": {Subjects: []string{}, Hosts: []string{}},
	} {
		if err := s.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
