package store

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// oldestAdd caches how far TIMERS_ADD has been emptied.
type oldestAdd struct {
	ms atomic.Int64 // every add stored before this time, by the leader's clock, is removed
	mu sync.Mutex
	at time.Time // when the stream was last asked
}

// Bounds of FindAdds.
const (
	// oldestAddFresh is the least time between two requests for the stream's state.
	oldestAddFresh = 20 * time.Millisecond
	// findBatch is the number of adds read with one request.
	findBatch = 256
	// leaderApart is more than the clock of a new leader can be behind its predecessor's.
	leaderApart = time.Second
)

// FindAdds returns the sequences in TIMERS_ADD of the adds of a timer, which are there until
// the timer is stored and they are acknowledged. addedMs is the record's; same identifies
// the adds by their headers and data. For a timer older than every add in the stream it
// sends no request. Errors: schemas.ErrUnavailable.
func (s *Store) FindAdds(ctx context.Context, addedMs int64, same func(header map[string][]string, data []byte) bool) (seqs []uint64, err error) {
	gone, err := s.addGone(ctx, addedMs)
	if err != nil || gone {
		return nil, err
	}
	// AddedMs is the message's timestamp, rounded up.
	from := time.UnixMilli(addedMs - 1)
	req := jet.Get{StartTime: &from, Batch: findBatch, MaxBytes: jet.MaxAnswerBytes}
	for {
		a, err := s.jet.Direct(ctx, schemas.StreamAdd, req)
		if err != nil {
			return nil, err
		}
		for _, m := range a.Msgs {
			if m.Time.After(time.UnixMilli(addedMs)) {
				return seqs, nil
			}
			if same(m.Header, m.Data) {
				seqs = append(seqs, m.Sequence)
			}
		}
		if a.More == 0 || len(a.Msgs) == 0 {
			return seqs, nil
		}
		req.StartTime, req.Seq = nil, a.Msgs[len(a.Msgs)-1].Sequence+1
	}
}

// addGone reports whether all adds stored by addedMs are removed.
func (s *Store) addGone(ctx context.Context, addedMs int64) (bool, error) {
	if s.AddForgotten(addedMs) {
		return true, nil
	}
	s.oldest.mu.Lock()
	defer s.oldest.mu.Unlock()
	if s.AddForgotten(addedMs) {
		return true, nil
	}
	if time.Since(s.oldest.at) < oldestAddFresh {
		return false, nil
	}
	at := time.Now()
	info, err := s.jet.Stream(ctx, schemas.StreamAdd)
	if err != nil {
		return false, err
	}
	ms := info.State.FirstTime.UnixMilli()
	if info.State.Msgs == 0 {
		// The stream is empty: everything stored before this answer is removed.
		ms = max(info.State.LastTime.UnixMilli()+1, info.TimeStamp.Add(-leaderApart).UnixMilli())
	}
	s.oldest.ms.Store(ms)
	s.oldest.at = at
	return addedMs < ms, nil
}

// RemoveAdd removes one add from TIMERS_ADD. An add that is gone is no error.
// Errors: schemas.ErrUnavailable.
func (s *Store) RemoveAdd(ctx context.Context, seq uint64) error {
	if err := s.jet.DeleteMsg(ctx, "remove an add", schemas.StreamAdd, seq); !errors.Is(err, schemas.ErrNotFound) {
		return err
	}
	return nil // acknowledged in the meantime
}

// removeAdds purges finished adds, whose sequences are given in rising order, as far as
// they are the oldest of TIMERS_ADD without a gap. So it removes only adds that were given,
// whatever other routers do. It returns the last sequence that is removed, or 0. A purge is
// one write of the server, however many adds it removes; fewer than minPurge are not worth
// it. Errors: schemas.ErrUnavailable.
func (s *Store) removeAdds(ctx context.Context, seqs []uint64) (through uint64, err error) {
	info, err := s.jet.Stream(ctx, schemas.StreamAdd)
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
	if err := s.jet.RemoveBelow(ctx, "remove adds", schemas.StreamAdd, "", through+1); err != nil {
		return 0, err
	}
	return through, nil
}
