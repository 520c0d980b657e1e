package functions

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// This file obeys the holds of flow keys (flow.Hold), and sets them: a target that answers 429 or
// 503 with Retry-After pauses its key.

const (
	// holdGap is the time between two events of a key without a rate that go after a hold, on one
	// node: 50 a second, so that the target does not get all that waited at once.
	holdGap = 20 * time.Millisecond
	// holdPatience bounds the write of a hold after a call. The result of the call waits for it.
	holdPatience = 2 * time.Second
	// maxHoldKeys bounds the keys that flowHolds remembers.
	maxHoldKeys = 10_000
)

// flowHolds is what a process knows of the holds of flow keys, in addition to its copy of the limits.
// Safe for concurrent use.
type flowHolds struct {
	mu sync.Mutex
	// queues count the events that wait for the end of a hold, by flow key; at most maxHoldKeys.
	queues map[string]*holdQueue
	// changing has the keys whose hold this process changes now.
	changing map[string]bool
}

// holdQueue counts the events of a key that wait for a time.
type holdQueue struct {
	atNs    int64
	waiting int
}

func newFlowHolds() *flowHolds {
	return &flowHolds{queues: map[string]*holdQueue{}, changing: map[string]bool{}}
}

// place returns the number of events of a key that this process has put back before, which wait
// until the same time.
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

// heldByTarget makes the event wait in its consumer or in the wheel while a hold stops the calls
// of its key. It returns true if the event waits.
func (d *delivery) heldByTarget(set *store.FlowSet, key string) bool {
	h, ok := set.HoldOf(key)
	if !ok {
		return false
	}
	c := d.f.flows
	p, atNs := h.Hold.Ask(c.nowNs())
	held := p == flow.Held
	if !held {
		return false
	}
	if l, limited := set.Find(key); !limited || l.Limit.Rate.Count == 0 { // otherwise the gate spreads the calls
		atNs += int64(c.holds.place(key, atNs)) * int64(holdGap)
	}
	d.postpone(key, flowAnswer{Verdict: flow.Verdict{Kind: flow.Defer, AtNs: atNs}, generation: heldGeneration}, time.Duration(atNs-c.nowNs()))
	return true
}

// hear learns from the outcome of a call what the target wants.
func (d *delivery) hear(out callback.Outcome) {
	if wait := pauses(d.spec.Callback, &out); wait > 0 {
		d.pauseKey(wait, out.Err)
	}
}

// pauses returns for how long the target does not want to be called, 0 for no such wish: 429 or
// 503 with Retry-After, or the same header in a NATS reply. A worker that answers "not now" means
// the one event.
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
			return // most calls that were under way when the first answer came
		}
	}
	d.f.flows.changeHold(key, func(h *store.FlowHold) bool {
		if h.Ended {
			h.Ended, h.Hold = false, flow.Hold{}
		}
		if !h.Hold.RetryAfter(wait, now) {
			return false
		}
		h.Reason = callback.Clip(reason, store.MaxHoldReason)
		return true
	})
}

// changeHold changes the hold of a key, unless this process does so already. A change that fails
// is logged; the next answer of the target is another chance.
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
	if err != nil && c.f.recording.Err() == nil && c.f.complaints.Allow("hold "+key, time.Now()) {
		c.f.o.Log.Warn().Err(err).Str("flow", key).Msg("the answer of a target could not be stored as a hold of its flow key; the other events of the key are called as before")
	}
	return h, err == nil
}
