package store

import "time"

// SetShortTTL changes below which TTL a revision rolls up.
func (s *Store) SetShortTTL(d time.Duration) { s.shortTTL = d }

// SharesIndex reports whether new timers share index entries.
func (s *Store) SharesIndex() bool { return s.shareIndex.Load() }

// RoundMost is how many records the tail asks for at a time.
const RoundMost = roundMost

// drain waits until every superseded revision is removed.
func (r *remover) drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.open > 0 {
		r.idle.Wait()
	}
}
