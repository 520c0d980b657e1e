package router

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"
)

// health is what is known of one thing that adds need: a shard, the services'
// bucket, timers.rejected. While it fails, it is tried once a pause, and whoever
// needs it in between is told at once: adds of other shards do not wait behind
// what waits for an answer.
type health struct {
	what string
	log  zerolog.Logger

	mu    sync.Mutex
	err   error // of the last try, or nil
	until time.Time
	wait  time.Duration
	trial bool // somebody tries again
}

// allow returns nil if it is well or due for a try, else the error of the last.
func (h *health) allow() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		return nil
	}
	now := time.Now()
	if now.Before(h.until) {
		return h.err
	}
	h.until, h.trial = now.Add(h.wait), true // others wait for what this try finds
	return nil
}

// note takes what a try came to. A change of state is logged, once.
func (h *health) note(err error) {
	if errors.Is(err, context.Canceled) {
		return // the router is stopping
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil && h.err != nil:
		h.log.Info().Str("what", h.what).Msg("adds can be taken again")
		h.err, h.wait = nil, 0
	case err != nil && h.err == nil:
		h.log.Warn().Err(err).Str("what", h.what).Msg("adds wait and are tried again")
		h.err, h.wait = err, retryPause
		h.until = time.Now().Add(h.wait)
	case err != nil:
		if h.err = err; h.trial { // what failed beside it says nothing new
			h.wait = min(2*h.wait, retryMax)
			h.until = time.Now().Add(h.wait)
		}
	}
	h.trial = false
}

// ills are the healths of all that adds need.
type ills struct {
	shards                            []*health
	services, lookup, record, rejects *health
}

func newIlls(shards int, log zerolog.Logger) *ills {
	h := func(what string) *health { return &health{what: what, log: log} }
	s := &ills{services: h("services"), lookup: h("fired events"), record: h("records"), rejects: h("timers.rejected")}
	for i := range shards {
		s.shards = append(s.shards, h("shard "+strconv.Itoa(i)))
	}
	return s
}
