package store

import "time"

// SetShortTTL changes below which TTL a revision rolls up.
func (s *Store) SetShortTTL(d time.Duration) { s.shortTTL = d }
