package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// This file has the states of flow keys, and how far the events of a changed limit were moved.

// storedState is the value of a state's key: JSON with a checksum.
type storedState struct {
	Version int    `json:"v"`
	Key     string `json:"key"`
	flow.State
}

func stateSubject(key string) string {
	sum := sha256.Sum256([]byte(key))
	return statePrefix + hex.EncodeToString(sum[:16])
}

// FlowKeyState is the state of a flow key.
type FlowKeyState struct {
	Key string
	// Rev is the revision of the state; 0 for a key without a state.
	Rev   uint64
	State flow.State
}

// FlowState reads the state of a flow key from the leader; a key without a state has the zero
// State and revision 0. Errors: schemas.ErrUnavailable; schemas.ErrDamaged and
// schemas.ErrNewer, with the revision of the value.
func (f *Flows) FlowState(ctx context.Context, key string) (FlowKeyState, error) {
	s := FlowKeyState{Key: key}
	m, err := f.jet.Last(ctx, flowsStream, stateSubject(key))
	switch {
	case errors.Is(err, schemas.ErrNotFound):
		return s, nil
	case err != nil:
		return s, err
	}
	s.Rev = m.Sequence
	if jet.IsMarker(m) {
		return s, nil
	}
	_, s.State, err = decodeState(m.Data)
	return s, err
}

func decodeState(b []byte) (key string, s flow.State, err error) {
	var v struct {
		storedState
		Sum uint32 `json:"sum"`
	}
	err = unmarshalFlow("state of a flow key", b, &v, &v.Version, &v.Sum)
	if err != nil {
		return "", flow.State{}, err
	}
	return v.Key, v.State, nil
}

// PutFlowState replaces the state of a flow key by compare-and-set and returns its new
// revision. The state expires FlowStateTTL after ttl; ttl is 0 or the time until the last time
// of interest in the state. Errors: ErrRevision, schemas.ErrStoreFull; schemas.ErrUnavailable,
// after which the state may have been written.
func (f *Flows) PutFlowState(ctx context.Context, s FlowKeyState, ttl time.Duration) (uint64, error) {
	b, err := marshalSummed(storedState{Version: flowVersion, Key: s.Key, State: s.State})
	if err != nil {
		return 0, err
	}
	return f.jet.Put(ctx, stateSubject(s.Key), b, s.Rev, FlowStateTTL+max(ttl, 0))
}

// FlowStates returns the states of flow keys that match a pattern, at most limit, by key.
// more is true if there are others. Errors: schemas.ErrUnavailable.
func (f *Flows) FlowStates(ctx context.Context, pattern string, limit int) (all []FlowKeyState, more bool, err error) {
	err = f.jet.Scan(ctx, flowsStream, jet.Range{Filters: []string{statePrefix + "*"}}, func(m jet.Msg) (bool, error) {
		if jet.HasOperation(&m) {
			return true, nil
		}
		key, s, err := decodeState(m.Data)
		readable := err == nil // the next call of its key replaces a damaged state
		if !readable || !flow.Match(pattern, key) {
			return true, nil
		}
		if more = len(all) == limit; more {
			return false, nil
		}
		all = append(all, FlowKeyState{Key: key, Rev: m.Sequence, State: s})
		return true, nil
	})
	slices.SortFunc(all, func(a, b FlowKeyState) int { return strings.Compare(a.Key, b.Key) })
	return all, more, err
}

// Replan is how far the waiting events of a limit were moved after a change; one node at a
// time moves them.
type Replan struct {
	Pattern string `json:"-"`
	Rev     uint64 `json:"-"`
	// Generation is the revision of the limit.
	Generation uint64 `json:"g"`
	// Done is true if all events were moved; otherwise Node moves them until UntilMs (Unix
	// milliseconds), and moves on that time while it works.
	Done    bool   `json:"done,omitempty"`
	Node    string `json:"n,omitempty"`
	UntilMs int64  `json:"u,omitempty"`
}

// storedReplan is the value of a Replan's key: JSON with a checksum.
type storedReplan struct {
	Version int `json:"v"`
	Replan
}

func replanSubject(pattern string) string {
	return encodedSubject(replanPrefix, pattern)
}

// FlowReplan reads how far the events of a limit were moved; the zero Replan for a limit whose
// events were never moved, or whose Replan is damaged. Errors: schemas.ErrUnavailable.
func (f *Flows) FlowReplan(ctx context.Context, pattern string) (Replan, error) {
	m, err := f.jet.Last(ctx, flowsStream, replanSubject(pattern))
	switch {
	case errors.Is(err, schemas.ErrNotFound):
		return Replan{Pattern: pattern}, nil
	case err != nil:
		return Replan{}, err
	}
	var v struct {
		storedReplan
		Sum uint32 `json:"sum"`
	}
	if !jet.IsMarker(m) && unmarshalFlow("replan", m.Data, &v, &v.Version, &v.Sum) != nil {
		v.Replan = Replan{}
	}
	v.Pattern, v.Rev = pattern, m.Sequence
	return v.Replan, nil
}

// PutFlowReplan replaces a Replan by compare-and-set and returns its new revision. That of a
// deleted limit expires. Errors: as PutFlowState.
func (f *Flows) PutFlowReplan(ctx context.Context, r Replan, deleted bool) (uint64, error) {
	b, err := marshalSummed(storedReplan{Version: flowVersion, Replan: r})
	if err != nil {
		return 0, err
	}
	var ttl time.Duration
	if deleted {
		ttl = 2 * deletedLimitTTL // longer than the limit, which would otherwise be planned again
	}
	return f.jet.Put(ctx, replanSubject(r.Pattern), b, r.Rev, ttl)
}
