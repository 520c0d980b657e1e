package store

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

// A write of a record that gets no answer may have been stored, or may be stored later. Then the revision that it replaced is a
// leftover, which no search finds while all processes and servers live: see leftover.go. So each such revision is looked at when
// the write has probably been stored, and once more when it cannot be stored any more. If the record has a later revision then,
// from any client, the revision is deleted.
//
// With replicas a write that is refused because of its revision may be stored, too: a server that led the stream before refuses it,
// and the leader has received it as well (work-around 21, docs/internals/nats-server.md). Such a server may also answer a look
// and lack the record or the revision, so the last look is made even if the first one has found nothing left to do. The remover
// has a last look made at a revision that it has not found after a lost connection (remover.notFound).
const (
	// unansweredFirst and unansweredLast are the times after a write without an answer at which the revision before it is looked
	// at. A server that is stopped or cut off may store a write late; scheduler.leastEarlier has the same bound.
	unansweredFirst = 2 * time.Second
	unansweredLast  = 30 * time.Second
	// unansweredTick is the interval at which due looks are made, and the pause before a failed one is repeated.
	unansweredTick = time.Second
	// maxUnanswered bounds the revisions that wait for a look: some 15 MB. With more of them the earliest are not looked at.
	maxUnanswered = 100_000
)

// unansweredWrites has the revisions that writes without an answer, or refused ones, may have replaced. Safe for concurrent use.
type unansweredWrites struct {
	// after is unansweredFirst and unansweredLast, except in tests.
	after [2]time.Duration

	mu sync.Mutex
	// waiting has the revisions by the number of looks that were made at them, each in the order of the writes.
	waiting [2][]unansweredWrite
}

// unansweredWrite is a revision of a record, and the time of the write that may have replaced it.
type unansweredWrite struct {
	revision
	subject string
	at      time.Time
}

// add makes a write wait for a look. Looks are made in the order of the writes, so the last ones are, too.
func (u *unansweredWrites) add(look int, w unansweredWrite) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.waiting[look] = bounded(append(u.waiting[look], w))
}

// bounded drops the earliest writes of a queue that is too long.
func bounded(q []unansweredWrite) []unansweredWrite {
	if len(q) <= maxUnanswered/2 {
		return q
	}
	return slices.Clone(q[len(q)-maxUnanswered*9/20:])
}

// due removes and returns the writes that are due for a look.
func (u *unansweredWrites) due(look int, now time.Time) []unansweredWrite {
	u.mu.Lock()
	defer u.mu.Unlock()
	q, n := u.waiting[look], 0
	for n < len(q) && now.Sub(q[n].at) >= u.after[look] {
		n++
	}
	if n == 0 {
		return nil
	}
	u.waiting[look] = q[n:]
	if n == len(q) {
		u.waiting[look] = nil
	}
	return q[:n:n]
}

// back puts writes back in front of a queue, because a look has failed.
func (u *unansweredWrites) back(look int, writes []unansweredWrite) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.waiting[look] = bounded(append(writes, u.waiting[look]...))
}

// lookAtUnanswered makes the looks until ctx ends.
func (g *revisionGC) lookAtUnanswered(ctx context.Context) {
	for pause.For(ctx, unansweredTick) {
		for look := range g.unanswered.waiting {
			g.lookAll(ctx, look)
		}
	}
}

// lookAll makes the looks of a kind that are due.
func (g *revisionGC) lookAll(ctx context.Context, look int) {
	u := &g.unanswered
	writes := u.due(look, time.Now())
	for i, w := range writes {
		replaced, err := g.lookAt(ctx, w)
		if err != nil {
			u.back(look, writes[i:])
			return
		}
		if look == 0 && (!replaced || g.replicated) {
			u.add(1, w)
		}
	}
}

// lookAt has a revision deleted if its record has a later one.
func (g *revisionGC) lookAt(ctx context.Context, w unansweredWrite) (replaced bool, err error) {
	last, err := g.jet.Last(ctx, w.stream, w.subject)
	switch {
	case errors.Is(err, schemas.ErrNotFound):
		return true, nil // the record has expired, and with it the revision
	case err != nil || last.Sequence <= w.seq || !g.replaces(last):
		return false, err
	}
	// checkFirst: the later revision may be lost with the server's power, and must exist at the delete.
	return true, g.discard(ctx, w.revision, last, checkFirst)
}
