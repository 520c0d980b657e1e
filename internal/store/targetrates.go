package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// This file has the rates that targets allow in the CloudEvents webhook handshake. Each lowers the
// limit of its flow key; see FlowSet.Find.
//
//	limit.target.<hash of the key>  the rate that a target allows (TargetRate), or that none does
//
// The rate is in force while its key has it. A node removes it when it has ended (EndTargetRate), so
// that all nodes see the end as a change.

const (
	targetPrefix = limitPrefix + "target."
	// MaxTargetRates bounds the flow keys with a rate that their targets allow.
	MaxTargetRates = 10_000
	// targetTries bounds the attempts to store a rate while other nodes store it at the same time.
	targetTries = 10
	// targetPause bounds the random pause between two of them.
	targetPause = 20 * time.Millisecond
)

// TargetRate is the rate that a target allows for a flow key. Its keys are stored, and nodes of
// other builds read them: they differ from those of schemas.FlowTarget.
type TargetRate struct {
	Key string `json:"key"`
	// PerMinute is the number of calls a minute, 1 or more.
	PerMinute int `json:"perminute,omitempty"`
	// URL is the target that allows no more, without its query and credentials.
	URL string `json:"url,omitempty"`
	// AtMs is the time of the target's answer, and UntilMs the end of its validity, in Unix
	// milliseconds.
	AtMs    int64 `json:"at,omitempty"`
	UntilMs int64 `json:"until,omitempty"`
	// Generation is the revision with which PerMinute was first stored.
	Generation uint64 `json:"generation,omitempty"`
	// Rev is the revision of the key.
	Rev uint64 `json:"-"`
}

// storedTarget is the value of a TargetRate's key: JSON with a checksum. PerMinute is 0 after the
// end.
type storedTarget struct {
	Version int `json:"v"`
	TargetRate
}

func targetSubject(key string) string {
	sum := sha256.Sum256([]byte(key))
	return targetPrefix + hex.EncodeToString(sum[:16])
}

// applyTarget applies one message of the targets' rates. A value that cannot be read changes
// nothing: a call waits until its rate is stored again.
func (s *FlowSet) applyTarget(m *jet.Msg) {
	t, err := decodeTarget(m)
	if err != nil || targetSubject(t.Key) != m.Subject {
		return
	}
	if t.PerMinute == 0 {
		delete(s.targets, t.Key)
		return
	}
	s.targets[t.Key] = t
}

// Target returns the rate that a target allows for a flow key.
func (s *FlowSet) Target(key string) (TargetRate, bool) {
	t, ok := s.targets[key]
	return t, ok
}

// Targets returns the rates that targets allow, by flow key.
func (s *FlowSet) Targets() []TargetRate {
	return slices.SortedFunc(maps.Values(s.targets), func(a, b TargetRate) int { return strings.Compare(a.Key, b.Key) })
}

// TargetsIgnoredBy returns the names of those of the given live nodes that make callbacks and do not
// obey the rates that targets allow, because their version does not know them; none without such a rate.
func (s *FlowSet) TargetsIgnoredBy(nodes []Member) []string {
	if len(s.targets) == 0 {
		return nil
	}
	return olderNodes(nodes, LevelWebhook, "functions")
}

// lowered returns the limit of a flow key with the rate that its target allows. exists is false if no
// limit applies without it.
func (s *FlowSet) lowered(key string, l FlowLimit, exists bool) (FlowLimit, bool) {
	t, ok := s.Target(key)
	if !ok || l.Err != nil {
		return l, exists
	}
	next := l.Limit.AtMost(t.PerMinute)
	if next == l.Limit {
		return l, exists
	}
	if !exists {
		l.Pattern = key
	}
	l.Limit, l.Rev, l.Target = next, max(l.Rev, t.Generation), &t
	return l, true
}

// PutTargetRate stores the rate that a target allows. When it returns without an error, the rate is in
// force on all nodes until t.UntilMs or later, or a lower rate of another target of the flow key
// is in force. A lower rate of the same target is replaced. Errors: schemas.CodeBadRequest for too
// many keys; schemas.ErrNewer; schemas.ErrStoreFull; schemas.ErrUnavailable, after which the rate
// may be in force.
func (f *Flows) PutTargetRate(ctx context.Context, t TargetRate) error {
	return onConflict(ctx, targetTries, targetPause, func() error {
		old, rev, err := f.readTarget(ctx, t.Key)
		if err != nil {
			return err
		}
		next := t
		switch {
		case old.PerMinute == 0:
			if set, _ := f.FlowsNow(); set != nil && len(set.targets) >= MaxTargetRates {
				return schemas.Errorf(schemas.CodeBadRequest, "the targets of %d flow keys allow a rate, which is the limit: use fewer flow keys (timerflow)", MaxTargetRates)
			}
		case old.PerMinute < t.PerMinute && old.URL != t.URL, old.PerMinute == t.PerMinute && old.UntilMs >= t.UntilMs:
			_, err := f.RefreshFlows(ctx)
			return err
		case old.PerMinute == t.PerMinute:
			next.Generation = old.Generation
		}
		if err := f.writeTarget(ctx, next, rev, 0); err != nil {
			return err
		}
		if next.Generation != 0 { // only the end has changed
			_, err = f.RefreshFlows(ctx)
			return err
		}
		return f.copy.acknowledge(ctx, "the rate that the target of "+t.Key+" allows")
	})
}

// readTarget reads the rate of a flow key from the leader, and the revision of its key: 0 for a key
// that does not exist. A damaged value is replaced like none. Errors: schemas.ErrNewer,
// schemas.ErrUnavailable.
func (f *Flows) readTarget(ctx context.Context, key string) (t TargetRate, rev uint64, err error) {
	m, err := f.jet.Last(ctx, flowsStream, targetSubject(key))
	switch {
	case errors.Is(err, schemas.ErrNotFound):
		return t, 0, nil
	case err != nil:
		return t, 0, err
	}
	t, err = decodeTarget(m)
	if errors.Is(err, schemas.ErrNewer) {
		return t, 0, err
	}
	if err != nil {
		t = TargetRate{}
	}
	return t, m.Sequence, nil
}

// decodeTarget reads a message of the targets' rates. Errors: schemas.ErrNewer, schemas.ErrDamaged.
func decodeTarget(m *jet.Msg) (TargetRate, error) {
	var v struct {
		storedTarget
		Sum uint32 `json:"sum"`
	}
	err := unmarshalFlow("rate of a target", m.Data, &v, &v.Version, &v.Sum)
	t := v.TargetRate
	if t.Rev = m.Sequence; t.Generation == 0 {
		t.Generation = m.Sequence
	}
	return t, err
}

// EndTargetRate removes a rate that has ended. Errors: ErrRevision if it was changed meanwhile,
// schemas.ErrUnavailable.
func (f *Flows) EndTargetRate(ctx context.Context, t TargetRate) error {
	return f.writeTarget(ctx, TargetRate{Key: t.Key}, t.Rev, deletedLimitTTL)
}

func (f *Flows) writeTarget(ctx context.Context, t TargetRate, rev uint64, ttl time.Duration) error {
	b, err := marshalSummed(storedTarget{Version: flowVersion, TargetRate: t})
	if err != nil {
		return err
	}
	_, err = f.jet.Put(ctx, targetSubject(t.Key), b, rev, ttl)
	return err
}
