package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// TIMERS_FIRED discards its oldest events when it is full, whoever fired them, and
// JetStream bounds the events of one subject by their number only. So a service with
// large events could evict those of all others. The store therefore frees the space
// before the stream is full, and takes it from the largest services:
//
// When the stream is above trimAbove of its bytes, the first live node (by name) purges the
// oldest events of the largest services until it is below trimTo, or until each of them
// has one perServiceShare-th of the stream's bytes. A service below that share loses
// nothing.
//
// Nobody has to know the sizes beforehand: under pressure, the node reads the headers
// of the stream's events, each once, and keeps one sum for each service and part of the
// stream (firedUsage). Without pressure a look costs one request a second for the whole
// cluster.
//
// The bound rests on the space above trimAbove: events of others leave the stream only if
// services fire more than that (a quarter of the stream's bytes) between two looks, or if
// more than perServiceShare services are each above their share.
const (
	trimAbove = 0.75
	trimTo    = 0.70
	// trimFollow is the share of the stream's bytes below which the sums are forgotten.
	// It is below trimTo, so that a purge does not make the next look start anew.
	trimFollow = 0.5
	// trimEvery is the interval of looks at the stream. What is fired in it must fit
	// into the space above trimAbove.
	trimEvery = time.Second
	// trimParts is into how many parts the share of a service is divided: a service may
	// lose one part more than necessary.
	trimParts = 32
	// maxUsages bounds the services whose sums are kept. Beyond, the smallest are
	// forgotten; each forgotten service had less than a part.
	maxUsages = 50_000
	// trimmedTTL is how long status and doctor report a trim.
	trimmedTTL = 24 * time.Hour
	// eventOverhead is what nats-server's file store adds to a subject, headers and data.
	eventOverhead = 34
)

const trimmedPrefix = clockPrefix + "trimmed."

// Trimmed is what a service lost, since it exceeded its share of TIMERS_FIRED while the
// stream was nearly full.
type Trimmed struct {
	Service string `json:"service"`
	// Events left the stream, Bytes in all, in the last trim. Share is the bytes that no
	// trim takes.
	Events uint64 `json:"events"`
	Bytes  uint64 `json:"bytes"`
	Share  uint64 `json:"share_bytes"`
	// Total is the sum of Events since the service was first reported.
	Total uint64    `json:"total_events"`
	At    time.Time `json:"at"`
}

// Problem says in a sentence what is wrong, and what to do.
func (t Trimmed) Problem() string {
	return fmt.Sprintf("service %s fills %s: its %d oldest events left the stream early (%d in all, the last at %s); raise the bytes of %s, or have the service fire less or smaller events",
		t.Service, schemas.StreamFired, t.Events, t.Total, t.At.UTC().Format(time.RFC3339), schemas.StreamFired)
}

// firedUsage sums the bytes of events by service, up to a sequence of TIMERS_FIRED.
type firedUsage struct {
	part     uint64 // bytes
	read     uint64 // the last sequence that is summed
	services map[string]*serviceUsage
}

// serviceUsage is one service's events, oldest part first.
type serviceUsage struct {
	bytes uint64
	parts []usagePart
}

type usagePart struct{ first, last, events, bytes uint64 }

func newFiredUsage(share uint64) *firedUsage {
	return &firedUsage{part: max(share/trimParts, 1), services: map[string]*serviceUsage{}}
}

func (u *firedUsage) add(svc string, seq, bytes uint64) {
	s := u.services[svc]
	if s == nil {
		u.forgetSmall()
		s = &serviceUsage{}
		u.services[svc] = s
	}
	s.bytes += bytes
	if n := len(s.parts); n == 0 || s.parts[n-1].bytes+bytes > u.part {
		s.parts = append(s.parts, usagePart{first: seq})
	}
	p := &s.parts[len(s.parts)-1]
	p.last, p.events, p.bytes = seq, p.events+1, p.bytes+bytes
}

func (u *firedUsage) forgetSmall() {
	for limit := u.part / 64; len(u.services) >= maxUsages; limit = limit*2 + 1 {
		for svc, s := range u.services {
			if s.bytes <= limit {
				delete(u.services, svc)
			}
		}
	}
}

// drop removes the parts whose events are all below a sequence.
func (s *serviceUsage) drop(below uint64) (events, bytes uint64) {
	n := 0
	for ; n < len(s.parts) && s.parts[n].last < below; n++ {
		events, bytes = events+s.parts[n].events, bytes+s.parts[n].bytes
	}
	s.parts = slices.Delete(s.parts, 0, n)
	s.bytes -= bytes
	return events, bytes
}

// drop removes what has left the stream, whose first sequence is given.
func (u *firedUsage) drop(first uint64) {
	for svc, s := range u.services {
		if s.drop(first); len(s.parts) == 0 {
			delete(u.services, svc)
		}
	}
}

// level is the number of bytes to which services must be trimmed so that excess bytes
// are freed: share, or more if that suffices.
func (u *firedUsage) level(excess, share uint64) uint64 {
	var sizes []uint64
	for _, s := range u.services {
		if s.bytes > share {
			sizes = append(sizes, s.bytes)
		}
	}
	slices.Sort(sizes)
	slices.Reverse(sizes)
	var sum uint64
	for n, size := range sizes {
		sum += size
		next := share
		if n+1 < len(sizes) {
			next = sizes[n+1]
		}
		// The n+1 largest have sum bytes; cut to a level, they free sum - (n+1)*level.
		if count := uint64(n + 1); sum-count*next >= excess {
			return (sum - excess) / count
		}
	}
	return share
}

// cut is the sequence below which a service's events are purged so that at most level
// bytes stay; 0 if nothing is.
func (s *serviceUsage) cut(level uint64) uint64 {
	left := s.bytes
	for n, p := range s.parts {
		if left <= level || n == len(s.parts)-1 { // the newest part stays
			if n == 0 {
				return 0
			}
			return p.first
		}
		left -= p.bytes
	}
	return 0
}

// shareFired keeps services to their share of TIMERS_FIRED until ctx ends.
func (s *Store) shareFired(ctx context.Context) {
	var usage *firedUsage
	tick := time.NewTicker(trimEvery)
	defer tick.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !s.first.Load() {
			usage = nil
			continue
		}
		var err error
		usage, err = s.trimFired(ctx, usage)
		if err != nil && ctx.Err() == nil && !failed {
			s.log.Warn().Err(err).Msg("the sizes of services in TIMERS_FIRED are not known; trying again")
		}
		failed = err != nil
	}
}

// trimFired makes one look, and returns the sums for the next; nil without pressure.
func (s *Store) trimFired(ctx context.Context, usage *firedUsage) (*firedUsage, error) {
	info, err := s.jet.Stream(ctx, schemas.StreamFired)
	if errors.Is(err, schemas.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return usage, err
	}
	limit, used := uint64(max(info.Config.MaxBytes, 0)), info.State.Bytes
	above := func(part float64) bool { return float64(used) > part*float64(limit) }
	if limit == 0 || !above(trimFollow) || usage != nil && info.State.LastSeq < usage.read {
		return nil, nil // the last: another stream of that name
	}
	if usage == nil {
		if !above(trimAbove) {
			return nil, nil
		}
		usage = newFiredUsage(limit / perServiceShare)
	}
	if err := s.readUsage(ctx, usage); err != nil {
		return usage, err
	}
	usage.drop(info.State.FirstSeq)
	if !above(trimAbove) {
		return usage, nil
	}
	return usage, s.trimLargest(ctx, usage, used-uint64(trimTo*float64(limit)), limit/perServiceShare)
}

// readUsage adds the events that were stored since the last look.
func (s *Store) readUsage(ctx context.Context, u *firedUsage) error {
	events := jet.Range{Filters: []string{schemas.SubjectFiredPrefix + "*"}, HeadersOnly: true, AfterSeq: u.read}
	return s.jet.Scan(ctx, schemas.StreamFired, events, func(m jet.Msg) (bool, error) {
		if seq := m.Sequence; seq > u.read {
			u.read = seq
			u.add(schemas.ServiceOfSubject(m.Subject), seq, eventBytes(m))
		}
		return true, nil
	})
}

// eventBytes is what an event takes in the stream, about, from its headers.
func eventBytes(m jet.Msg) uint64 {
	n := eventOverhead + len(m.Subject)
	for name, values := range m.Header {
		for _, v := range values {
			if name == jet.HeaderSize {
				size, _ := strconv.Atoi(v) // the server's own header
				n += size
				continue
			}
			n += len(name) + len(v) + 4
		}
	}
	return uint64(n)
}

// trimLargest purges the oldest events of the largest services.
func (s *Store) trimLargest(ctx context.Context, u *firedUsage, excess, share uint64) error {
	// Events may also have left by fired-max-per-service: what is there counts.
	for svc, usage := range u.services {
		if usage.bytes <= share {
			continue
		}
		msgs, _, err := s.jet.Next(ctx, schemas.StreamFired, schemas.SubjectFired(svc), 0, 1)
		if err != nil {
			return err
		}
		if len(msgs) > 0 {
			usage.drop(msgs[0].Sequence)
		}
	}
	level := u.level(excess, share)
	for svc, usage := range u.services {
		if usage.bytes <= level {
			continue
		}
		if seq := usage.cut(level); seq > 0 {
			if err := s.purgeFired(ctx, svc, seq); err != nil {
				return err
			}
			t := Trimmed{Service: svc, Share: share}
			t.Events, t.Bytes = usage.drop(seq)
			s.noteTrimmed(ctx, t)
		}
	}
	return nil
}

// purgeFired removes the events of a service below a sequence. It may be repeated.
func (s *Store) purgeFired(ctx context.Context, svc string, below uint64) error {
	return s.jet.RemoveBelow(ctx, "trim the events of service "+svc, schemas.StreamFired, schemas.SubjectFired(svc), below)
}

// noteTrimmed counts, logs and records a trim. The record is for status and doctor: if it
// cannot be written, the next trim writes it.
func (s *Store) noteTrimmed(ctx context.Context, t Trimmed) {
	s.trimmed.Add(t.Events)
	s.log.Warn().Str("service", t.Service).Uint64("events", t.Events).Uint64("bytes", t.Bytes).Uint64("share_bytes", t.Share).
		Msg("TIMERS_FIRED is nearly full: the oldest events of its largest service were removed; timers whose callback has not concluded are fired again")
	err := s.recordTrimmed(ctx, t)
	if err != nil {
		s.log.Debug().Err(err).Msg("a trim was not recorded")
	}
}

func (s *Store) recordTrimmed(ctx context.Context, t Trimmed) error {
	subject := trimmedPrefix + t.Service
	var rev uint64
	switch m, err := s.jet.Last(ctx, clockStream, subject); {
	case errors.Is(err, schemas.ErrNotFound):
	case err != nil:
		return err
	default:
		rev = m.Sequence
		var was Trimmed
		if !jet.IsMarker(m) && json.Unmarshal(m.Data, &was) == nil {
			t.Total = was.Total
		}
	}
	t.Total, t.At = t.Total+t.Events, time.Now()
	if stamp := s.stamp.Load(); stamp != nil {
		t.At = time.Unix(0, stamp.ServerNs)
	}
	data, err := json.Marshal(t)
	if err != nil {
		return err
	}
	_, err = s.jet.Put(ctx, subject, data, rev, trimmedTTL)
	return err
}

// FiredTrimmed is how many events this process has removed from TIMERS_FIRED, since their
// service exceeded its share of a stream that was nearly full.
func (s *Store) FiredTrimmed() uint64 { return s.trimmed.Load() }

// ReadTrimmed lists the services whose events were removed within the last 24 hours, at
// most 1,024, by name.
func (s *Store) ReadTrimmed(ctx context.Context) ([]Trimmed, error) {
	a, err := s.jet.Direct(ctx, clockStream, jet.Get{MultiLast: []string{trimmedPrefix + "*"}, MaxBytes: jet.MaxAnswerBytes})
	if err != nil {
		return nil, err
	}
	var out []Trimmed
	for _, m := range a.Msgs {
		var t Trimmed
		if !jet.IsMarker(m) && json.Unmarshal(m.Data, &t) == nil {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b Trimmed) int { return strings.Compare(a.Service, b.Service) })
	return out, nil
}
