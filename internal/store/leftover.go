package store

import (
	"context"
	"errors"
	"time"

	"github.com/belfryio/belfry/internal/jet"
)

// Work-around 1 (docs/internals/nats-server.md). A leftover is a replaced revision that still
// exists, because a process died between a write and its delete, or a server between a write
// and its roll-up, or because a write was stored and got no answer (unanswered.go). When the later revision expires, the leftover would become the timer's
// record again: a cancelled timer would be pending. revisionGC searches the last sequences of
// each shard for leftovers when the store is opened, and after each lost connection, because
// the server may have been killed.
const (
	// leftoverAgain is the number of sequences to check after a lost connection. It may be
	// small because no process has died with deletes outstanding.
	leftoverAgain = 2 * leftoverRecent
	// leftoverRecent is the number of newest sequences whose roll-ups are checked, also where
	// the replaced revision is before the checked range. Only the last roll-ups before a
	// server was killed may not have taken effect: the last batch, which the server completes
	// when it starts, and later writes of other nodes.
	leftoverRecent = 4 * jet.MaxBatch
	// leftoverRetry is the pause after a failed search.
	leftoverRetry = time.Second
)

var errDown = errors.New("the connection to NATS is down")

// removeLeftovers searches for leftovers now and after each lost connection, until ctx ends.
// With replicas it searches once.
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
			// A delete removes only messages that the leader has. It cannot remove a revision
			// that only another server has kept, so further searches are useless.
			forget()
			lost()
			return
		case err == nil:
			failing, back = false, leftoverAgain
			<-broken.Done()
		case !failing && ctx.Err() == nil:
			failing = true
			g.log.Warn().Err(err).Msg("the search for superseded revisions failed; trying again")
		}
		forget()
		lost()
		select {
		case <-ctx.Done():
		case <-time.After(leftoverRetry):
		}
	}
}

// removeAllLeftovers calls removeShardLeftovers for each shard.
func (g *revisionGC) removeAllLeftovers(ctx context.Context, back uint64) error {
	for n := range g.shards.geo.Shards {
		if err := g.removeShardLeftovers(ctx, n, back); err != nil {
			return err
		}
	}
	return nil
}

// removeShardLeftovers checks the last back sequences of a shard, and deletes each revision
// that has a newer revision of the same timer among them. A write also names the revision
// that it replaced: if that is before the checked range, it is deleted in case it still
// exists.
func (g *revisionGC) removeShardLeftovers(ctx context.Context, shard int, back uint64) error {
	reconnects := g.jet.Reconnects()
	last, err := g.shards.LastSeq(ctx, shard)
	if err != nil {
		return err
	}
	stream, start := g.shards.subjects[shard].stream, last-min(last, back)
	newest := map[string]uint64{}
	after := start
	for more := true; more && after < last; {
		var msgs []*jet.Msg
		if msgs, after, _, more, err = g.shards.nextRecords(ctx, shard, after, scanBatch); err != nil {
			return err
		}
		for _, m := range msgs {
			if !g.replaces(m) {
				continue
			}
			prev, rolled, _ := jet.Replaced(m)
			if older, ok := newest[m.Subject]; ok {
				if err := g.discard(ctx, revision{stream, older}, m, reconnects); err != nil {
					return err
				}
			}
			newest[m.Subject] = m.Sequence
			if prev == 0 || prev > start {
				continue
			}
			if rolled && m.Sequence+leftoverRecent <= last {
				continue
			}
			if err := g.discard(ctx, revision{stream, prev}, m, reconnects); err != nil {
				return err
			}
		}
	}
	return nil
}

// replaces reports whether the revisions before m may be deleted. It is false if another client wrote m: Repair can
// restore the record from the revision before it.
func (g *revisionGC) replaces(m *jet.Msg) bool {
	_, _, ok := jet.Replaced(m)
	return ok || jet.IsMarker(m)
}

// discard has a revision deleted that m has replaced. reconnects is the number of reconnects before m was read, or
// checkFirst. It waits for a permit. Errors: those of remover.reserve.
func (g *revisionGC) discard(ctx context.Context, older revision, m *jet.Msg, reconnects uint64) error {
	if err := g.rem.reserve(ctx, "remove superseded revisions"); err != nil {
		return err
	}
	g.rem.put(superseded{revision: older, subject: m.Subject, by: m.Sequence, reconnects: reconnects})
	return nil
}
