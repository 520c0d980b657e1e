package fake

import (
	"strconv"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Config has the fields of store.Config that servers act on, and options that make rare
// conditions frequent.
type Config struct {
	Geometry schemas.Geometry
	// IndexKeep is the time for which an index entry outlives its tick.
	IndexKeep time.Duration
	// DedupWindow is the dedup window of every stream of events, FiredMaxAge the maximum age of
	// TIMERS_FIRED.
	DedupWindow, FiredMaxAge time.Duration
	// Retention is the TTL of final records.
	Retention time.Duration
	// MaxExact bounds the messages in the answer to a direct get: 1,000 as in JetStream if it
	// is 0. A lower value makes a simulation page through small ticks.
	MaxExact int
	// MaxMessage is the limit of a message's headers and data together, in bytes: 1 MiB if it
	// is 0.
	MaxMessage int
	// ShareIndex makes every other index entry of new timers name a second timer.
	ShareIndex bool
	// FarTicks is the number of ticks in a period of far entries: new timers that are due FarLead or more
	// after their add get one. 0 for no far entries.
	FarTicks int64
	FarLead  time.Duration
	// Flows adds the bucket flows.
	Flows bool
	// Basis is the basis of the plans in the first clocks; see store.Clock.
	Basis string
	// Calendars adds the stream of calendars. A stream more changes what random numbers are drawn
	// for, and so the history of every seed.
	Calendars bool
}

// Server is the state of the NATS servers. Not safe for concurrent use.
type Server struct {
	// FiredFloor, if not nil, returns the sequence up to which all events of a service in TIMERS_FIRED are
	// acknowledged.
	FiredFloor func(svc string) uint64

	cfg     Config
	now     func() (leaderNs, realNs int64)
	shards  []*stream
	clock   *stream
	service *stream
	streams map[string]*stream
	names   []string
	copies  []clockCopy // by shard
	// interruptions counts the calls of Interrupt.
	interruptions uint64
}

// NewServer makes the streams, and each shard's first clock: released, with the low watermark
// one tick before the leader's time. now returns the clock of the stream's leader and the
// true time, both in Unix nanoseconds.
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
	add(schemas.StreamOverdue, cfg.DedupWindow, 0)
	if cfg.Calendars {
		add(StreamCalendars, 0, 0)
	}
	if cfg.Flows {
		add(StreamFlows, 0, 0)
	}
	s.copies = make([]clockCopy, cfg.Geometry.Shards)
	for n := range cfg.Geometry.Shards {
		s.shards = append(s.shards, add(StreamShard(n), 0, 0))
		leader, _ := s.now()
		tick := cfg.Geometry.Tick(leader/int64(time.Millisecond)) - 1
		if _, err := s.putClock(n, store.Clock{TimeMs: cfg.Geometry.TickStart(tick), Basis: cfg.Basis}, nil); err != nil {
			panic(err) // a write without an expected revision does not fail
		}
	}
	return s
}

// Names of the streams under the buckets.
const (
	StreamClock    = "KV_clock"
	streamServices = "KV_services"
)

// StreamShard returns the name of the stream of a shard's bucket.
func StreamShard(n int) string { return "KV_timers_" + strconv.Itoa(n) }

// Streams returns the names of all streams, in a fixed order.
func (s *Server) Streams() []string { return s.names }

// putClock stores a clock by compare-and-set; with expect nil in any case.
func (s *Server) putClock(shard int, c store.Clock, expect *uint64) (uint64, error) {
	c.Version = 1
	return s.clock.put(&message{key: key{subject: clockSubject(shard)}, val: c}, expect, 0)
}

func clockSubject(shard int) string { return "clock." + strconv.Itoa(shard) }

// LastSeq returns the last sequence of a stream at its leader.
func (s *Server) LastSeq(stream string) uint64 { return s.streams[stream].seq }

// SeqAt returns the last sequence of a replica that has received nothing since a true time,
// in Unix nanoseconds.
func (s *Server) SeqAt(stream string, realNs int64) uint64 { return s.streams[stream].seqAt(realNs) }

// Record returns the newest record of a timer at the leader. Errors: schemas.ErrNotFound,
// schemas.ErrDamaged.
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
			t, _ := timerOf(m) // an intact record has no error
			f(t)
		}
	}
}

// Clock returns a shard's clock at the leader, with its revision. Errors: schemas.ErrNotFound,
// schemas.ErrDamaged, schemas.ErrNewer.
func (s *Server) Clock(shard int) (store.Clock, uint64, error) {
	m := s.clock.asOf(s.clock.last[key{subject: clockSubject(shard)}], s.clock.seq)
	if m == nil {
		return store.Clock{}, 0, schemas.ErrNotFound
	}
	c, err := clockOf(m)
	return c, m.seq, err
}

// LastClock returns the newest clock of a shard that can be decoded, for checkers.
func (s *Server) LastClock(shard int) store.Clock {
	c, _ := goodClock(s.clock.last[key{subject: clockSubject(shard)}])
	return c
}

// Events calls f for each event of a stream, in stream order. With all it includes events
// that have left the stream.
func (s *Server) Events(stream string, all bool, f func(msgID, subject string, stampNs int64)) {
	st := s.streams[stream]
	for _, m := range st.log {
		if all || st.alive(m) {
			f(m.msgID, m.subject, m.at)
		}
	}
}

// Watcher receives every stored record, clock and event. Each function is called just before
// the message is stored.
type Watcher struct {
	// Record receives a record of a shard and the record that it replaces; was is the zero
	// Timer if there is none.
	Record func(shard int, was, now store.Timer)
	// Clock receives a shard's clock and the last readable clock before it.
	Clock func(shard int, was, now store.Clock)
	// Event receives a message of a stream of events.
	Event func(stream string, e Event)
	// Calendar receives a change of a calendar's key; nil for none.
	Calendar func(name string, seq uint64, value []byte)
}

// Watch sets the watcher. Only checkers use it.
func (s *Server) Watch(w Watcher) {
	for n, st := range s.shards {
		st.watch = func(was, m *message) {
			if m.rec == nil {
				return
			}
			// Before a damaged record the watcher sees the last readable record.
			for was != nil && was.rec == nil {
				was = was.older
			}
			var before store.Timer
			if st.alive(was) {
				before = store.Timer{ID: was.id, Rev: was.seq, StoredMs: was.at / int64(time.Millisecond), Record: *was.rec}
			}
			now, _ := timerOf(m) // m.rec is set, so m is intact
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
	if st := s.streams[StreamCalendars]; st != nil && w.Calendar != nil {
		st.watch = func(_, m *message) { w.Calendar(m.subject, m.seq, m.data) }
	}
	for _, name := range [...]string{schemas.StreamAdd, schemas.StreamFired, schemas.StreamRetry, schemas.StreamDead, schemas.StreamRejected, schemas.StreamOverdue} {
		s.streams[name].watch = func(_, m *message) {
			w.Event(name, Event{Seq: m.seq, StampNs: m.at, Subject: m.subject, MsgID: m.msgID, Header: m.hdr, Data: m.data})
		}
	}
}
