package store

import (
	"context"
	"errors"
	"time"

	"github.com/belfryio/belfry/internal/jet"
)

// Work-around 1 (docs/internals/nats-server.md). A leftover is a revision that a later one has replaced and that is there still:
// a process died between a write and its delete, or a server between a write and
// its roll-up. When the later one expires, it would be the timer's record again,
// and a cancelled timer pending. They are looked for at the end of each shard, at
// the start and, since the only server may have been killed, after each lost
// connection.
const (
	// leftoverAgain is the number of sequences to check after a lost connection. It may be
	// small because no process has died with deletes outstanding.
	leftoverAgain = 2 * leftoverRecent
	// leftoverRecent is for how many of the newest sequences a roll-up is checked
	// whose older revision is out of sight. The last before a server was killed may
	// lack it; a batch of which that one was part is completed at the server's start,
	// and others may have written since.
	leftoverRecent = 4 * jet.MaxBatch
	leftoverRetry  = time.Second
)

var errDown = errors.New("the connection to NATS is down")

// removeLeftovers runs until the store is closed.
func (g *revisionGC) removeLeftovers(ctx context.Context) {
	back := uint64(2 * g.window)
	for failing := false; ctx.Err() == nil; {
		broken, lost := context.WithCancel(ctx)
		forget, ok := g.jet.OnBreak(lost)
		err := errDown
		if ok {
			err = g.removeAllLeftovers(ctx, back)
		}
		switch {
		case err == nil && g.replicated:
			// A delete acts on what the leader has. A revision that only another server has
			// kept cannot be removed from here.
			forget()
			lost()
			return
		case err == nil:
			failing, back = false, leftoverAgain
			<-broken.Done()
		case !failing && ctx.Err() == nil:
			failing = true
			g.log.Warn().Err(err).Msg("superseded revisions could not be looked for; trying again")
		}
		forget()
		lost()
		select {
		case <-ctx.Done():
		case <-time.After(leftoverRetry):
		}
	}
}

func (g *revisionGC) removeAllLeftovers(ctx context.Context, back uint64) error {
	for n := range g.shards.geo.Shards {
		if err := g.removeShardLeftovers(ctx, n, back); err != nil {
			return err
		}
	}
	return nil
}

// removeShardLeftovers checks the last back sequences of a shard. A revision with a newer one
// of the same timer among them is a leftover. A write also names the revision that it
// replaced; if that lies before the range, it is deleted in case it still exists.
func (g *revisionGC) removeShardLeftovers(ctx context.Context, shard int, back uint64) error {
	stream := g.shards.subjects[shard].stream
	last, err := g.shards.LastSeq(ctx, shard)
	if err != nil {
		return err
	}
	start := last - min(last, back)
	newest := map[string]uint64{}
	after := start
	for more := true; more && after < last; {
		var msgs []*jet.Msg
		if msgs, after, _, more, err = g.shards.nextRecords(ctx, shard, after); err != nil {
			return err
		}
		for _, m := range msgs {
			prev, rolled, ok := jet.Replaced(m)
			if !ok && !jet.IsMarker(m) {
				// Not a write of Belfry's: the revision before it is what the record can be
				// repaired from.
				continue
			}
			if older, ok := newest[m.Subject]; ok && !g.removeLater(stream, older) {
				return nil
			}
			newest[m.Subject] = m.Sequence
			if prev == 0 || prev > start {
				continue
			}
			if rolled && m.Sequence+leftoverRecent <= last {
				continue
			}
			if !g.removeLater(stream, prev) {
				return nil
			}
		}
	}
	return nil
}

// removeLater passes a revision to the remover. It returns false if the remover has ended.
func (g *revisionGC) removeLater(stream string, seq uint64) bool {
	if !g.rem.reserve() {
		return false
	}
	g.rem.put(superseded{stream: stream, seq: seq})
	return true
}
