package httpapi

import (
	"cmp"
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

// GET /v1/stream sends fired events as Server-Sent Events, see feed.go. Each stream waits only for its
// own client, so a slow client does not delay others.

// Bounds of streams.
const (
	// maxStreams is the default of Config.Streams, the bound of the open streams of a node. A tenant may
	// have a quarter of them.
	maxStreams = 4096
	// DefaultHeartbeat is the interval of the comments that show that a stream is alive.
	DefaultHeartbeat = 15 * time.Second
	// DefaultStreamWrite bounds the write of an event to the connection. It must exceed the time that a
	// client needs to read the kernel's full send buffer.
	DefaultStreamWrite = 10 * time.Second
	// pagePause is the pause before a stream asks again for a permit to read a page.
	pagePause = 250 * time.Millisecond
)

// fromNow is greater than every sequence: a stream after it begins with the next event.
const fromNow = math.MaxUint64

const headerLastEvent = "Last-Event-ID"

// streams are the open streams of an API.
type streams struct {
	most  int // of all tenants; one tenant may have a quarter
	feeds feeds

	mu      sync.Mutex
	open    int
	tenants map[string]int // open streams by tenant
	ended   bool
	closing chan struct{}
}

func newStreams(o *Config) *streams {
	return &streams{
		most: cmp.Or(o.Streams, maxStreams), tenants: map[string]int{}, closing: make(chan struct{}),
		feeds: feeds{follow: o.Fired, byKey: map[feedKey]*feed{}, tenants: map[string]int{}, holders: map[holder]int{}},
	}
}

// take counts a stream of a tenant; "" is the default tenant. The error is of
// schemas.CodeUnavailable.
func (s *streams) take(tenant string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.open >= s.most:
		return schemas.Errorf(schemas.CodeUnavailable, "%d streams are open, which is the limit of a node: close one, or use another node", s.most)
	case tenant != "" && s.tenants[tenant] >= s.most/4:
		return schemas.Errorf(schemas.CodeUnavailable, "%d streams of tenant %s are open, which is its limit on a node: close one, or use another node", s.most/4, tenant)
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
	q    *request
	feed *feed
	// at is the sequence up to which all events have been sent.
	at uint64
	// page has the next older events. While it is not empty, the stream has a permit of enterPage.
	page []*store.Letter
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
	open := q.api.streams
	if err := open.take(q.id.Tenant); err != nil {
		return answer{}, err
	}
	s := &stream{q: q}
	if s.feed, err = open.feeds.join(q.Context(), q.id, q.query.Get("service")); err != nil {
		open.release(q.id.Tenant)
		return answer{}, err
	}
	// The feed has begun already, so it gets every event after this one.
	newest, err := q.api.o.FiredNewest(q.Context())
	if err != nil {
		s.end()
		return answer{}, err
	}
	s.at = min(after, newest)
	return answer{stream: s.send}, nil
}

// lastEvent returns the sequence in the header Last-Event-ID; fromNow without the header.
func lastEvent(h http.Header) (uint64, error) {
	text := h.Get(headerLastEvent)
	if text == "" {
		return fromNow, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, badField(headerLastEvent, "%.80q is not the id of an event of this stream", text)
	}
	return n, nil
}

// send sends events until the client disconnects or reads too slowly, the token ends or its rights
// change, or the server shuts down. The first line has the sequence after which the stream begins, so
// a client that reconnects before its first event misses none.
func (s *stream) send(w http.ResponseWriter) {
	defer s.end()
	a := s.q.api
	rc := http.NewResponseController(w)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Accel-Buffering", "no") // nginx would otherwise buffer events
	text := fmt.Sprintf("id: %d\n\n", s.at)
	beat := time.NewTicker(a.o.Heartbeat)
	defer beat.Stop()
	for {
		// This replaces the server's time-out. It fails only for the writer of a test, which has no
		// deadlines.
		_ = rc.SetWriteDeadline(time.Now().Add(a.o.StreamWrite))
		if _, err := io.WriteString(w, text); err != nil {
			return
		}
		if err := rc.Flush(); err != nil {
			return
		}
		var ok bool
		if text, ok = s.next(beat.C); !ok {
			return
		}
	}
}

// next waits for the next event or heartbeat, and returns the text to send. ok is false at the end of
// the stream.
func (s *stream) next(beat <-chan time.Time) (text string, ok bool) {
	for {
		l, news, pause := s.read()
		if l != nil {
			// A continuous flow of events must not delay the check of the caller's rights.
			select {
			case <-beat:
				if !s.may() {
					return "", false
				}
			default:
			}
			s.at = l.Sequence
			return s.format(l), s.q.Context().Err() == nil
		}
		var again <-chan time.Time
		if pause {
			again = time.After(pagePause)
		}
		select {
		case <-news:
		case <-again:
		case <-beat:
			return ":\n\n", s.may()
		case <-s.feed.ended:
			return "", false
		case <-s.q.Context().Done():
			return "", false
		case <-s.q.api.streams.closing:
			return "", false
		}
	}
}

// read returns the next event. If there is none, it returns a channel that is closed when there may be
// one. If pause is true, the caller must call it again after pagePause.
func (s *stream) read() (l *store.Letter, news <-chan struct{}, pause bool) {
	feeds := &s.q.api.streams.feeds
	for {
		if len(s.page) > 0 {
			l, s.page = s.page[0], s.page[1:]
			if len(s.page) == 0 {
				s.leavePage()
			}
			return l, nil, false
		}
		l, news, floor, behind := s.feed.after(s.at)
		if !behind {
			return l, news, false
		}
		if !feeds.enterPage(holderOf(s.q.id)) {
			return nil, nil, true
		}
		whole, err := s.readPage()
		if len(s.page) == 0 {
			s.leavePage()
			if err != nil {
				s.q.api.o.Log.Debug().Err(err).Msg("older events of a stream cannot be read; trying again")
				return nil, nil, true
			}
			if whole {
				s.at = max(s.at, floor)
			}
		}
	}
}

// leavePage drops the page, and returns its permit.
func (s *stream) leavePage() {
	s.page = nil
	s.q.api.streams.feeds.leavePage(holderOf(s.q.id))
}

// readPage reads a page of the stored events after s.at. whole is true if there are no more.
func (s *stream) readPage() (whole bool, err error) {
	bytes := 0
	whole = true
	err = s.q.api.o.FiredAfter(s.q.Context(), s.q.id, s.feed.key.service, s.at, func(l *store.Letter) bool {
		s.page = append(s.page, l)
		bytes += len(l.Data)
		whole = len(s.page) < pageEvents && bytes < pageBytes
		return whole
	})
	return whole && err == nil, err
}

// may reports whether the caller has the same rights as at the start of the stream. The stream ends
// when the token is removed, expires or gets other rights. A client that reconnects then gets the
// events that its new rights allow.
func (s *stream) may() bool {
	id, err := s.q.api.o.Authorize(s.q.Request, token.ScopeRead)
	return err == nil && id == s.q.id
}

// end leaves the feed and returns the permits of the stream.
func (s *stream) end() {
	open := s.q.api.streams
	if len(s.page) > 0 {
		s.leavePage()
	}
	open.feeds.leave(s.feed)
	open.release(s.q.id.Tenant)
}

// firedEvent is the JSON data of a Server-Sent Event.
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

// format returns a message as a Server-Sent Event. If the message is not a valid fired event, the
// result has only its sequence.
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
	// Encoded JSON has no line breaks, so it is one data line.
	return strings.Join([]string{id, "event: fired\ndata: ", string(data), "\n\n"}, "")
}
