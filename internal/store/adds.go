package store

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// oldestAdd remembers that all adds stored before a time are acknowledged.
type oldestAdd struct {
	ms atomic.Int64 // whatever was stored before this, by the leader's clock, is gone
	mu sync.Mutex
	at time.Time // when that was asked
}

// Bounds of ForgetAdd.
const (
	oldestAddFresh = 20 * time.Millisecond // how long an answer is good for, if it does not tell enough
	forgetBatch    = 256
	// leaderApart is more than one leader's clock is behind that of the one before.
	leaderApart = time.Second
)

// ForgetAdd makes sure that the add which a timer came from is not delivered
// again, however long its acknowledgement may be outstanding: once the record is
// final, and has expired, it would be taken for a new one. addedMs is the
// record's; same tells whether a message is that add. It costs nothing for
// timers that are older than what waits in TIMERS_ADD.
func (s *Store) ForgetAdd(ctx context.Context, addedMs int64, same func(nats.Header, []byte) bool) error {
	gone, err := s.addGone(ctx, addedMs)
	if err != nil || gone {
		return err
	}
	// AddedMs is the message's timestamp, rounded up.
	from := time.UnixMilli(addedMs - 1)
	req := directGet{StartTime: &from, Batch: forgetBatch, MaxBytes: maxAnswer}
	for {
		a, err := s.direct(ctx, schemas.StreamAdd, req)
		if err != nil {
			return err
		}
		for _, m := range a.msgs {
			if m.Time.After(time.UnixMilli(addedMs)) {
				return nil
			}
			if same(m.Header, m.Data) {
				if err := s.deleteAdd(ctx, m.Sequence); err != nil {
					return err
				}
			}
		}
		if a.more == 0 || len(a.msgs) == 0 {
			return nil
		}
		req.StartTime, req.Seq = nil, a.msgs[len(a.msgs)-1].Sequence+1
	}
}

// addGone reports whether all adds that were stored by addedMs are acknowledged.
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
	info, err := s.streamState(ctx, schemas.StreamAdd)
	if err != nil {
		return false, err
	}
	ms := info.State.FirstTime.UnixMilli()
	if info.State.Msgs == 0 {
		// Nothing waits: what the leader stored until it said so is gone.
		ms = max(info.State.LastTime.UnixMilli()+1, info.TimeStamp.Add(-leaderApart).UnixMilli())
	}
	s.oldest.ms.Store(ms)
	s.oldest.at = at
	return addedMs < ms, nil
}

func (s *Store) deleteAdd(ctx context.Context, seq uint64) error {
	var r struct {
		Error *jetstream.APIError `json:"error"`
	}
	const op = "remove an add"
	if err := s.change(ctx, op, deleteSubject(schemas.StreamAdd), deleteRequest(seq), &r); err != nil {
		return err
	}
	if r.Error == nil {
		return nil
	}
	if err := apiError(op, r.Error); !errors.Is(err, schemas.ErrNotFound) {
		return err
	}
	return nil // acknowledged meanwhile
}

// leastRemoved is how many adds are worth a request of their own.
const leastRemoved = 32

// RemoveAdds removes adds whose timers are stored, of the sequences given in
// rising order, and returns through which they are gone; 0 if none. It removes
// those that stand at the stream's beginning with none between that is not given:
// all that goes was given, whoever else may be taking adds. It is one write,
// however many go; an acknowledgement is one each.
func (s *Store) RemoveAdds(ctx context.Context, seqs []uint64) (through uint64, err error) {
	info, err := s.streamState(ctx, schemas.StreamAdd)
	if err != nil {
		return 0, err
	}
	i, _ := slices.BinarySearch(seqs, info.State.FirstSeq)
	n := i
	for n < len(seqs) && seqs[n]-info.State.FirstSeq == uint64(n-i) {
		n++
	}
	switch {
	case n-i >= leastRemoved:
	case i > 0:
		return seqs[i-1], nil // gone already
	default:
		return 0, nil
	}
	through = seqs[n-1]
	var r struct {
		Error *jetstream.APIError `json:"error"`
	}
	const op = "remove adds"
	// Up to, and without, a sequence.
	req := append(strconv.AppendUint([]byte(`{"seq":`), through+1, 10), '}')
	if err := s.change(ctx, op, "$JS.API.STREAM.PURGE."+schemas.StreamAdd, req, &r); err != nil {
		return 0, err
	}
	if r.Error != nil {
		return 0, apiError(op, r.Error)
	}
	return through, nil
}
