package httpapi_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestSlowBodies: clients that send the beginning of a body and then nothing, as many as there are
// places, do not keep others out.
func TestSlowBodies(t *testing.T) {
	t.Parallel()
	admitted := make(chan struct{}, 2*httpapi.MaxRequests)
	c := serveFake(t, fake{add: func() error { return nil }}, func(o *httpapi.Config) {
		o.Authorize = func(*http.Request, string) (httpapi.Identity, error) {
			admitted <- struct{}{}
			return httpapi.Identity{}, nil
		}
	})
	for range httpapi.MaxRequests {
		conn, err := net.Dial("tcp", strings.TrimPrefix(c.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() }) // the server may have closed it
		if _, err := fmt.Fprint(conn, "POST /v1/timers HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{\"in\":"); err != nil {
			t.Fatal(err)
		}
	}
	for range httpapi.MaxRequests {
		waittest.Receive(t, "a slow client", admitted)
	}
	waittest.Until(t, "another client is served", func() bool {
		return c.send(t, "POST", "/v1/timers?in=1h", "").status == http.StatusCreated
	})
}

// stuckWriter is a client that does not take its answer until leave is closed.
type stuckWriter struct {
	http.ResponseWriter
	entered chan<- int // the size of the answer
	leave   <-chan struct{}
}

func (w stuckWriter) Write(b []byte) (int, error) {
	w.entered <- len(b)
	<-w.leave
	return len(b), nil
}

// stuckBody is the body of a client that sends some bytes, and then nothing until leave is closed.
type stuckBody struct {
	left    int
	entered chan<- int
	leave   <-chan struct{}
}

func (b *stuckBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		b.entered <- 0
		<-b.leave
		return 0, io.ErrUnexpectedEOF
	}
	n := min(b.left, len(p))
	b.left -= n
	return n, nil
}

// TestSlowReaders: clients that do not take their answers, as many as there are places, do not keep
// others out, and the memory for their answers is bounded.
func TestSlowReaders(t *testing.T) {
	t.Parallel()
	const largeBytes = 4 << 20
	a := newFakeAPI(t, fake{describe: func(context.Context) (schemas.TimerInfo, error) {
		return schemas.TimerInfo{ID: strings.Repeat("x", largeBytes)}, nil
	}})
	entered, leave := make(chan int, 2*httpapi.MaxRequests), make(chan struct{})
	var served sync.WaitGroup
	stick := func(method string) {
		served.Go(func() {
			a.ServeHTTP(stuckWriter{httptest.NewRecorder(), entered, leave}, httptest.NewRequest(method, "/v1/timers/x", nil))
		})
	}
	const fit = httpapi.MaxHeldBytes/largeBytes - 1 // an answer has more than largeBytes
	large := 0
	for range fit + 4 {
		stick("GET")
		if waittest.Receive(t, "an answer", entered) > largeBytes {
			large++
		}
	}
	if large != fit {
		t.Errorf("%d large answers are in memory, want %d", large, fit)
	}
	for range httpapi.MaxRequests {
		stick("DELETE")
	}
	for range httpapi.MaxRequests {
		waittest.Receive(t, "a small answer", entered)
	}
	w := httptest.NewRecorder()
	if a.ServeHTTP(w, httptest.NewRequest("DELETE", "/v1/timers/x", nil)); w.Code != http.StatusOK {
		t.Errorf("another client: got %d %s, want 200", w.Code, w.Body)
	}
	close(leave)
	served.Wait()
	w = httptest.NewRecorder()
	if a.ServeHTTP(w, httptest.NewRequest("GET", "/v1/timers/x", nil)); w.Code != http.StatusOK {
		t.Errorf("a large answer after the others: got %d, want 200", w.Code)
	}
}

// TestBodyMemory: the memory for bodies that are not complete is bounded.
func TestBodyMemory(t *testing.T) {
	t.Parallel()
	a := newFakeAPI(t, fake{})
	entered, leave := make(chan int, 64), make(chan struct{})
	post := func(body io.Reader) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "/v1/events", body)
		r.Header.Set("Content-Type", "application/cloudevents-batch+json")
		a.ServeHTTP(w, r)
		return w
	}
	var served sync.WaitGroup
	for range httpapi.MaxHeldBytes / httpapi.MaxBatchBytes {
		served.Go(func() { post(&stuckBody{httpapi.MaxBatchBytes, entered, leave}) })
	}
	for range httpapi.MaxHeldBytes / httpapi.MaxBatchBytes {
		waittest.Receive(t, "a slow client", entered)
	}
	if w := post(strings.NewReader("[]")); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "64 MiB") {
		t.Errorf("beyond the limit: got %d %s, want 503, Retry-After and the limit", w.Code, w.Body)
	}
	close(leave)
	served.Wait()
	if w := post(strings.NewReader("[]")); w.Code != http.StatusOK {
		t.Errorf("after the others: got %d %s, want 200", w.Code, w.Body)
	}
}

// TestBodyShare: a tenant, and a token of the default tenant, has a share of the memory for bodies, and
// others are served meanwhile. A single request may exceed the share.
func TestBodyShare(t *testing.T) {
	t.Parallel()
	for _, holder := range [][2]string{{"", "ci"}, {"acme", "ci"}} {
		o := fakeConfig(fake{add: func() error { return nil }})
		o.Authorize = func(r *http.Request, _ string) (httpapi.Identity, error) {
			return httpapi.Identity{Tenant: r.Header.Get("Tenant"), Name: r.Header.Get("Name")}, nil
		}
		o.MaxEvent = func() int { return 2 * httpapi.MaxHeldShare }
		a, err := httpapi.New(o)
		if err != nil {
			t.Fatal(err)
		}
		post := func(tenant, name string, body io.Reader) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			r := httptest.NewRequest("POST", "/v1/timers?in=1h", body)
			r.Header.Set("Tenant", tenant)
			r.Header.Set("Name", name)
			a.ServeHTTP(w, r)
			return w
		}
		if w := post(holder[0], holder[1], strings.NewReader(strings.Repeat("x", httpapi.MaxHeldShare+1))); w.Code != http.StatusCreated {
			t.Errorf("%q: one request of more than the share: got %d %s, want 201", holder, w.Code, w.Body)
		}
		const slow = 4
		entered, leave := make(chan int, slow), make(chan struct{})
		var served sync.WaitGroup
		for range slow {
			served.Go(func() { post(holder[0], holder[1], &stuckBody{httpapi.MaxHeldShare / slow, entered, leave}) })
		}
		for range slow {
			waittest.Receive(t, "a slow client", entered)
		}
		if w := post(holder[0], holder[1], strings.NewReader("x")); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), "16 MiB") {
			t.Errorf("%q: beyond the share: got %d %s, want 503, Retry-After and the limit", holder, w.Code, w.Body)
		}
		for _, other := range [][2]string{{"globex", "ci"}, {"", "other"}, {"", ""}} {
			if w := post(other[0], other[1], strings.NewReader("x")); w.Code != http.StatusCreated {
				t.Errorf("%q while %q has its share: got %d %s, want 201", other, holder, w.Code, w.Body)
			}
		}
		close(leave)
		served.Wait()
		if w := post(holder[0], holder[1], strings.NewReader("x")); w.Code != http.StatusCreated {
			t.Errorf("%q after the others: got %d %s, want 201", holder, w.Code, w.Body)
		}
	}
}
