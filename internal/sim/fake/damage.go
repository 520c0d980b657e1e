package fake

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// foreign is the value of a clock that somebody else has written.
type foreign []byte

// Overwrite stores bytes under a key of a bucket, such as clock.0 of KV_clock, or
// timer.<id> of KV_timers_0, as anybody may who can publish there.
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

// clockOf is the clock that a message holds; see decodeClock of package store.
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

// goodClock is the newest clock from a message backwards that can be decoded.
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

// copyEvery is package store's.
const copyEvery = 10 * time.Second

func (s *Server) copyClock(shard int, c store.Clock) {
	last := &s.copies[shard]
	leader, _ := s.now()
	if last.at == 0 || last.clock.Epoch != c.Epoch || leader-last.at >= int64(copyEvery) {
		*last = clockCopy{clock: c, at: leader}
	}
}

// resumeClock is package store's.
func (s *Server) resumeClock(shard int, nowNs int64) store.Clock {
	g, nowMs := s.cfg.Geometry, nowNs/int64(time.Millisecond)
	c := s.copies[shard].clock
	if s.copies[shard].at == 0 || s.copies[shard].lost {
		c = store.Clock{Version: 1, TimeMs: g.TickStart(g.Tick(nowMs) - 1)}
	}
	c.Owner, c.Epoch = "", max(c.Epoch, uint64(nowMs))
	return c
}

// LoseCopies has every copy of a clock lost, until it is written again.
func (s *Server) LoseCopies() {
	for n := range s.copies {
		s.copies[n].lost = true
	}
}
