package store

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
)

// SetShortTTL changes below which TTL a revision rolls up.
func (s *Store) SetShortTTL(d time.Duration) { s.shortTTL = d }

// SharesIndex reports whether new timers share index entries.
func (s *Store) SharesIndex() bool { return s.level() >= LevelSharedIndex }

// RoundMost is how many records the tail asks for at a time.
const RoundMost = roundMost

// AddsMost and AddsBytes bound what a reader of adds asks for.
const (
	AddsMost  = addsMost
	AddsBytes = addsBytes
)

// SetExpiry sets for how long the next requests wait; Left is what is still to come
// of those before.
func (r *AddReader) SetExpiry(d time.Duration) { r.expiry = d }
func (r *AddReader) Left() int                 { return r.left }

// RemoveAdds is removeAdds.
func (s *Store) RemoveAdds(ctx context.Context, seqs []uint64) (uint64, error) {
	return s.removeAdds(ctx, seqs)
}

// Ack acknowledges an add of a reader without an Inbox.
func (a *Add) Ack() error { return a.ack() }

// Say has the reader read a message, as if it had come.
func (r *AddReader) Say(m *nats.Msg) error {
	_, err := r.read(nil, m)
	return err
}

// Waiting is how many adds, and words of the server, have come and are not read.
func (r *AddReader) Waiting() int { return len(r.arrived) }

// drain waits until every superseded revision is removed.
func (r *remover) drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.open > 0 {
		r.idle.Wait()
	}
}
