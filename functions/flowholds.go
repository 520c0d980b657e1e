package functions

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file obeys the holds of flow keys (flow.Hold), and sets them: a target that answers 429 or
// 503 with Retry-After pauses its key, and consecutive connection errors open the circuit of the key.

const (
	// holdGap is the time between two calls of a key without a rate after a hold, on one node: 50 a
	// second, so that the target does not get all waiting events at once.
	holdGap = 20 * time.Millisecond
	// holdPatience bounds the write of a hold after a call. The result of the call waits for it.
	holdPatience = 2 * time.Second
	// maxHoldKeys bounds the keys of each kind that flowHolds remembers.
	maxHoldKeys = 10_000
	// probeSeats is the number of events of a key on one node that become due at the time of the next
	// probe. It is more than one, because an event may be cancelled meanwhile.
	probeSeats = 3
)

// flowHolds is the state of a process about the holds of flow keys, in addition to its copy of the limits.
// Safe for concurrent use.
type flowHolds struct {
	mu sync.Mutex
	// queues count the events that wait for the end of a hold, by flow key; at most maxHoldKeys.
	queues map[string]*holdQueue
	// changing has the keys whose hold this process is changing.
	changing map[string]bool
	// streaks has the keys whose last call was a connection error; at most maxHoldKeys. failing is
	// their number, so that a process without any takes no lock.
	streaks map[string]flow.Streak
	failing atomic.Int64
}

// holdQueue counts the events of a key that wait for a time.
type holdQueue struct {
	atNs    int64
	waiting int
}

func newFlowHolds() *flowHolds {
	return &flowHolds{queues: map[string]*holdQueue{}, changing: map[string]bool{}, streaks: map[string]flow.Streak{}}
}

// place returns the number of events of a key that this process has already made wait until the same
// time.
func (h *flowHolds) place(key string, atNs int64) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	q := h.queues[key]
	if q == nil {
		if len(h.queues) >= maxHoldKeys {
			clear(h.queues)
		}
		q = &holdQueue{}
		h.queues[key] = q
	}
	if q.atNs != atNs {
		q.atNs, q.waiting = atNs, 0
	}
	q.waiting++
	return q.waiting - 1
}

// count counts a call of a key. It returns true if its circuit opens; see flow.Streak.
func (h *flowHolds) count(key string, contact flow.Contact, circuit int) (open bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.streaks[key]
	open = s.Count(contact, circuit)
	switch {
	case s == 0:
		delete(h.streaks, key)
	case len(h.streaks) >= maxHoldKeys:
		clear(h.streaks)
		fallthrough
	default:
		h.streaks[key] = s
	}
	h.failing.Store(int64(len(h.streaks)))
	return open
}

// change begins a change of a hold. It returns false if this process changes that hold already.
func (h *flowHolds) change(key string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changing[key] {
		return false
	}
	h.changing[key] = true
	return true
}

func (h *flowHolds) changed(key string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.changing, key)
}

// awaitTarget makes the event wait for the end of a hold, which is at atNs, or later if the circuit is
// open. With an open circuit, probeSeats events of the node become due at the time of the next probe,
// and one of them makes it. The others wait as for a paused limit, and are moved when the circuit
// closes.
func (d *delivery) awaitTarget(set *store.FlowSet, key string, h *flow.Hold, atNs int64) {
	c := d.f.flows
	place := c.holds.place(key, atNs)
	l, limited := set.Find(key)
	switch {
	case h.OpenNs != 0 && place >= probeSeats:
		atNs = max(atNs, c.nowNs()+int64(flow.PauseFor(d.timer.Record.Deferrals())))
	case !limited || l.Limit.Rate.Count == 0: // otherwise the gate spreads the calls
		atNs += int64(place) * int64(holdGap)
	}
	d.postpone(key, flowAnswer{Verdict: flow.Verdict{Kind: flow.Defer, AtNs: atNs}, generation: heldGeneration}, time.Duration(atNs-c.nowNs()))
}

// mayProbe takes the probe of an open circuit for the event. It returns true at once if the circuit is
// closed. It returns false, and settles the event, if another event has the probe, or if the admission
// under the rate has expired.
func (d *delivery) mayProbe(set *store.FlowSet, key string) bool {
	h, ok := set.HoldOf(key)
	if !ok {
		return true
	}
	c := d.f.flows
	if p, _ := h.Hold.Ask(c.nowNs()); p != flow.Probe {
		return true
	}
	taken := false
	h, ok = c.changeHold(key, func(h *store.FlowHold) bool {
		taken = h.Hold.TakeProbe(c.nowNs())
		return taken
	})
	now := c.nowNs()
	p, atNs := h.Hold.Ask(now)
	switch {
	case ok && taken && (d.validNs == 0 || now <= d.validNs):
		d.probe = h.Hold.OpenNs
		return true
	case ok && !taken && p == flow.Free:
		return true
	}
	if p != flow.Held { // another delivery of this process changes the hold, or the store does not answer
		atNs = now - now%int64(time.Second) + 2*int64(time.Second)
	}
	d.awaitTarget(set, key, &flow.Hold{OpenNs: now}, atNs)
	return false
}

// hear changes the hold of the delivery's flow key according to the outcome of a call: it sets a pause
// that the target asked for, opens the circuit or closes it.
func (d *delivery) hear(out callback.Outcome) {
	c := d.f.flows
	contact, wait := contactOf(d.spec.Callback, &out), pauses(d.spec.Callback, &out)
	switch {
	case d.probe != 0 && contact == flow.Answered:
		d.closeCircuit(wait, holdReason(&out))
		return
	case d.probe != 0: // the time of the next probe is set
	case contact == flow.Unreachable:
		d.countError(holdReason(&out))
	case contact == flow.Answered && c.holds.failing.Load() > 0:
		c.holds.count(d.flowKey(), contact, 0)
	}
	if wait > 0 {
		d.pauseKey(wait, holdReason(&out))
	}
}

// holdReason returns the reason of a hold after a call. Tenants share the circuit of a host, so the reason
// has no path of a callback.
func holdReason(out *callback.Outcome) string {
	return callback.Clip(cmp.Or(out.Cause, out.Err), store.MaxHoldReason)
}

// contactOf reports whether a call reached its target. Any answer of the target counts as reached. A
// time-out, or an outcome that Belfry itself produced, is flow.Unknown.
func contactOf(target string, out *callback.Outcome) flow.Contact {
	overNATS := strings.HasPrefix(target, schemas.NATSScheme)
	switch {
	case out.Unattempted:
		return flow.Unknown
	case out.Success:
		return flow.Answered
	}
	switch out.Reason {
	case callback.ReasonStatus, callback.ReasonRedirect, callback.ReasonRetryLater, callback.ReasonServiceError, callback.ReasonStreamRefused,
		callback.ReasonHandler, callback.ReasonHandlerPermanent, callback.ReasonWebhookRefused:
		return flow.Answered
	case callback.ReasonNoResponders:
		return flow.Unreachable
	case callback.ReasonConnection:
		if !overNATS { // otherwise it is the connection of this node
			return flow.Unreachable
		}
	case callback.ReasonTimeout, callback.ReasonTLS, callback.ReasonAddressRefused, callback.ReasonNotAllowed, callback.ReasonBadTarget,
		callback.ReasonWorkerBusy, callback.ReasonTooLarge, callback.ReasonUndecodable, callback.ReasonInternal:
	}
	return flow.Unknown
}

// countError counts a connection error of the delivery's key, and opens the circuit after too many in
// a row.
func (d *delivery) countError(reason string) {
	c, key := d.f.flows, d.flowKey()
	set, _ := d.f.o.Store.FlowsNow()
	if set != nil {
		if h, ok := set.HoldOf(key); ok {
			if p, _ := h.Hold.Ask(c.nowNs()); p != flow.Free && h.Hold.OpenNs != 0 {
				return // a call that began before the circuit opened
			}
		}
	}
	circuit := circuitAfter(set, key)
	if !c.holds.count(key, flow.Unreachable, circuit) {
		return
	}
	h, ok := c.changeHold(key, func(h *store.FlowHold) bool {
		h.Reason = reason
		return h.Hold.Open(c.nowNs())
	})
	if ok {
		c.holds.count(key, flow.Answered, 0)
		d.f.o.Log.Warn().Str("flow", key).Int("errors", circuit).Str("error", h.Reason).Msg("the target of a flow key cannot be reached: its circuit is open, so its events wait, and one at a time probes the target")
	}
}

// circuitAfter returns the number of connection errors in a row that open the circuit of a key; 0 for
// never. set may be nil.
func circuitAfter(set *store.FlowSet, key string) int {
	if set != nil {
		if l, ok := set.Find(key); ok {
			return l.Limit.CircuitAfter()
		}
	}
	return flow.DefaultCircuit
}

// closeCircuit closes the circuit after the delivery's probe was answered. wait is the pause that the
// answer asked for, or 0. If the write fails, the next probe closes the circuit.
func (d *delivery) closeCircuit(wait time.Duration, reason string) {
	c, key := d.f.flows, d.flowKey()
	closed := false
	if _, ok := c.changeHold(key, func(h *store.FlowHold) bool {
		if closed = h.Hold.Close(d.probe); !closed {
			return false
		}
		h.EndedMs, h.Reason = c.f.o.Now(), ""
		if h.Hold.RetryAfter(wait, c.nowNs()) {
			h.Reason = reason
		}
		return true
	}); ok && closed {
		d.f.o.Log.Info().Str("flow", key).Msg("the target of a flow key can be reached again")
	}
}

// pauses returns the pause of the flow key that a target asks for: by 429 or 503 with Retry-After, or
// by this header in a NATS reply; 0 for none. The "not now" of a worker concerns only its own event.
func pauses(target string, out *callback.Outcome) time.Duration {
	if !out.NotNow || out.Unattempted || strings.HasPrefix(target, schemas.NATSScheme+schemas.WorkSubjectPrefix) {
		return 0
	}
	return out.RetryAfter
}

// pauseKey stops the calls of the delivery's flow key for a duration.
func (d *delivery) pauseKey(wait time.Duration, reason string) {
	key, now := d.flowKey(), d.f.flows.nowNs()
	if set, _ := d.f.o.Store.FlowsNow(); set != nil {
		if h, ok := set.HoldOf(key); ok && !h.Hold.RetryAfter(wait, now) {
			return // the answer to a call that began before the pause
		}
	}
	d.f.flows.changeHold(key, func(h *store.FlowHold) bool {
		if !h.Hold.RetryAfter(wait, now) {
			return false
		}
		h.Reason = reason
		return true
	})
}

// changeHold changes the hold of a key, unless this process does so already. A change that fails
// is logged; the next answer of the target tries it again.
func (c *flowControl) changeHold(key string, change func(h *store.FlowHold) bool) (store.FlowHold, bool) {
	if !c.holds.change(key) {
		return store.FlowHold{}, false
	}
	defer c.holds.changed(key)
	ctx, cancel := context.WithTimeout(c.f.recording, holdPatience)
	defer cancel()
	h, err := c.f.o.Store.ChangeHold(ctx, key, c.f.o.Now(), func(h *store.FlowHold) bool {
		h.By = c.f.o.Node
		return change(h)
	})
	about := "hold " + key
	if schemas.CodeOf(err) == schemas.CodeBadRequest { // too many holds, whatever the key
		about = "holds"
	}
	if err != nil && c.f.recording.Err() == nil && c.f.complaints.Allow(about, time.Now()) {
		c.f.o.Log.Warn().Err(err).Str("flow", key).Msg("the answer of a target could not be stored as a hold of its flow key; the other events of the key are called as before")
	}
	return h, err == nil
}
