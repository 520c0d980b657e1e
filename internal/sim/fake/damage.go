package fake

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// foreign is a value in the clock bucket that Belfry did not write.
type foreign []byte

// Overwrite stores bytes under a key of a bucket, such as clock.0 of KV_clock or
// timer.<id> of KV_timers_0. Any client that may publish to the bucket can do this.
func (s *Server) Overwrite(stream, subject string, data []byte) error {
	st := s.streams[stream]
	if st == nil {
		return schemas.Errorf(schemas.CodeUnavailable, "no stream %s", stream)
	}
	m := &message{key: key{subject: subject}, val: foreign(data)}
	if text, ok := strings.CutPrefix(subject, "timer."); ok {
		id, err := schemas.ParseTimerID(text)
		if err != nil {
			return err
		}
		m = &message{key: recordKey(id), data: append([]byte{}, data...)}
	}
	_, err := st.put(m, nil, 0)
	return err
}

// clockOf decodes the clock in a message, as decodeClock of package store does. Errors:
// schemas.ErrNewer, schemas.ErrDamaged.
func clockOf(m *message) (store.Clock, error) {
	b, ok := m.val.(foreign)
	if !ok {
		return m.val.(store.Clock), nil
	}
	var c store.Clock
	if err := json.Unmarshal(b, &c); err == nil && c.Version > 1 {
		return store.Clock{}, schemas.Errorf(schemas.CodeUnknownFormat, "clock has format version %d", c.Version)
	}
	return store.Clock{}, schemas.Errorf(schemas.CodeDamaged, "clock is damaged: %w", fmt.Errorf("%.40q", b))
}

// goodClock returns the clock in the message or, if it cannot be decoded, the newest clock
// before it that can.
func goodClock(m *message) (store.Clock, bool) {
	for ; m != nil; m = m.older {
		if c, err := clockOf(m); err == nil {
			return c, true
		}
	}
	return store.Clock{}, false
}

// clockCopy is the copy of a shard's clock.
type clockCopy struct {
	clock store.Clock
	at    int64 // the leader's time, in Unix nanoseconds
	lost  bool
}

// copyEvery has the value of the constant in package store.
const copyEvery = 10 * time.Second

// copyClock copies a clock after a take-over and then every copyEvery.
func (s *Server) copyClock(shard int, c store.Clock) {
	last := &s.copies[shard]
	leader, _ := s.now()
	if last.at == 0 || last.clock.Epoch != c.Epoch || leader-last.at >= int64(copyEvery) {
		*last = clockCopy{clock: c, at: leader}
	}
}

// resumeClock returns the clock from which a shard with a damaged clock resumes, as
// store.Clocks does: the copy or, without one, a clock of the tick before now.
func (s *Server) resumeClock(shard int, nowNs int64) store.Clock {
	g, nowMs := s.cfg.Geometry, nowNs/int64(time.Millisecond)
	c := s.copies[shard].clock
	if s.copies[shard].at == 0 || s.copies[shard].lost {
		c = store.Clock{Version: 1, TimeMs: g.TickStart(g.Tick(nowMs) - 1)}
	}
	c.Owner, c.Epoch = "", max(c.Epoch, uint64(nowMs))
	return c
}

// LoseCopies loses the copies of all clocks. Each is missing until it is written again.
func (s *Server) LoseCopies() {
	for n := range s.copies {
		s.copies[n].lost = true
	}
}
