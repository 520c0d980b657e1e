package publish

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

const (
	// maxInFlight bounds the single publishes without an answer.
	maxInFlight = 4000
	// ackChecks is how many times in AckTimeout the deadlines are checked. A publish fails up
	// to one interval after its deadline.
	ackChecks = 20
	// A publish that no stream takes is repeated: a stream has no leader for a moment when
	// its leader changes.
	maxRepeats  = 2
	repeatDelay = 250 * time.Millisecond
)

// window publishes single adds and passes each answer to its Result. It costs less CPU than
// nats.go's PublishMsgAsync, which starts a timer and makes two channels for each message and
// decodes each answer with encoding/json.
//
// The window has one inbox, up to maxInFlight slots, and one timer for all deadlines, which runs
// only while there are publishes without an answer. The reply subject of a publish has the number
// of its slot and the generation of the slot, so that a late answer is not taken for that of
// another publish.
//
// If the connection breaks, all publishes without an answer fail: the server may have stored
// them, and its answers are lost.
type window struct {
	nc *nats.Conn

	mu       sync.Mutex
	prefix   string // of the reply subjects; "" before the first publish
	slots    []slot // grows up to maxInFlight
	free     []uint32
	inFlight int
	last     *Result // of the last publish
	// room is closed when a slot becomes free; nil if no publish waits for one.
	room chan struct{}
	// check is the number of the present interval of the deadlines. checking is set while the
	// timer runs.
	check    uint32
	checking bool
}

// slot is one publish without an answer.
type slot struct {
	generation uint32
	check      uint32  // window.check at the time of the publish
	result     *Result // nil: the slot is free
	data       []byte
	repeats    int
}

// pending returns the number of publishes without an answer, and the result of the last publish,
// or nil before the first.
func (w *window) pending() (inFlight int, last *Result) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.inFlight, w.last
}

// publish publishes an add whose outcome goes to r. It blocks for at most stallWait. After an
// error the caller must resolve r, which may be the last publish of pending.
func (w *window) publish(data []byte, r *Result) error {
	var stall *time.Timer
	w.mu.Lock()
	for w.inFlight == maxInFlight {
		if w.room == nil {
			w.room = make(chan struct{})
		}
		room := w.room
		w.mu.Unlock()
		if stall == nil {
			stall = time.NewTimer(stallWait)
			defer stall.Stop()
		}
		select {
		case <-room:
		case <-stall.C:
			return fmt.Errorf("%d adds have no answer, and none came for %s", maxInFlight, stallWait)
		}
		w.mu.Lock()
	}
	if w.prefix == "" {
		if err := w.open(); err != nil {
			w.mu.Unlock()
			return err
		}
	}
	token := w.take(data, r)
	reply := w.reply(token)
	w.mu.Unlock()
	if err := w.nc.PublishRequest(schemas.SubjectAdd, reply, data); err != nil {
		// The result may have an outcome already, if the connection has broken.
		if w.release(token) != nil {
			return err
		}
	}
	return nil
}

// open subscribes to the answers. w.mu is held.
func (w *window) open() error {
	prefix := w.nc.NewInbox() + "."
	sub, err := w.nc.Subscribe(prefix+"*", w.answer)
	if err != nil {
		return err
	}
	// The window bounds the answers, so no limit of the client may drop one.
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return err
	}
	w.prefix = prefix
	go w.watch(w.nc.StatusChanged(nats.RECONNECTING, nats.CLOSED))
	return nil
}

// watch fails the publishes without an answer when the connection breaks. It ends when the
// connection is closed for good.
func (w *window) watch(status <-chan nats.Status) {
	for s := range status {
		if s == nats.CLOSED {
			break
		}
		w.fail(nats.ErrDisconnected, func(*slot) bool { return true })
	}
	w.fail(nats.ErrConnectionClosed, func(*slot) bool { return true })
}

// take occupies a slot and returns its token. w.mu is held, and the window has room.
func (w *window) take(data []byte, r *Result) uint64 {
	var i uint32
	if n := len(w.free); n > 0 {
		i, w.free = w.free[n-1], w.free[:n-1]
	} else {
		i = uint32(len(w.slots))
		w.slots = append(w.slots, slot{})
	}
	s := &w.slots[i]
	s.generation++
	s.check, s.result, s.data, s.repeats = w.check, r, data, 0
	w.inFlight++
	w.last = r
	if !w.checking {
		w.checking = true
		time.AfterFunc(AckTimeout/ackChecks, w.expire)
	}
	return uint64(s.generation)<<32 | uint64(i)
}

func (w *window) reply(token uint64) string {
	var buf [96]byte
	return string(strconv.AppendUint(append(buf[:0], w.prefix...), token, 36))
}

// slot returns the occupied slot of a token, or nil. w.mu is held.
func (w *window) slot(token uint64) *slot {
	i, generation := uint32(token), uint32(token>>32)
	if int(i) >= len(w.slots) || w.slots[i].generation != generation || w.slots[i].result == nil {
		return nil
	}
	return &w.slots[i]
}

// release frees the slot of a token and returns its result, or nil if it was free.
func (w *window) release(token uint64) *Result {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.slot(token)
	if s == nil {
		return nil
	}
	r := s.result
	s.result, s.data = nil, nil
	w.free = append(w.free, uint32(token))
	w.inFlight--
	if w.room != nil {
		close(w.room)
		w.room = nil
	}
	return r
}

// answer receives the server's answer to a publish.
func (w *window) answer(m *nats.Msg) {
	token, err := strconv.ParseUint(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:], 36, 64)
	if err != nil {
		return
	}
	if len(m.Data) == 0 && m.Header.Get("Status") == "503" {
		if w.repeat(token) {
			return
		}
		err = jetstream.ErrNoStreamResponse
	} else {
		err = ackError(m.Data)
	}
	if r := w.release(token); r != nil {
		r.resolve(publishError(err))
	}
}

// repeat publishes again after a while, unless it has done so maxRepeats times.
func (w *window) repeat(token uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.slot(token)
	if s == nil || s.repeats == maxRepeats {
		return false
	}
	s.repeats++
	data, reply := s.data, w.reply(token)
	time.AfterFunc(repeatDelay, func() {
		if err := w.nc.PublishRequest(schemas.SubjectAdd, reply, data); err != nil {
			if r := w.release(token); r != nil {
				r.resolve(publishError(err))
			}
		}
	})
	return true
}

// expire fails publishes whose deadline has passed.
func (w *window) expire() {
	w.mu.Lock()
	w.check++
	now := w.check
	w.mu.Unlock()
	w.fail(jetstream.ErrAsyncPublishTimeout, func(s *slot) bool { return now-s.check > ackChecks })
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.checking = w.inFlight > 0; w.checking {
		time.AfterFunc(AckTimeout/ackChecks, w.expire)
	}
}

// fail fails the publishes without an answer that which selects.
func (w *window) fail(err error, which func(*slot) bool) {
	var tokens []uint64
	w.mu.Lock()
	for i := range w.slots {
		if s := &w.slots[i]; s.result != nil && which(s) {
			tokens = append(tokens, uint64(s.generation)<<32|uint64(i))
		}
	}
	w.mu.Unlock()
	for _, token := range tokens {
		if r := w.release(token); r != nil {
			r.resolve(publishError(err))
		}
	}
}

var (
	stored  = []byte(`{"stream":"` + schemas.StreamAdd + `",`)
	refused = []byte(`"error"`)
)

// ackError returns the error of JetStream's answer to a publish, or nil if the message is stored.
// It reads the common answer, {"stream":"S","seq":1}, without the JSON decoder.
func ackError(b []byte) error {
	if bytes.HasPrefix(b, stored) && b[len(b)-1] == '}' && !bytes.Contains(b, refused) {
		return nil
	}
	var ack struct {
		Error  *jetstream.APIError `json:"error"`
		Stream string              `json:"stream"`
	}
	switch err := json.Unmarshal(b, &ack); {
	case err != nil:
		return jetstream.ErrInvalidJSAck
	case ack.Error != nil:
		return ack.Error
	case ack.Stream == "":
		return jetstream.ErrInvalidJSAck
	}
	return nil
}
