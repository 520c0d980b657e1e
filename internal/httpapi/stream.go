package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/token"
	"github.com/belfryio/belfry/schemas"
)

// GET /v1/stream sends fired events as Server-Sent Events. Each stream reads TIMERS_FIRED with a
// consumer of its own, which ends with the connection. A stream waits for its client, so a slow
// client gets events later and holds up nobody else.

// Bounds of streams.
const (
	// maxStreams bounds the open streams of a node, because each is a consumer of the server and
	// has up to store.FollowFired's messages in memory. maxTenantStreams bounds those of a tenant.
	maxStreams       = 256
	maxTenantStreams = maxStreams / 4
	// DefaultHeartbeat is the interval of the comments that show that a stream is alive.
	DefaultHeartbeat = 15 * time.Second
	// DefaultStreamWrite is the time in which the connection must take an event. It must exceed the
	// time that a client needs to read what the kernel holds for it.
	DefaultStreamWrite = 10 * time.Second
)

const headerLastEvent = "Last-Event-ID"

// streams are the open streams of an API.
type streams struct {
	mu      sync.Mutex
	open    int
	tenants map[string]int // those of tenants
	ended   bool
	closing chan struct{}
}

func newStreams() *streams {
	return &streams{tenants: map[string]int{}, closing: make(chan struct{})}
}

// take counts a stream of a tenant; "" is the default tenant. The error is of
// schemas.CodeUnavailable.
func (s *streams) take(tenant string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.open >= maxStreams:
		return schemas.Errorf(schemas.CodeUnavailable, "%d streams are open, which is the limit of a node: close one, or use another node", maxStreams)
	case tenant != "" && s.tenants[tenant] >= maxTenantStreams:
		return schemas.Errorf(schemas.CodeUnavailable, "%d streams of tenant %s are open, which is its limit on a node: close one, or use another node", maxTenantStreams, tenant)
	}
	s.open++
	if tenant != "" {
		s.tenants[tenant]++
	}
	return nil
}

func (s *streams) release(tenant string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open--
	if tenant != "" {
		if s.tenants[tenant]--; s.tenants[tenant] == 0 {
			delete(s.tenants, tenant)
		}
	}
}

// EndStreams ends all streams, for a server that shuts down. It may be called more than once.
func (a *API) EndStreams() {
	a.streams.mu.Lock()
	defer a.streams.mu.Unlock()
	if !a.streams.ended {
		a.streams.ended = true
		close(a.streams.closing)
	}
}

// stream is one stream of fired events.
type stream struct {
	q      *request
	cancel context.CancelFunc
	events chan *store.Letter
	begun  chan uint64
	ended  chan error // has the result of Config.Fired
}

// streamFired is GET /v1/stream.
func streamFired(q *request) (answer, error) {
	if q.Method != http.MethodGet { // HEAD has the same route
		q.w.Header().Set("Allow", http.MethodGet)
		return answer{}, &Error{Status: http.StatusMethodNotAllowed, Code: codeNoMethod, Detail: "this path takes GET"}
	}
	after, err := lastEvent(q.Header)
	if err != nil {
		return answer{}, err
	}
	if err := q.api.streams.take(q.id.Tenant); err != nil {
		return answer{}, err
	}
	ctx, cancel := context.WithCancel(q.Context())
	s := &stream{q: q, cancel: cancel, events: make(chan *store.Letter), begun: make(chan uint64, 1), ended: make(chan error, 1)}
	go func() {
		s.ended <- q.api.o.Fired(ctx, q.id, q.query.Get("service"), after, func(after uint64) { s.begun <- after }, func(l *store.Letter) {
			select {
			case s.events <- l:
			case <-ctx.Done():
			}
		})
	}()
	select {
	case after = <-s.begun:
		return answer{stream: func(w http.ResponseWriter) { s.send(w, after) }}, nil
	case err = <-s.ended:
		cancel()
		q.api.streams.release(q.id.Tenant)
		return answer{}, err
	}
}

// lastEvent returns the sequence in the header Last-Event-ID, and without one a sequence beyond all.
func lastEvent(h http.Header) (uint64, error) {
	text := h.Get(headerLastEvent)
	if text == "" {
		return math.MaxUint64, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, badField(headerLastEvent, "%.80q is not the id of an event of this stream", text)
	}
	return n, nil
}

// send sends events until the client leaves or takes too long, the token ends or its rights change, or
// the server shuts down. The first line has the sequence after which the stream begins, so that a client that comes
// again misses nothing, even if it has got no event.
func (s *stream) send(w http.ResponseWriter, after uint64) {
	defer s.end()
	a := s.q.api
	rc := http.NewResponseController(w)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Accel-Buffering", "no") // nginx would keep events back
	text := fmt.Sprintf("id: %d\n\n", after)
	beat := time.NewTicker(a.o.Heartbeat)
	defer beat.Stop()
	for {
		// In place of the server's time-out. A writer that has no deadlines, in a test, needs none.
		_ = rc.SetWriteDeadline(time.Now().Add(a.o.StreamWrite))
		if _, err := io.WriteString(w, text); err != nil {
			return
		}
		if err := rc.Flush(); err != nil {
			return
		}
		select {
		case l := <-s.events:
			text = s.format(l)
		case <-beat.C:
			// A token that was removed or has expired ends the stream, and so does one with other rights:
			// the client comes again and gets the events that it may see now.
			if id, err := a.o.Authorize(s.q.Request, token.ScopeRead); err != nil || id != s.q.id {
				return
			}
			text = ":\n\n"
		case <-s.q.Context().Done():
			return
		case <-a.streams.closing:
			return
		}
	}
}

// end ends the reading and waits for that.
func (s *stream) end() {
	s.cancel()
	if err := <-s.ended; err != nil {
		s.q.api.o.Log.Debug().Err(err).Msg("a stream of fired events has ended")
	}
	s.q.api.streams.release(s.q.id.Tenant)
}

// firedEvent is the data of an event.
type firedEvent struct {
	// Timer is the timer or schedule; Run is the number of its run.
	Timer   schemas.TimerID `json:"timer"`
	Run     uint32          `json:"run"`
	ID      string          `json:"id"`
	Source  string          `json:"source"`
	Type    string          `json:"type"`
	Service string          `json:"service"`
	Tenant  string          `json:"tenant,omitempty"`
	// The times are RFC 3339 with milliseconds. Stored is the time of the stream's leader.
	Scheduled  string `json:"scheduled"`
	Fired      string `json:"fired"`
	Stored     string `json:"stored"`
	LatenessMs int64  `json:"lateness_ms"`
	Missed     uint32 `json:"missed,omitempty"`
	Trigger    string `json:"trigger,omitempty"`
	// Event is the CloudEvent; only with scope payload.
	Event json.RawMessage `json:"event,omitempty"`
}

// format returns a message as a Server-Sent Event. Of a message that is not Belfry's it has the
// sequence alone.
func (s *stream) format(l *store.Letter) string {
	id := fmt.Sprintf("id: %d\n", l.Sequence)
	e, spec, fired, err := schemas.ParseFired(l.Header, l.Data)
	if err != nil {
		return id + "\n"
	}
	spec.Of(schemas.ServiceOfSubject(l.Subject))
	out := firedEvent{
		Run: fired.Run, ID: e.ID(), Source: e.Source(), Type: e.Type(), Scheduled: schemas.FormatTime(fired.ScheduledMs), Fired: schemas.FormatTime(fired.FiredMs),
		Stored: schemas.FormatTime(l.Stored.UnixMilli()), Missed: fired.Missed,
	}
	out.Tenant, out.Service = schemas.SplitService(spec.Service)
	out.Timer = schemas.NewTenantTimerID(out.Tenant, out.Source, out.ID)
	if fired.Trigger != schemas.TriggerSchedule {
		out.Trigger = fired.Trigger.String()
	}
	// The lateness of a timer that was added after its due time counts from the add.
	due := fired.ScheduledMs
	if claim, err := schemas.ParseClaim(l.Get(schemas.HeaderClaim)); err == nil {
		due = max(due, claim.AddedMs)
	}
	out.LatenessMs = l.Stored.UnixMilli() - due
	if s.q.id.Payload {
		if out.Event, err = json.Marshal(e); err != nil {
			return id + "\n"
		}
	}
	data, err := json.Marshal(out)
	if err != nil {
		return id + "\n"
	}
	// JSON has no line ends.
	return strings.Join([]string{id, "event: fired\ndata: ", string(data), "\n\n"}, "")
}
