package store

import "time"

// SetShortTTL changes below which TTL a revision rolls up.
func (s *Store) SetShortTTL(d time.Duration) { s.shortTTL = d }

// SharesIndex reports whether new timers share index entries.
func (s *Store) SharesIndex() bool { return s.shareIndex.Load() }

// RoundMost is how many records the tail asks for at a time.
const RoundMost = roundMost

// AddsMost and AddsBytes bound what a reader of adds asks for.
const (
	AddsMost  = addsMost
	AddsBytes = addsBytes
)

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
