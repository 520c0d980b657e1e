package fake

import (
	"strconv"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Config is the part of store.Config that the servers act on, and how far the
// fake's bounds differ from JetStream's.
type Config struct {
	Geometry schemas.Geometry
	// IndexKeep is how long an index entry outlives its tick.
	IndexKeep time.Duration
	// DedupWindow and FiredMaxAge are those of TIMERS_FIRED.
	DedupWindow, FiredMaxAge time.Duration
	// Retention is the TTL of final records.
	Retention time.Duration
	// MaxExact is how many messages one direct get answers: 1,000 in JetStream,
	// less to make a simulation page through small ticks.
	MaxExact int
	// MaxMessage is the size of the largest message that is stored, headers and data,
	// in bytes: 1 MiB if it is 0.
	MaxMessage int
	// ShareIndex makes every other entry of an index that may be shared name a
	// second timer.
	ShareIndex bool
}

// Server is what the NATS servers keep. Not safe for concurrent use.
type Server struct {
	cfg     Config
	now     func() (leaderNs, realNs int64)
	shards  []*stream
	clock   *stream
	service *stream
	streams map[string]*stream
	names   []string
	copies  []clockCopy // by shard
}

// NewServer makes the streams, and each shard's first clock: released, its mark
// one tick before the leader's time. now tells the leader's clock and true time,
// in Unix nanoseconds.
func NewServer(cfg Config, now func(stream string) (leaderNs, realNs int64)) *Server {
	if cfg.MaxExact == 0 {
		cfg.MaxExact = defaultMaxExact
	}
	if cfg.MaxMessage == 0 {
		cfg.MaxMessage = store.DefaultMaxPayload
	}
	s := &Server{cfg: cfg, streams: map[string]*stream{}}
	s.now = func() (int64, int64) { return now(StreamClock) }
	add := func(name string, window, maxAge time.Duration) *stream {
		st := newStream(func() (int64, int64) { return now(name) }, window, maxAge)
		s.streams[name] = st
		s.names = append(s.names, name)
		return st
	}
	s.clock = add(StreamClock, 0, 0)
	s.service = add(streamServices, 0, 0)
	add(schemas.StreamAdd, cfg.DedupWindow, 0)
	add(schemas.StreamFired, cfg.DedupWindow, cfg.FiredMaxAge)
	add(schemas.StreamRetry, cfg.DedupWindow, 0)
	add(schemas.StreamDead, cfg.DedupWindow, 0)
	add(schemas.StreamRejected, cfg.DedupWindow, 0)
	s.copies = make([]clockCopy, cfg.Geometry.Shards)
	for n := range cfg.Geometry.Shards {
		s.shards = append(s.shards, add(StreamShard(n), 0, 0))
		leader, _ := s.now()
		tick := cfg.Geometry.Tick(leader/int64(time.Millisecond)) - 1
		if _, err := s.putClock(n, store.Clock{TimeMs: cfg.Geometry.TickStart(tick)}, nil); err != nil {
			panic(err) // nothing is expected of a first clock
		}
	}
	return s
}

// Names of the streams under the buckets.
const (
	StreamClock    = "KV_clock"
	streamServices = "KV_services"
)

// StreamShard is the stream of a shard's bucket.
func StreamShard(n int) string { return "KV_timers_" + strconv.Itoa(n) }

// Streams names all streams, in a fixed order.
func (s *Server) Streams() []string { return s.names }

func (s *Server) putClock(shard int, c store.Clock, expect *uint64) (uint64, error) {
	c.Version = 1
	return s.clock.put(&message{key: key{subject: clockSubject(shard)}, val: c}, expect, 0)
}

func clockSubject(shard int) string { return "clock." + strconv.Itoa(shard) }

// LastSeq is where a stream stands at its leader.
func (s *Server) LastSeq(stream string) uint64 { return s.streams[stream].seq }

// SeqAt is where a replica of a stream stands that has seen nothing since a true
// time, in nanoseconds.
func (s *Server) SeqAt(stream string, realNs int64) uint64 { return s.streams[stream].seqAt(realNs) }

// Record reads a record at its leader, for clients and for a checker.
func (s *Server) Record(id schemas.TimerID) (store.Timer, error) {
	st := s.shards[s.cfg.Geometry.Shard(id)]
	return timerOf(st.asOf(st.last[recordKey(id)], st.seq))
}

func timerOf(m *message) (store.Timer, error) {
	if m == nil {
		return store.Timer{}, schemas.ErrNotFound
	}
	t := store.Timer{ID: m.id, Rev: m.seq, StoredMs: m.at / int64(time.Millisecond)}
	if m.intact() {
		t.Record = *m.rec
		return t, nil
	}
	var err error
	if t.Record, err = schemas.DecodeRecord(m.data); err != nil {
		return store.Timer{}, err
	}
	return t, nil
}

// Records calls f for every record of a shard, in stream order.
func (s *Server) Records(shard int, f func(store.Timer)) {
	st := s.shards[shard]
	for _, m := range st.log {
		if m.intact() && st.alive(m) && !st.superseded(m, st.seq) {
			t, _ := timerOf(m) // m is there
			f(t)
		}
	}
}

// Clock reads a shard's clock at its leader.
func (s *Server) Clock(shard int) (store.Clock, uint64, error) {
	m := s.clock.asOf(s.clock.last[key{subject: clockSubject(shard)}], s.clock.seq)
	if m == nil {
		return store.Clock{}, 0, schemas.ErrNotFound
	}
	c, err := clockOf(m)
	return c, m.seq, err
}

// LastClock is the newest clock of a shard that can be decoded, for checkers.
func (s *Server) LastClock(shard int) store.Clock {
	c, _ := goodClock(s.clock.last[key{subject: clockSubject(shard)}])
	return c
}

// Events lists the ids of the events of a stream, in stream order, with their
// stamps; those that have left it, too, if all is set.
func (s *Server) Events(stream string, all bool, f func(msgID, subject string, stampNs int64)) {
	st := s.streams[stream]
	for _, m := range st.log {
		if all || st.alive(m) {
			f(m.msgID, m.subject, m.at)
		}
	}
}

// Watcher receives everything that is stored, as it is stored.
type Watcher struct {
	// Record: was is the zero Timer where there was none, or none any more.
	Record func(shard int, was, now store.Timer)
	// Clock: a shard's clock moves.
	Clock func(shard int, was, now store.Clock)
	// Event: a message is added to a stream of events.
	Event func(stream string, e Event)
}

// Watch sets the watcher; it is for checkers.
func (s *Server) Watch(w Watcher) {
	for n, st := range s.shards {
		st.watch = func(was, m *message) {
			if m.rec == nil {
				return
			}
			// A damaged record counts as the last one that could be read.
			for was != nil && was.rec == nil {
				was = was.older
			}
			var before store.Timer
			if st.alive(was) {
				before = store.Timer{ID: was.id, Rev: was.seq, StoredMs: was.at / int64(time.Millisecond), Record: *was.rec}
			}
			now, _ := timerOf(m) // and so is m
			w.Record(n, before, now)
		}
	}
	shardOf := map[string]int{}
	for n := range s.shards {
		shardOf[clockSubject(n)] = n
	}
	s.clock.watch = func(was, m *message) {
		n, ok := shardOf[m.subject]
		if !ok {
			return
		}
		now, err := clockOf(m)
		before, there := goodClock(was)
		if err == nil && there {
			w.Clock(n, before, now)
		}
	}
	for _, name := range [...]string{schemas.StreamAdd, schemas.StreamFired, schemas.StreamRetry, schemas.StreamDead, schemas.StreamRejected} {
		s.streams[name].watch = func(_, m *message) {
			w.Event(name, Event{Seq: m.seq, StampNs: m.at, Subject: m.subject, MsgID: m.msgID, Header: m.hdr, Data: m.data})
		}
	}
}
