//go:build unix

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/proc"
)

func TestMain(m *testing.M) {
	natstest.MaybeServe()
	if testsize.All() { // its long tests keep a processor busy
		waittest.Parallel(3)
	} else {
		waittest.Parallel(4)
	}
	os.Exit(proc.Run(m))
}

// bound is the time limit of a wait for one answer. It is shorter than waittest.Bound, so that a wait which repeats a request
// survives a request to a node that was killed.
const bound = 60 * time.Second

// lateBound bounds the lateness of timers that must not wait for others. It is long, because
// the machine may be busy.
const lateBound = 30 * time.Second

// node starts a node in this process, on an embedded server unless change sets a URL. It
// is stopped when the test ends.
func node(t *testing.T, change func(*app.Options)) *app.App {
	t.Helper()
	testsize.Brief(t, "a node for each test", "TestPlainPublish", "TestAddedAgain", "TestBadCalendars")
	o := app.Options{
		Data: t.TempDir(), NATSListen: "127.0.0.1:0", HTTP: app.NoHTTP, Profile: app.ProfileFast, Shards: 2,
		AllowLoopback: true, Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.ErrorLevel),
	}
	if change != nil {
		change(&o)
	}
	if o.NATSURL != "" {
		o.Data = ""
	}
	a, err := app.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, a) })
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a
}

func stop(t *testing.T, a *app.App) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	if err := a.Stop(ctx); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// client is a plain NATS client.
type client struct {
	t  *testing.T
	nc *nats.Conn
	js jetstream.JetStream
}

func connect(t *testing.T, url string) *client {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js := natstest.JetStream(t, nc)
	return &client{t: t, nc: nc, js: js}
}

// attrs are the attributes of a CloudEvent.
type attrs map[string]string

// structured returns an add in structured mode with JSON data.
func structured(a attrs, data string) *nats.Msg {
	doc := map[string]any{"specversion": "1.0", "type": "e2e", "source": "/e2e", "data": json.RawMessage(data)}
	for k, v := range a {
		doc[k] = v
	}
	b, err := json.Marshal(doc)
	if err != nil {
		panic(err) // a mistake in the test
	}
	return &nats.Msg{Subject: schemas.SubjectAdd, Header: nats.Header{"content-type": {"application/cloudevents+json"}}, Data: b}
}

// binary returns an add in binary mode.
func binary(a attrs, contentType, data string) *nats.Msg {
	h := nats.Header{"ce-specversion": {"1.0"}, "ce-type": {"e2e"}, "ce-source": {"/e2e"}, "content-type": {contentType}}
	for k, v := range a {
		h["ce-"+k] = []string{v}
	}
	return &nats.Msg{Subject: schemas.SubjectAdd, Header: h, Data: []byte(data)}
}

// at returns a due time d from now.
func at(d time.Duration) string { return schemas.FormatTime(time.Now().Add(d).UnixMilli()) }

// publish adds durably.
func (c *client) publish(m *nats.Msg) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), bound)
	defer cancel()
	if _, err := c.js.PublishMsg(ctx, m); err != nil {
		c.t.Fatal(err)
	}
}

// publishAll adds the messages 0 to count-1 durably and in order. It does not wait for one acknowledgement before the next
// add, so that a slow disk limits the rate little.
func (c *client) publishAll(count int, message func(n int) *nats.Msg) {
	c.t.Helper()
	acks := make([]jetstream.PubAckFuture, count)
	for n := range acks {
		var err error
		if acks[n], err = c.js.PublishMsgAsync(message(n), jetstream.WithStallWait(waittest.Bound)); err != nil {
			c.t.Fatal(err)
		}
	}
	waittest.Receive(c.t, "acknowledgements of all adds", c.js.PublishAsyncComplete())
	for n, ack := range acks {
		select {
		case <-ack.Ok():
		case err := <-ack.Err():
			c.t.Fatalf("add %d: %v", n, err)
		}
	}
}

// request returns a request to the API.
func request(verb string, req any) *nats.Msg {
	b, err := json.Marshal(req)
	if err != nil {
		panic(err) // a mistake in the test
	}
	return &nats.Msg{Subject: schemas.SubjectAPIPrefix + verb, Data: b}
}

// call sends a request to the API and decodes the answer into v. It repeats the request while the answer is unavailable. Do
// not use it in the condition of a wait, which repeats the request anyway: the wait in call may then fail the test later than
// the outer one should have, by up to Bound. Use callOnce there.
func (c *client) call(verb string, req, v any) error {
	c.t.Helper()
	return c.callMsg(request(verb, req), v)
}

func (c *client) callMsg(m *nats.Msg, v any) (err error) {
	c.t.Helper()
	waittest.Available(c.t, m.Subject, func() bool {
		err = c.callOnce(m, v)
		return schemas.CodeOf(err) == schemas.CodeUnavailable
	}, func() string { return fmt.Sprint(err) })
	return err
}

// callOnce returns the first answer, for a wait that repeats the request itself, and for a test to which a repeated request
// makes a difference.
func (c *client) callOnce(m *nats.Msg, v any) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), bound)
	defer cancel()
	return c.ask(ctx, m, v)
}

// tryMsg has a short time limit, like a client that repeats its requests.
func (c *client) tryMsg(m *nats.Msg, v any) error {
	ctx, cancel := context.WithTimeout(c.t.Context(), belfry.DefaultRequestTimeout)
	defer cancel()
	return c.ask(ctx, m, v)
}

func (c *client) ask(ctx context.Context, m *nats.Msg, v any) error {
	reply, err := c.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return err
	}
	if code := reply.Header.Get(micro.ErrorCodeHeader); code != "" {
		return &schemas.Error{Code: schemas.Code(code), Msg: reply.Header.Get(micro.ErrorHeader)}
	}
	return json.Unmarshal(reply.Data, v)
}

// find returns the first timer that matches a list request and a condition. It reads every page, and finds none if a page
// gets no answer in time.
func (c *client) find(q schemas.ListRequest, match func(schemas.TimerInfo) bool) (found schemas.TimerInfo, ok bool) {
	c.t.Helper()
	i, err := c.search(q, match)
	return i, err == nil && i.ID != ""
}

// none reports whether no timer matches a list request. It reads every page.
func (c *client) none(q schemas.ListRequest) bool {
	c.t.Helper()
	i, err := c.search(q, func(schemas.TimerInfo) bool { return true })
	return err == nil && i.ID == ""
}

// search returns the first timer that matches a list request and a condition, or none. The only error is that the answer is
// unknown, because a page got none in time.
func (c *client) search(q schemas.ListRequest, match func(schemas.TimerInfo) bool) (schemas.TimerInfo, error) {
	c.t.Helper()
	for {
		var page schemas.ListReply
		err := c.callOnce(request("list", q), &page)
		if schemas.CodeOf(err) == schemas.CodeUnavailable {
			return schemas.TimerInfo{}, err
		}
		if err != nil {
			c.t.Fatal(err)
		}
		if i := slices.IndexFunc(page.Timers, match); i >= 0 {
			return page.Timers[i], nil
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return schemas.TimerInfo{}, nil
		}
	}
}

// get returns the first answer to a get request.
func (c *client) get(ref schemas.TimerRef) (i schemas.TimerInfo, err error) {
	err = c.callOnce(request("get", ref), &i)
	return i, err
}

// info returns the first answer to a get request for a timer of source /e2e.
func (c *client) info(id string) (schemas.TimerInfo, error) {
	return c.get(schemas.TimerRef{ID: id, Source: "/e2e"})
}

// expired reports whether the record of a timer is gone, so that get answers from the history, or not at all.
func (c *client) expired(id string) bool {
	i, err := c.info(id)
	return schemas.CodeOf(err) == schemas.CodeNotFound || err == nil && i.From == schemas.FromHistory
}

// until waits for a timer to reach a state.
func (c *client) until(id string, want schemas.State) schemas.TimerInfo {
	c.t.Helper()
	var i schemas.TimerInfo
	var err error
	waittest.Until(c.t, id+" is "+want.String(), func() bool {
		i, err = c.info(id)
		return err == nil && i.State == want
	}, func() string { return fmt.Sprintf("%+v %v", i, err) })
	return i
}

// fired is an event in TIMERS_FIRED.
type fired struct {
	subject, id, source, msgID string
	data                       string
	seq                        uint64
	at                         time.Time
	scheduledMs                int64
	headers                    nats.Header
	raw                        []byte
	extensions                 map[string]any
}

// firedEvents reads a service's events from the start of the stream until there are n or,
// if n is 0, until the end.
func (c *client) firedEvents(svc string, n int) []fired {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), bound)
	defer cancel()
	cons, err := c.js.OrderedConsumer(ctx, schemas.StreamFired, jetstream.OrderedConsumerConfig{FilterSubjects: []string{schemas.SubjectFired(svc)}})
	if err != nil {
		c.t.Fatal(err)
	}
	it, err := cons.Messages()
	if err != nil {
		c.t.Fatal(err)
	}
	defer it.Stop()
	unhook := context.AfterFunc(ctx, it.Stop)
	defer unhook()
	if n == 0 {
		info, err := cons.Info(ctx)
		if err != nil {
			c.t.Fatal(err)
		}
		n = int(info.NumPending + info.Delivered.Consumer)
	}
	var out []fired
	for len(out) < n {
		m, err := it.Next()
		if errors.Is(err, jetstream.ErrMsgIteratorClosed) {
			c.t.Fatalf("%d events on %s after %s, want %d", len(out), schemas.SubjectFired(svc), bound, n)
		}
		if err != nil {
			c.t.Fatal(err)
		}
		meta, err := m.Metadata()
		if err != nil {
			c.t.Fatal(err)
		}
		e, _, f, err := schemas.ParseFired(m.Headers(), m.Data())
		if err != nil {
			c.t.Fatalf("%s: %v", m.Subject(), err)
		}
		out = append(out, fired{
			subject: m.Subject(), id: e.ID(), source: e.Source(), msgID: m.Headers().Get(jetstream.MsgIDHeader), data: string(e.Data()),
			seq: meta.Sequence.Stream, at: meta.Timestamp, scheduledMs: f.ScheduledMs, headers: m.Headers(), raw: m.Data(), extensions: e.Extensions(),
		})
	}
	return out
}

// lateness returns the sorted lateness of events. It fails the test for an early event.
func lateness(t *testing.T, events []fired) []time.Duration {
	t.Helper()
	var out []time.Duration
	for _, e := range events {
		late := e.at.Sub(time.UnixMilli(e.scheduledMs))
		if late < 0 {
			t.Errorf("%s fired %s early", e.id, -late)
		}
		out = append(out, late)
	}
	slices.Sort(out)
	return out
}

func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(int(p/100*float64(len(sorted))), len(sorted)-1)]
}

// callee is an HTTP server that records its calls.
type callee struct {
	url   string
	mu    sync.Mutex
	calls []received
}

type received struct {
	at      time.Time
	id, key string
	header  http.Header
	body    string
}

func newCallee(t *testing.T, h func(n int, w http.ResponseWriter, r *http.Request)) *callee {
	t.Helper()
	c := &callee{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := time.Now()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		id, err := url.PathUnescape(r.Header.Get("Ce-Id"))
		if err != nil {
			id = r.Header.Get("Ce-Id")
		}
		c.mu.Lock()
		c.calls = append(c.calls, received{at: now, id: id, key: r.Header.Get("Idempotency-Key"), header: r.Header, body: string(body)})
		n := 0
		for _, call := range c.calls {
			if call.id == id {
				n++
			}
		}
		c.mu.Unlock()
		if h != nil {
			h(n, w, r)
		}
	}))
	t.Cleanup(s.Close)
	c.url = s.URL
	return c
}

// of returns the calls for an event.
func (c *callee) of(id string) []received {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.calls), func(r received) bool { return r.id != id })
}

func (c *callee) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls)
}

func timerID(id string) schemas.TimerID { return schemas.NewTimerID("/e2e", id) }

func contains(t *testing.T, what, s, sub string) {
	t.Helper()
	if !strings.Contains(s, sub) {
		t.Errorf("%s is %.300q, without %q", what, s, sub)
	}
}
