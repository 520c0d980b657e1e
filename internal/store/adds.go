package store

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Adds reads, finds and removes the adds in stream TIMERS_ADD.
//
// The stream holds an add until a router has stored its timer and acknowledged the add. If
// a router dies in between, or its acknowledgement is lost, the server delivers the add
// again, to any router, after RouterAckWait; DedupCheck tells such adds from new ones. All
// calls return schemas.ErrUnavailable while the stream does not answer, and can be
// repeated. Safe for concurrent use.
type Adds struct {
	jet       *jet.Client
	log       zerolog.Logger
	fired     FiredReader
	retention time.Duration // of the records of timers
	// moved is Config.Moved.
	moved func(time.Time) time.Time

	// state is the stream's state as it was last read. Every add stored before oldestMs, by the leader's clock, is removed.
	state    addsState
	oldestMs atomic.Int64
	// readers is the number of open inboxes, arrivals has the adds that they have delivered.
	readers  atomic.Int64
	arrivals arrivals
	// unfilteredFrom is manyLeft, or less in tests; see purgeFilter.
	unfilteredFrom uint64
	// strandedLook is the constant strandedLook, or less in tests.
	strandedLook time.Duration
}

func newAdds(c *jet.Client, log zerolog.Logger, fired FiredReader, retention time.Duration) *Adds {
	return &Adds{jet: c, log: log, fired: fired, retention: retention, state: addsState{turn: make(chan struct{}, 1)}, unfilteredFrom: manyLeft, strandedLook: strandedLook}
}

// NewDedupCheck makes the check of one router.
func (a *Adds) NewDedupCheck() *DedupCheck { return NewDedupCheck(a.fired, a.retention) }

// Bounds of FindAdds.
const (
	// oldestAddFresh is the age up to which FindAdds uses the stream's state as it was last read.
	oldestAddFresh = 20 * time.Millisecond
	// findBatch is the number of adds read with one request.
	findBatch = 256
	// leaderApart is more than the clock of a new leader can be behind its predecessor's.
	leaderApart = time.Second
)

// FindAdds returns the sequences of a timer's adds that are still in TIMERS_ADD. addedMs is
// Record.AddedMs; same reports whether a message is an add of the timer, account is as in Add.
// For a timer older
// than every add in the stream FindAdds usually sends no request. Errors:
// schemas.ErrUnavailable.
func (a *Adds) FindAdds(ctx context.Context, addedMs int64, same func(account string, header map[string][]string, data []byte) bool) (seqs []uint64, err error) {
	gone, err := a.addGone(ctx, addedMs)
	if err != nil || gone {
		return nil, err
	}
	// AddedMs is the message's timestamp, rounded up.
	from := time.UnixMilli(addedMs - 1)
	req := jet.Get{StartTime: &from, Batch: findBatch, MaxBytes: jet.MaxAnswerBytes}
	for {
		page, err := a.jet.Direct(ctx, schemas.StreamAdd, req)
		if err != nil {
			return nil, err
		}
		for _, m := range page.Msgs {
			if m.Time.After(time.UnixMilli(addedMs)) {
				return seqs, nil
			}
			if same(schemas.TenantAddAccount(m.Subject), m.Header, m.Data) {
				seqs = append(seqs, m.Sequence)
			}
		}
		if page.More == 0 || len(page.Msgs) == 0 {
			return seqs, nil
		}
		req.StartTime, req.Seq = nil, page.Msgs[len(page.Msgs)-1].Sequence+1
	}
}

// AddForgotten reports, without a request, whether all adds stored by addedMs are known to
// be removed, so that FindAdds finds none.
func (a *Adds) AddForgotten(addedMs int64) bool { return addedMs < a.oldestMs.Load() }

// addGone is AddForgotten with a request for the stream's state if the state that was last read does not
// decide, at most once in oldestAddFresh.
func (a *Adds) addGone(ctx context.Context, addedMs int64) (bool, error) {
	if a.AddForgotten(addedMs) {
		return true, nil
	}
	info, err := a.stateAfter(ctx, time.Now().Add(-oldestAddFresh))
	if err != nil {
		return false, err
	}
	ms := info.State.FirstTime.UnixMilli()
	if info.State.Msgs == 0 {
		// The stream is empty: everything stored before this answer is removed.
		ms = max(info.State.LastTime.UnixMilli()+1, info.TimeStamp.Add(-leaderApart).UnixMilli())
	}
	a.oldestMs.Store(ms)
	return addedMs < ms, nil
}

// addsState is the state of TIMERS_ADD, for calls that may share a request.
type addsState struct {
	// turn has the permit to send a request, and to use the other fields.
	turn chan struct{}
	at   time.Time // when the last request was sent
	info jet.StreamInfo
}

// stateAfter returns the state of TIMERS_ADD at a time after t. Callers wait while a request is under way. Then one of them
// sends another one, and the others use its answer. Errors: schemas.ErrUnavailable.
func (a *Adds) stateAfter(ctx context.Context, t time.Time) (jet.StreamInfo, error) {
	s := &a.state
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return jet.StreamInfo{}, schemas.Errorf(schemas.CodeUnavailable, "the state of %s was not read: %w", schemas.StreamAdd, context.Cause(ctx))
	}
	if s.at.After(t) {
		return s.info, nil
	}
	at := time.Now()
	info, err := a.jet.LeaderInfo(ctx, schemas.StreamAdd) // a former leader may have an empty stream
	if err == nil {
		s.at, s.info = at, info
	}
	return info, err
}

// RemoveAdd removes one add from TIMERS_ADD, or returns nil if it is gone. Errors:
// schemas.ErrUnavailable.
func (a *Adds) RemoveAdd(ctx context.Context, seq uint64) error {
	if err := a.jet.DeleteMsg(ctx, "remove an add", schemas.StreamAdd, seq); !errors.Is(err, schemas.ErrNotFound) {
		return err
	}
	return nil // acknowledged in the meantime
}

// manyLeft is a number of messages that are not all removed one by one during a purge: twice the adds that the consumers of
// both doors may have delivered without an acknowledgement.
const manyLeft = 4 * RouterMaxAckPending

// purgeFilter returns the filter of a purge of a door's adds that leaves at least a number of messages in the stream. Without
// a filter the server counts wrong if the stream is empty after the purge (work-around 22). With the wildcard of the tenants'
// door the server loads each file of the backlog. So a purge of tenants' adds that leaves a large backlog has no filter: the
// stream will not be empty.
func (a *Adds) purgeFilter(from door, left uint64) string {
	if from == tenantDoor && left >= a.unfilteredFrom {
		return ""
	}
	return from.filter
}

// removeAdds purges the oldest adds of TIMERS_ADD up to the first add that is not in seqs,
// the rising sequences of finished adds on the door's subject. So it never removes an add
// that is not in seqs, whatever other routers do. It purges nothing for fewer than minPurge
// adds, because a purge costs the server about as much for one add as for many. It returns the last
// sequence of seqs that is removed, by this or an earlier call; 0 if none is. Errors:
// schemas.ErrUnavailable.
func (a *Adds) removeAdds(ctx context.Context, from door, seqs []uint64) (through uint64, err error) {
	info, err := a.jet.Stream(ctx, schemas.StreamAdd)
	if err != nil {
		return 0, err
	}
	i, _ := slices.BinarySearch(seqs, info.State.FirstSeq)
	n := i
	for n < len(seqs) && seqs[n]-info.State.FirstSeq == uint64(n-i) {
		n++
	}
	switch {
	case n-i >= minPurge:
	case i > 0:
		return seqs[i-1], nil // removed before
	default:
		return 0, nil
	}
	through = seqs[n-1]
	left := info.State.Msgs - min(info.State.Msgs, uint64(n-i))
	if err := a.jet.RemoveBelow(ctx, "remove adds", schemas.StreamAdd, a.purgeFilter(from, left), through+1); err != nil {
		return 0, err
	}
	return through, nil
}
