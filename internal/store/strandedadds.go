package store

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

// Work-around 24 (docs/internals/nats-server.md). After a server was killed, TIMERS_ADD may have an add that the routers'
// consumer counts as acknowledged: a stranded add. The server neither delivers nor removes it. As long as the stream has
// it, finished adds are not purged (see Adds.removeAdds), and status shows an add that waits. An Inbox looks for stranded
// adds and passes them to its router once more, as adds that were delivered before. Usually the timer is stored, and
// the add is a duplicate.

// strandedLook is the pause between two looks for stranded adds. An add is stranded if two looks find it: the server
// removes an acknowledged add soon.
const strandedLook = 15 * time.Second

// readStranded passes stranded adds to handle until ctx ends. It passes an add again after the next look if the router has
// put it off.
func (in *Inbox) readStranded(ctx context.Context, most int, handle func([]*Add)) {
	var before map[uint64]bool // the sequences that the last look has found
	for pause.For(ctx, in.adds.strandedLook) {
		found, err := in.adds.stranded(ctx, in.from, most)
		if err != nil {
			continue // the next look repeats it
		}
		now := map[uint64]bool{}
		var group []*Add
		for _, a := range found {
			now[a.Seq] = true
			if before[a.Seq] {
				group = append(group, a)
			}
		}
		if before = now; len(group) > 0 {
			in.adds.log.Info().Int("adds", len(group)).Uint64("sequence", group[0].Seq).Msg("reading adds again that the server has acknowledged and not removed")
			in.pass(group, handle)
		}
	}
}

// stranded returns the first adds of a door among those up to the acknowledgement floor of its consumer, at
// most as many as most.
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
		if m.Sequence <= c.AckFloor.Stream {
			adds = append(adds, addOf(m, 2, strandedDelivery{a, m.Sequence}, a.moved))
		}
	}
	return adds, err
}

// strandedDelivery is a delivery of a stranded add. Nak and Working do nothing, because the server does not know of the
// delivery: the next look for stranded adds delivers the add again.
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
