package store

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

// Work-around 24 (docs/internals/nats-server.md). After a server was killed, TIMERS_ADD may have an add that the routers'
// consumer counts as acknowledged: a stranded add. The server neither delivers nor removes it. While it is the stream's
// first message, finished adds are acknowledged one by one instead of purged (see Adds.removeAdds), and belfry status shows
// a waiting add.
//
// An Inbox looks for stranded adds and passes them to its router once more, as adds that were delivered before. Usually
// the record exists, and the add is a duplicate. If the record could have expired, the add would make a cancelled timer
// again. So an Inbox passes no add that is older than half of the retention: it logs the add and leaves it in the stream.

// strandedLook is the pause between two looks for stranded adds. An add counts as stranded if two looks in a row find it.
// One look is not enough, because the server raises the floor shortly before it removes an acknowledged add.
const strandedLook = 15 * time.Second

// strandedSet are the stranded adds that the last look of an Inbox has found, by sequence.
type strandedSet struct {
	found  map[uint64]*Add // the add that was passed last; nil before the first time
	tooOld map[uint64]bool
}

// readStranded passes stranded adds to handle until ctx ends. It passes an add again after each look that still finds it,
// unless the router has not settled it yet.
func (in *Inbox) readStranded(ctx context.Context, most int, handle func([]*Add)) {
	var set strandedSet
	for pause.For(ctx, in.adds.strandedLook) {
		found, tooOld, err := in.adds.stranded(ctx, in.from, most)
		if err != nil {
			continue // the next look repeats it
		}
		for _, seq := range set.leave(tooOld) {
			in.adds.log.Warn().Uint64("sequence", seq).Msg("an add stays in TIMERS_ADD: its consumer counts it as acknowledged, and it is too old to be handled again")
		}
		if group := set.next(ctx, in.adds, found); len(group) > 0 {
			in.adds.log.Warn().Int("adds", len(group)).Uint64("sequence", group[0].Seq).Msg("handling adds again: their consumer counts them as acknowledged, but the stream still has them")
			in.pass(group, handle)
		}
	}
}

// next takes the adds of a look that are not too old, and returns those to pass.
func (s *strandedSet) next(ctx context.Context, adds *Adds, found []*Add) (group []*Add) {
	before := s.found
	s.found = make(map[uint64]*Add, len(found))
	for _, a := range found {
		last, again := before[a.Seq]
		s.found[a.Seq] = last
		if !again || last != nil && !last.arrival.settled.Load() {
			continue
		}
		// A replica that is behind may have found it.
		if _, err := adds.jet.At(ctx, schemas.StreamAdd, a.Seq); err == nil {
			group, s.found[a.Seq] = append(group, a), a
		}
	}
	return group
}

// leave takes the sequences of a look that are too old, and returns the new ones, which the look before did not find.
func (s *strandedSet) leave(tooOld []uint64) (fresh []uint64) {
	before := s.tooOld
	s.tooOld = make(map[uint64]bool, len(tooOld))
	for _, seq := range tooOld {
		if s.tooOld[seq] = true; !before[seq] {
			fresh = append(fresh, seq)
		}
	}
	return fresh
}

// stranded returns up to most adds of a door that its consumer counts as acknowledged (up to the acknowledgement floor),
// oldest first, and the sequences of those adds among them that are too old to be passed. Errors:
// schemas.ErrUnavailable.
func (a *Adds) stranded(ctx context.Context, from door, most int) (adds []*Add, tooOld []uint64, err error) {
	info, err := a.jet.Stream(ctx, schemas.StreamAdd)
	if err != nil || info.State.Msgs == 0 {
		return nil, nil, err
	}
	c, err := a.jet.Consumer(ctx, "look for adds that were not removed", schemas.StreamAdd, from.consumer)
	if err != nil || info.State.FirstSeq > c.AckFloor.Stream {
		return nil, nil, err
	}
	msgs, _, err := a.jet.Next(ctx, schemas.StreamAdd, from.filter, info.State.FirstSeq-1, most)
	for _, m := range msgs {
		switch {
		case m.Sequence > c.AckFloor.Stream:
		case info.TimeStamp.Sub(m.Time) > a.retention/2:
			tooOld = append(tooOld, m.Sequence)
		default:
			// It was delivered before, so that DedupCheck and the limits do not take it for new.
			adds = append(adds, addOf(m, 2, strandedDelivery{a, m.Sequence}, a.moved))
		}
	}
	return adds, tooOld, err
}

// strandedDelivery settles a stranded add. Ack deletes the message, with a request that takes up to purgeTimeout. Nak and
// Working do nothing, because the server does not know of this delivery. The next look passes the add again unless it was
// deleted.
type strandedDelivery struct {
	adds *Adds
	seq  uint64
}

func (d strandedDelivery) Ack() error {
	ctx, cancel := context.WithTimeout(context.Background(), purgeTimeout)
	defer cancel()
	return d.adds.RemoveAdd(ctx, d.seq)
}

func (strandedDelivery) Nak(time.Duration) error { return nil }
func (strandedDelivery) Working() error          { return nil }
