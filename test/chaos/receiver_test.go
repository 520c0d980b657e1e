//go:build unix

package chaos

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/test/chaos/check"
)

// receiver receives callbacks over HTTP and NATS, and records them. It answers some
// slowly, so that faults interrupt them, and refuses some at first.
type receiver struct {
	t   *testing.T
	rec *check.Recorder
	url string

	mu  sync.Mutex
	rng *rand.Rand
	// refused counts the permanent refusals by the timer's ID.
	refused map[string]int
	// began has the time of the first call of each run with stuckMark, by idempotency key.
	began map[string]time.Time
}

// refuseMark is in the data of a timer that is refused at first.
const refuseMark = `"refuse":true`

// slowMark is in the data of schedules whose callee is sometimes slower than their period.
const slowMark = `"slow":true`

// stuckMark is in the data of schedules with timerexpect. The callbacks of every stuckEach-th
// run fail for stuckFor, which is longer than most values of timerexpect.
const (
	stuckMark = `"stuck":true`
	stuckEach = 4
	stuckFor  = 4 * time.Second
)

// stuck reports whether to fail a call of a schedule with timerexpect.
func (r *receiver) stuck(key string, data []byte) bool {
	_, run, _ := strings.Cut(key, ".")
	n, err := strconv.Atoi(run)
	if err != nil || n%stuckEach != 0 || !bytes.Contains(data, []byte(stuckMark)) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.began[key].IsZero() {
		r.began[key] = time.Now()
	}
	return time.Since(r.began[key]) < stuckFor
}

// gone reports whether to refuse a call permanently.
func (r *receiver) gone(c call) bool {
	if !bytes.Contains(c.body, []byte(refuseMark)) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused[c.id]++
	return r.refused[c.id] <= refusals
}

const (
	natsCallback = "chaos.callback"
	refusedOf100 = 4  // answered 503
	slowOf100    = 10 // answered after up to slowBound
	slowBound    = 150 * time.Millisecond
)

func newReceiver(t *testing.T, rec *check.Recorder, seed uint64) *receiver {
	t.Helper()
	r := &receiver{t: t, rec: rec, rng: rand.New(rand.NewPCG(seed, 2)), refused: map[string]int{}, began: map[string]time.Time{}}
	s := httptest.NewServer(http.HandlerFunc(r.http))
	t.Cleanup(s.Close)
	r.url = s.URL + "/callback"
	return r
}

// draw decides the answer to one call.
func (r *receiver) draw() (refuse bool, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rng.IntN(100) < slowOf100 {
		wait = time.Duration(r.rng.Int64N(int64(slowBound)))
	}
	return r.rng.IntN(100) < refusedOf100, wait
}

func (r *receiver) http(w http.ResponseWriter, req *http.Request) {
	at := time.Now()
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the caller was killed while it sent the request
	}
	c := call{header: req.Header.Get, body: body}
	if strings.HasPrefix(req.Header.Get("Content-Type"), event.ApplicationCloudEventsJSON) {
		// Structured mode: the service has a secret.
		var e event.Event
		if err := json.Unmarshal(body, &e); err != nil {
			r.t.Errorf("the callback is not a CloudEvent: %v in %.200s", err, body)
			return
		}
		c = call{header: req.Header.Get, source: e.Source(), id: e.ID(), body: e.Data()}
	}
	if c.source == "" {
		c.source, c.id = attribute(c.header, "source"), attribute(c.header, "id")
	}
	r.called("http", c, at)
	if r.gone(c) {
		w.WriteHeader(http.StatusGone)
		return
	}
	refuse, wait := r.draw()
	refuse = refuse || r.stuck(c.header("Idempotency-Key"), c.body)
	if bytes.Contains(c.body, []byte(slowMark)) {
		wait *= 15 // longer than the period of a schedule
	}
	time.Sleep(wait) // the callee is slow on purpose
	if refuse {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// serve answers NATS callbacks on a connection.
func (r *receiver) serve(nc *nats.Conn) {
	r.t.Helper()
	_, err := nc.Subscribe(natsCallback, func(m *nats.Msg) {
		// nats.go keeps the case of header names; ours are in lower case.
		r.called("nats", call{header: m.Header.Get, body: m.Data}, time.Now())
		refuse, _ := r.draw()
		refuse = refuse || r.stuck(m.Header.Get("Idempotency-Key"), m.Data)
		reply := &nats.Msg{}
		if refuse {
			reply.Header = nats.Header{"Nats-Service-Error": {"not now"}, "Nats-Service-Error-Code": {"503"}}
		}
		_ = m.RespondMsg(reply) // fails if the server was just killed
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// call is a received callback. source and id are empty in binary mode, which has them in
// headers.
type call struct {
	header     func(string) string
	source, id string
	body       []byte
}

func (r *receiver) called(via string, c call, at time.Time) {
	if c.source == "" {
		c.source, c.id = attribute(c.header, "source"), attribute(c.header, "id")
	}
	r.rec.Put(check.Event{
		Kind: check.Called, Via: via, Source: c.source, ID: c.id, TimeNs: at.UnixNano(),
		Key: c.header("Idempotency-Key"), Webhook: c.header("Webhook-Id"), Data: string(c.body),
	})
}

func attribute(header func(string) string, name string) string {
	v := header("ce-" + name)
	if s, err := url.PathUnescape(v); err == nil {
		return s
	}
	return v
}
