package store

import (
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// This file has the holds of flow keys: a pause for which a target has asked with Retry-After, and
// an open circuit. The node that made the call stores them. They are in the copy that every node
// has of the limits, so a call needs no request to obey them, and every node knows them within
// FlowFresh. A hold is no limit: it begins no generation.

const (
	// MaxHolds bounds the holds of a store. Nodes that set holds at the same time may exceed it by a few. A hold
	// counts until its key expires. Each change costs the server a walk over all keys of holds, and each node a
	// map of them: at the limit some 5 ms and 0.7 MB (BenchmarkHoldChange).
	MaxHolds = 2_000
	// MaxHoldReason bounds FlowHold.Reason, in bytes.
	MaxHoldReason = 256
	// holdSlack is the time for which a hold is kept after its end, for nodes whose clock is behind.
	holdSlack = time.Minute
	// endedHoldTTL is the time for which the end of a circuit, or a reset, is kept, so that a node
	// sees it and moves the events that wait.
	endedHoldTTL = time.Hour
	// staleHold is the age at which a copy forgets an unchanged hold, whatever its end. No hold lasts that long
	// without a change: see flow.MaxHold and flow.CircuitKeep.
	staleHold = 3 * time.Hour
	// holdTries bounds the attempts of ChangeHold after conflicts.
	holdTries = 10
)

// FlowHold is the hold of one flow key, which stops its calls; see flow.Hold.
type FlowHold struct {
	Key string
	// Rev is the revision of the hold.
	Rev  uint64
	Hold flow.Hold
	// Reason is the answer, or the error, that caused the hold: at most MaxHoldReason bytes, without
	// credentials.
	Reason string
	// AtMs is the time of the last change, in Unix milliseconds. By is the node that made it, or the
	// caller who reset the hold.
	AtMs int64
	By   string
	// EndedMs is the time at which a circuit was closed, or the hold was reset, in Unix milliseconds;
	// 0 for never. The events that wait for the hold are then moved. Hold may have a pause, or an
	// open circuit, since then.
	EndedMs int64

	// stored is when the stream's leader stored the hold.
	stored time.Time
}

// storedHold is the value of a hold's key: JSON with a checksum.
type storedHold struct {
	Version int    `json:"v"`
	Key     string `json:"key"`
	flow.Hold
	Reason string `json:"reason,omitempty"`
	AtMs   int64  `json:"at,omitempty"`
	By     string `json:"by,omitempty"`
	Ended  int64  `json:"ended,omitempty"`
}

// decodeHold reads a hold. Errors: schemas.ErrDamaged, schemas.ErrNewer.
func decodeHold(m *jet.Msg) (FlowHold, error) {
	var s struct {
		storedHold
		Sum uint32 `json:"sum"`
	}
	if err := unmarshalFlow("hold of a flow key", m.Data, &s, &s.Version, &s.Sum); err != nil {
		return FlowHold{Rev: m.Sequence}, err
	}
	return FlowHold{Key: s.Key, Rev: m.Sequence, Hold: s.Hold, Reason: s.Reason, AtMs: s.AtMs, By: s.By, EndedMs: s.Ended}, nil
}

func holdSubject(key string) string {
	return encodedSubject(holdPrefix, key)
}

// Undisturbed reports whether the copy has neither a limit of callbacks nor a hold, so that calls need
// no decision.
func (s *FlowSet) Undisturbed() bool { return s.undisturbed }

// HoldOf returns the hold of a flow key. It may have ended: flow.Hold.Ask tells.
func (s *FlowSet) HoldOf(key string) (FlowHold, bool) {
	if h := s.holds[key]; h != nil {
		return *h, true
	}
	return FlowHold{}, false
}

// Probing reports whether the circuit of a flow key is open and a probe may begin at a time in Unix
// nanoseconds.
func (s *FlowSet) Probing(key string, nowNs int64) bool {
	h, _ := s.HoldOf(key)
	p, _ := h.Hold.Ask(nowNs)
	return p == flow.Probe
}

// Holds returns the holds that stop calls at a time in Unix nanoseconds, by key.
func (s *FlowSet) Holds(nowNs int64) []FlowHold {
	return s.holdsIf(func(h *FlowHold) bool {
		p, _ := h.Hold.Ask(nowNs)
		return p != flow.Free
	})
}

// OpenCircuits returns the holds whose circuit is open at a time in Unix nanoseconds, by key.
func (s *FlowSet) OpenCircuits(nowNs int64) []FlowHold {
	return s.holdsIf(func(h *FlowHold) bool { return h.Hold.OpenAt(nowNs) })
}

// EndedHolds returns the holds with EndedMs, by key.
func (s *FlowSet) EndedHolds() []FlowHold {
	return s.holdsIf(func(h *FlowHold) bool { return h.EndedMs != 0 })
}

// HoldsIgnoredBy returns the names of those of the given live nodes that make callbacks and may not
// obey holds, because their version may not know them; none while no hold stops calls.
func (s *FlowSet) HoldsIgnoredBy(nodes []Member, nowNs int64) []string {
	if len(s.Holds(nowNs)) == 0 {
		return nil
	}
	return olderNodes(nodes, LevelPending, "functions") // holds have no level; LevelPending is the first after them
}

func (s *FlowSet) holdsIf(keep func(*FlowHold) bool) (out []FlowHold) {
	for _, h := range s.holds {
		if keep(h) {
			out = append(out, *h)
		}
	}
	slices.SortFunc(out, func(a, b FlowHold) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// applyHold applies one message of the holds. A hold that cannot be read stops nothing: the target
// answers the next call in the same way.
func (s *FlowSet) applyHold(m *jet.Msg) {
	name, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(m.Subject, holdPrefix))
	if err != nil {
		return // not written by Belfry
	}
	delete(s.holds, string(name))
	if jet.HasOperation(m) {
		return
	}
	if h, err := decodeHold(m); err == nil && h.Key == string(name) {
		h.stored = m.Time
		s.holds[h.Key] = &h
	}
}

// forgetHolds removes holds whose keys have expired at a time of the stream's leader. The stream sends no message
// for them.
func (s *FlowSet) forgetHolds(now time.Time) {
	maps.DeleteFunc(s.holds, func(_ string, h *FlowHold) bool { return h.expired(now) })
}

// expired reports whether the key of the hold has expired at a time.
func (h *FlowHold) expired(now time.Time) bool {
	return now.Sub(h.stored) > min(h.ttl(), staleHold)
}

// ttl returns the time for which the key of the hold is kept after AtMs.
func (h *FlowHold) ttl() time.Duration {
	ttl := time.Duration(max(h.Hold.EndsNs()-h.AtMs*int64(time.Millisecond), 0)) + holdSlack
	if h.EndedMs != 0 {
		ttl = max(ttl, endedHoldTTL)
	}
	return ttl
}

// full reports whether the copy has MaxHolds holds, or another number, whose keys have not expired.
func (s *FlowSet) full(most int, now time.Time) bool {
	if len(s.holds) < most {
		return false
	}
	n := 0
	for _, h := range s.holds {
		if !h.expired(now) {
			n++
		}
	}
	return n >= most
}

// ChangeHold changes the hold of a flow key by compare-and-set, and returns it as it is then.
// change gets the zero FlowHold with the key if there is none, and may be called again after a
// conflict; it returns false to leave the hold as it is. When ChangeHold returns without an error,
// this node obeys the change, and the others do within FlowFresh. nowMs is the cluster's time.
// Errors: schemas.CodeBadRequest for a new hold beyond MaxHolds; schemas.ErrStoreFull;
// schemas.ErrUnavailable, after which the change may have been made, and while a live node does not know
// flow control.
func (f *Flows) ChangeHold(ctx context.Context, key string, nowMs int64, change func(h *FlowHold) bool) (FlowHold, error) {
	if err := f.callbacks(); err != nil {
		return FlowHold{}, err
	}
	var h FlowHold
	err := onConflict(ctx, holdTries, flow.ConflictPause, func() (err error) {
		if h, err = f.readHold(ctx, key); err != nil {
			return err
		}
		if nowMs-h.EndedMs > endedHoldTTL.Milliseconds() {
			h.EndedMs = 0
		}
		isNew := h.Hold == flow.Hold{} && h.EndedMs == 0
		if !change(&h) {
			return nil
		}
		if set, _ := f.FlowsNow(); isNew && set != nil && set.full(f.maxHolds, time.UnixMilli(nowMs)) {
			return schemas.Errorf(schemas.CodeBadRequest, "there are %d holds of flow keys, which is the limit: use fewer flow keys (timerflow)", f.maxHolds)
		}
		h.AtMs = nowMs
		if h.Rev, err = f.putHold(ctx, &h); err == nil {
			_, err = f.RefreshFlows(ctx)
		}
		return err
	})
	if errors.Is(err, ErrRevision) {
		err = schemas.Errorf(schemas.CodeUnavailable, "the hold of flow %s is being changed by other nodes: try again", key)
	}
	return h, err
}

// ResetHold ends the hold of a flow key, and returns it as it was; ok is false if nothing holds the key.
// by says who asks. When it returns without an error, no node obeys the hold. Errors: as ChangeHold.
func (f *Flows) ResetHold(ctx context.Context, key, by string, nowMs int64) (before FlowHold, ok bool, err error) {
	_, err = f.ChangeHold(ctx, key, nowMs, func(h *FlowHold) bool {
		before = *h
		p, _ := h.Hold.Ask(nowMs * int64(time.Millisecond))
		if ok = p != flow.Free; ok {
			h.Hold, h.Reason, h.By, h.EndedMs = flow.Hold{}, "", by, nowMs
		}
		return ok
	})
	if err == nil && ok {
		err = f.copy.acknowledge(ctx, "the reset of "+key)
	}
	return before, ok, err
}

// readHold reads the hold of a flow key from the leader. A damaged hold is as none.
func (f *Flows) readHold(ctx context.Context, key string) (FlowHold, error) {
	m, err := f.jet.Last(ctx, flowsStream, holdSubject(key))
	switch {
	case errors.Is(err, schemas.ErrNotFound):
		return FlowHold{Key: key}, nil
	case err != nil:
		return FlowHold{Key: key}, err
	}
	none := FlowHold{Key: key, Rev: m.Sequence}
	if jet.IsMarker(m) {
		return none, nil
	}
	h, err := decodeHold(m)
	readable := err == nil && h.Key == key
	if !readable && !errors.Is(err, schemas.ErrNewer) {
		return none, nil
	}
	return h, err
}

// putHold writes a hold, which expires when it has ended.
func (f *Flows) putHold(ctx context.Context, h *FlowHold) (uint64, error) {
	b, err := marshalSummed(storedHold{Version: flowVersion, Key: h.Key, Hold: h.Hold, Reason: h.Reason, AtMs: h.AtMs, By: h.By, Ended: h.EndedMs})
	if err != nil {
		return 0, err
	}
	return f.jet.Put(ctx, holdSubject(h.Key), b, h.Rev, h.ttl())
}
