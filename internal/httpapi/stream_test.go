package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// sse is an open stream.
type sse struct {
	lines *bufio.Scanner
	close func()
}

// stream opens a stream, and returns the id with which it begins.
func (c *client) stream(t *testing.T, path string, header ...string) (s *sse, after string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Bound)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, "GET", c.base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := c.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	s = &sse{bufio.NewScanner(resp.Body), func() { cancel(); _ = resp.Body.Close() }} // the body has no end
	t.Cleanup(s.close)
	s.lines.Buffer(nil, 8<<20)
	conform(t, r, nil, resp, nil)
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("stream: got status %d", resp.StatusCode)
	}
	after, _, _ = s.next(t)
	return s, after
}

// next returns the next event; ok is false at the end of the stream.
func (s *sse) next(t *testing.T) (id, data string, ok bool) {
	t.Helper()
	for s.lines.Scan() {
		switch line := s.lines.Text(); {
		case line == "" && id != "":
			return id, data, true
		case strings.HasPrefix(line, "id: "):
			id = line[4:]
		case strings.HasPrefix(line, "data: "):
			data = line[6:]
		}
	}
	return "", "", false
}

// testStream: the events of a service come in the order in which they fire, a client that comes
// again misses none, and the consumer ends with the connection.
func testStream(t *testing.T, n *node) {
	s, first := n.stream(t, "/v1/stream?service=stream")
	a := n.add(t, `{"in":"1ms","svc":"stream","id":"s1","source":"/stream","type":"order.timeout","data":{"n":1}}`)
	id, data, _ := s.next(t)
	for _, want := range []string{a.Timer, `"id":"s1"`, `"service":"stream"`, `"run":1`, `"data":{"n":1}`} {
		if !strings.Contains(data, want) {
			t.Errorf("got event %s, want %s in it", data, want)
		}
	}
	d, err := the()
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(data)))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.validate("/components/schemas/FiredEvent", value); err != nil {
		t.Error(err)
	}
	s.close()

	// More than one request of the consumer has room for.
	large := strings.Repeat("x", 300<<10)
	const more = 12
	for i := range more {
		n.send(t, "POST", fmt.Sprintf("/v1/timers?in=1ms&svc=stream&source=/stream&id=l%d", i), large, "Content-Type", "text/plain").want(t, 201)
	}
	again, after := n.stream(t, "/v1/stream?service=stream", "Last-Event-ID", first)
	if after != first {
		t.Errorf("the second stream begins after %s, want %s", after, first)
	}
	if got, _, _ := again.next(t); got != id {
		t.Errorf("the second stream: got event %s, want %s", got, id)
	}
	seen := map[string]bool{}
	for range more {
		id, data, _ := again.next(t)
		if seen[id] || !strings.Contains(data, large) {
			t.Errorf("got event %s (%d bytes), want another one with its data", id, len(data))
		}
		seen[id] = true
	}

	nc, err := n.app.Connect("test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js := natstest.JetStream(t, nc)
	fired, err := js.Stream(t.Context(), schemas.StreamFired)
	if err != nil {
		t.Fatal(err)
	}
	consumers := func() (count int) {
		list := fired.ListConsumers(t.Context())
		for c := range list.Info() {
			if c.Config.Durable == "" && c.Config.FilterSubject == schemas.SubjectFired("stream") {
				count++
			}
		}
		if list.Err() != nil {
			t.Fatal(list.Err())
		}
		return count
	}
	beside, _ := n.stream(t, "/v1/stream?service=stream")
	waittest.Until(t, "two streams of the service share a consumer, and the first one's is gone", func() bool { return consumers() == 1 })
	beside.close()
	again.close()
	waittest.Until(t, "no consumer is left", func() bool { return consumers() == 0 })

	n.send(t, "GET", "/v1/stream", "").want(t, 400, "name a service")
	n.send(t, "GET", "/v1/stream?service=a=b=c", "").want(t, 400)
	n.send(t, "GET", "/v1/stream?service=stream", "", "Last-Event-ID", "x").want(t, 400, `"pointer":"#/Last-Event-ID"`)
}

// fired is a Config.Fired.
type fired = func(ctx context.Context, id httpapi.Identity, service string, after uint64, begun func(uint64), fn func(*store.Letter)) error

// silent has no events.
func silent(ctx context.Context, _ httpapi.Identity, _ string, _ uint64, begun func(uint64), _ func(*store.Letter)) error {
	begun(7)
	<-ctx.Done()
	return nil
}

// serveStreams serves streams with short bounds.
func serveStreams(t *testing.T, f fired, change func(*httpapi.Config), server func(*http.Server)) (*client, *httpapi.API) {
	t.Helper()
	o := fakeConfig(fake{})
	o.Fired = f
	if change != nil {
		change(&o)
	}
	a, err := httpapi.New(o)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(a)
	if server != nil {
		server(s.Config)
	}
	s.Start()
	t.Cleanup(func() {
		a.EndStreams()
		s.Close()
	})
	return newClient(t, s.URL), a
}

// TestStreamLimits: the streams of a node and of a tenant are bounded, and a stream that ends makes
// room.
func TestStreamLimits(t *testing.T) {
	t.Parallel()
	const most = 40
	c, a := serveStreams(t, silent, func(o *httpapi.Config) {
		o.Streams = most
		o.Authorize = func(r *http.Request, _ string) (httpapi.Identity, error) {
			return httpapi.Identity{Name: "x", Tenant: r.Header.Get("Tenant")}, nil
		}
	}, nil)
	var streams []*sse
	open := func(n int, tenant string) {
		for range n {
			s, after := c.stream(t, "/v1/stream?service=x", "Tenant", tenant)
			if after != "7" {
				t.Fatalf("the stream begins after %q, want 7", after)
			}
			streams = append(streams, s)
		}
	}
	refused := func(tenant, why string) {
		t.Helper()
		if r := c.send(t, "GET", "/v1/stream?service=x", "", "Tenant", tenant).want(t, 503, why); r.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
	}
	open(most/4, "acme")
	refused("acme", "streams of tenant acme")
	open(most-most/4, "")
	refused("", "the limit of a node")
	streams[0].close()
	waittest.Until(t, "the stream that ended has made room", func() bool { return httpapi.OpenStreams(a) == most-1 })
	open(1, "acme")
	a.EndStreams()
	for _, s := range streams[1:] {
		if _, _, ok := s.next(t); ok {
			t.Fatal("a stream goes on after the end of the server")
		}
	}
}

// TestStreamServices: a node follows a bounded number of services, whatever the number of streams.
func TestStreamServices(t *testing.T) {
	t.Parallel()
	c, a := serveStreams(t, silent, nil, nil)
	var streams []*sse
	for n := range httpapi.MaxFeeds {
		s, _ := c.stream(t, fmt.Sprintf("/v1/stream?service=s%d", n))
		streams = append(streams, s)
	}
	c.send(t, "GET", "/v1/stream?service=more", "").want(t, 503, "streams of 256 services")
	more, _ := c.stream(t, "/v1/stream?service=s0")
	more.close()
	streams[1].close()
	waittest.Until(t, "the streams that ended have made room", func() bool { return httpapi.OpenStreams(a) == httpapi.MaxFeeds-1 })
	c.stream(t, "/v1/stream?service=more")
}

// firedLog stands for TIMERS_FIRED with the events of one service.
type firedLog struct {
	follows atomic.Int32 // how often it was followed

	mu     sync.Mutex
	events []*store.Letter // of the sequences 1, 2 …
	grown  chan struct{}   // closed with the next event
}

func newFiredLog() *firedLog { return &firedLog{grown: make(chan struct{})} }

// add appends an event with the given data.
func (l *firedLog) add(data string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, &store.Letter{Subject: schemas.SubjectFired("x"), Sequence: uint64(len(l.events) + 1), Header: map[string][]string{
		"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/s"}, "ce-type": {"t"}, "content-type": {"text/plain"}, "ce-timerat": {"2027-01-01T00:00:00Z"},
		"ce-timerscheduled": {"2027-01-01T00:00:00.000Z"}, "ce-timerfired": {"2027-01-01T00:00:00.000Z"}, "ce-timerrun": {"1"}, "ce-timerattempt": {"1"}, "ce-timersvc": {"x"},
	}, Data: []byte(data)})
	close(l.grown)
	l.grown = make(chan struct{})
}

// after returns the events after a sequence, and a channel that is closed with the next one.
func (l *firedLog) after(seq uint64) ([]*store.Letter, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.events[min(seq, uint64(len(l.events))):], l.grown
}

func (l *firedLog) follow(ctx context.Context, _ httpapi.Identity, _ string, after uint64, begun func(uint64), fn func(*store.Letter)) error {
	l.follows.Add(1)
	newest, _ := l.newest(ctx)
	after = min(after, newest)
	begun(after)
	for {
		events, grown := l.after(after)
		for _, e := range events {
			fn(e)
			after = e.Sequence
		}
		select {
		case <-ctx.Done():
			return nil
		case <-grown:
		}
	}
}

func (l *firedLog) page(_ context.Context, _ httpapi.Identity, _ string, after uint64, fn func(*store.Letter) bool) error {
	events, _ := l.after(after)
	for _, e := range events {
		if !fn(e) {
			break
		}
	}
	return nil
}

func (l *firedLog) newest(context.Context) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return uint64(len(l.events)), nil
}

// serve serves streams of the log.
func (l *firedLog) serve(t *testing.T, change func(*httpapi.Config)) (*client, *httpapi.API) {
	t.Helper()
	return serveStreams(t, l.follow, func(o *httpapi.Config) {
		o.FiredAfter, o.FiredNewest = l.page, l.newest
		if change != nil {
			change(o)
		}
	}, nil)
}

// TestSlowStream: a client that takes no events is disconnected, and disturbs no other stream of its
// service.
func TestSlowStream(t *testing.T) {
	t.Parallel()
	log := newFiredLog()
	c, a := log.serve(t, func(o *httpapi.Config) { o.StreamWrite = 500 * time.Millisecond })
	conn, err := net.Dial("tcp", strings.TrimPrefix(c.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the server has closed it
	if _, err := fmt.Fprint(conn, "GET /v1/stream?service=x HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	good, _ := c.stream(t, "/v1/stream?service=x")
	waittest.Until(t, "both streams are open", func() bool { return httpapi.OpenStreams(a) == 2 })
	large := strings.Repeat("x", 1<<20)
	for n := 1; httpapi.OpenStreams(a) == 2; n++ {
		log.add(large)
		if id, data, _ := good.next(t); id != strconv.Itoa(n) || !strings.Contains(data, large) {
			t.Fatalf("the other stream: got event %s of %d bytes, want %d with its data", id, len(data), n)
		}
	}
	if n := log.follows.Load(); n != 1 {
		t.Errorf("%d readers for the streams of one service, want 1", n)
	}
}

// TestStreamsShareAFeed: many streams of a service have one reader. Each gets every event once and in order, whether it
// begins now, was away for longer than the feed remembers, or begins while events fire.
func TestStreamsShareAFeed(t *testing.T) {
	t.Parallel()
	log := newFiredLog()
	c, a := log.serve(t, nil)
	const old, meanwhile, later = httpapi.FeedEvents + 107, httpapi.FeedEvents + 100, 50
	for range old {
		log.add("old")
	}
	added := make(chan struct{})
	var wait sync.WaitGroup
	check := func(s *sse, from, to int) {
		defer wait.Done()
		for n := from + 1; n <= to; n++ {
			if id, _, ok := s.next(t); !ok || id != strconv.Itoa(n) {
				t.Errorf("a stream after %d: got event %q, want %d", from, id, n)
				return
			}
		}
	}
	follow := func(from int, header ...string) {
		s, after := c.stream(t, "/v1/stream?service=x", header...)
		begin, err := strconv.Atoi(after)
		if err != nil || from >= 0 && begin != from {
			t.Fatalf("the stream begins after %q, want %d", after, from)
		}
		wait.Add(1)
		go check(s, begin, old+meanwhile+later)
	}
	for range 3 {
		follow(old)
		follow(0, "Last-Event-ID", "0")
		follow(old-30, "Last-Event-ID", strconv.Itoa(old-30))
		follow(old, "Last-Event-ID", "999999999") // of another stream
	}
	go func() {
		defer close(added)
		for range meanwhile {
			log.add("meanwhile")
		}
	}()
	for range 3 {
		follow(-1)
		follow(0, "Last-Event-ID", "0")
	}
	<-added
	for range later {
		log.add("later")
	}
	wait.Wait()
	if n := log.follows.Load(); n != 1 {
		t.Errorf("%d readers for the streams of one service, want 1", n)
	}
	if n := httpapi.OpenStreams(a); n != 18 {
		t.Errorf("%d streams are open, want 18", n)
	}
}

// TestStreamTimeouts: the time-outs of requests do not end a stream.
func TestStreamTimeouts(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "it waits for time-outs")
	const timeout = time.Second // a slow machine needs a part of it for the request and the answer's beginning
	checks := atomic.Int32{}
	c, _ := serveStreams(t, silent, func(o *httpapi.Config) {
		o.Heartbeat = 2 * timeout
		o.Authorize = func(*http.Request, string) (httpapi.Identity, error) {
			if checks.Add(1) > 3 {
				return httpapi.Identity{}, httpapi.Refused(http.StatusUnauthorized, "", "expired")
			}
			return httpapi.Identity{Name: "x"}, nil
		}
	}, func(s *http.Server) { s.ReadTimeout, s.WriteTimeout = timeout, timeout })
	s, _ := c.stream(t, "/v1/stream?service=x")
	// The stream ends with its token, and not before.
	if _, _, ok := s.next(t); ok || checks.Load() != 4 {
		t.Errorf("the stream has ended after %d checks of the token, want 4", checks.Load())
	}
}

// TestStreamRights: a stream ends when its token gets another tenant or other rights, because it began
// with those of before.
func TestStreamRights(t *testing.T) {
	t.Parallel()
	was := httpapi.Identity{Name: "x", Payload: true}
	for name, now := range map[string]httpapi.Identity{
		"no payload":     {Name: "x"},
		"all tenants":    {Name: "x", Payload: true, AllTenants: true},
		"another tenant": {Name: "x", Payload: true, Tenant: "acme"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checks := atomic.Int32{}
			c, _ := serveStreams(t, silent, func(o *httpapi.Config) {
				o.Heartbeat = 10 * time.Millisecond
				o.Authorize = func(*http.Request, string) (httpapi.Identity, error) {
					if checks.Add(1) > 3 {
						return now, nil
					}
					return was, nil
				}
			}, nil)
			s, _ := c.stream(t, "/v1/stream?service=x")
			// The stream ends with the first other answer, and not before.
			if _, _, ok := s.next(t); ok || checks.Load() != 4 {
				t.Errorf("the stream has ended after %d checks of the token, want 4", checks.Load())
			}
		})
	}
}
