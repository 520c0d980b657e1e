package store

import (
	"context"
	"errors"
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
// the record exists, and the add is a duplicate. The record of an old add may have expired: if the router made it again, a
// cancelled timer would fire. So an add that is older than half of the retention has Add.Old. The router writes no record
// for it. It publishes it on timers.rejected if the timer has no record, a damaged one, or another one.

// strandedLook is the pause between two looks for stranded adds. An add counts as stranded if two looks in a row find it.
// One look is not enough, because the server raises the floor shortly before it removes an acknowledged add.
const strandedLook = 15 * time.Second

// strandedSet are the stranded adds that the last look of an Inbox has found, by sequence.
type strandedSet struct {
	found map[uint64]*Add // the add that was passed last; nil before the first time
}

// readStranded passes stranded adds to handle until ctx ends. It passes an add again after each look that still finds it,
// unless the router has not settled it yet.
func (in *Inbox) readStranded(ctx context.Context, most int, handle func([]*Add)) {
	var set strandedSet
	for pause.For(ctx, in.adds.strandedLook) {
		found, err := in.adds.stranded(ctx, in.from, most)
		if err != nil {
			continue // the next look repeats it
		}
		if group := set.next(ctx, in.adds, found); len(group) > 0 {
			in.adds.log.Warn().Int("adds", len(group)).Uint64("sequence", group[0].Seq).Msg("handling adds again: their consumer counts them as acknowledged, but the stream still has them")
			in.pass(group, handle)
		}
	}
}

// next takes the adds of a look, and returns those to pass: each that two looks in a row have found, that this process has
// settled since it was passed last, and that the stream's leader still has.
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

// stranded returns up to most adds of a door that its consumer counts as acknowledged (up to the acknowledgement floor),
// oldest first. Errors: schemas.ErrUnavailable.
func (a *Adds) stranded(ctx context.Context, from door, most int) (adds []*Add, err error) {
	info, err := a.jet.Stream(ctx, schemas.StreamAdd)
	if err != nil || info.State.Msgs == 0 {
		return nil, err
	}
	c, err := a.jet.Consumer(ctx, "look for adds that were not removed", schemas.StreamAdd, from.consumer)
	if err != nil || info.State.FirstSeq > c.AckFloor.Stream {
		return nil, err
	}
	msgs, _, err := a.jet.Next(ctx, schemas.StreamAdd, from.filter, info.State.FirstSeq-1, most)
	for _, m := range msgs {
		if m.Sequence > c.AckFloor.Stream {
			break
		}
		// It was delivered before, so that DedupCheck and the limits do not take it for new.
		add := addOf(m, 2, strandedDelivery{a, m.Sequence}, a.moved)
		add.Old = info.TimeStamp.Sub(m.Time) > a.retention/2
		adds = append(adds, add)
	}
	return adds, err
}

// strandedDelivery settles a stranded add. Ack deletes the message, and does not wait. Nak and Working do nothing, because the
// server does not know of this delivery. The next look passes the add again unless it was deleted.
type strandedDelivery struct {
	adds *Adds
	seq  uint64
}

func (d strandedDelivery) Ack() error {
	d.adds.jet.DeleteMsgAsync("remove an add", schemas.StreamAdd, d.seq, func(err error) {
		if err != nil && !errors.Is(err, schemas.ErrNotFound) {
			d.adds.log.Warn().Err(err).Uint64("sequence", d.seq).Msg("a handled add was not removed; it is handled again")
		}
	})
	return nil
}

func (strandedDelivery) Nak(time.Duration) error { return nil }
func (strandedDelivery) Working() error          { return nil }
