package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Bounds of FiredShare.
const (
	// trimAbove is the used part of TIMERS_FIRED above which services are trimmed. What
	// services fire within trimEvery must fit above it.
	trimAbove = 0.75
	// trimTo is the used part of the stream at which a trim stops.
	trimTo = 0.70
	// trimFollow is the used part of the stream below which the node drops its sums. It is
	// below trimTo, so that the sums survive a trim.
	trimFollow = 0.5
	// trimEvery is the interval between two requests for the state of the stream.
	trimEvery = time.Second
	// trimParts is the number of parts into which the share of a service is divided. Whole
	// parts are purged, so a service may lose one part more than necessary.
	trimParts = 32
	// maxUsages bounds the services with sums. Beyond it add drops the smallest; each of them
	// had less than one part.
	maxUsages = 50_000
	// trimmedTTL is how long status and doctor report a trim.
	trimmedTTL = 24 * time.Hour
	// eventOverhead is the number of bytes that nats-server's file store adds to an event.
	eventOverhead = 34
)

// FiredShare keeps one service from evicting the events of all others from TIMERS_FIRED.
//
// The stream discards its oldest events when it is full, and JetStream bounds the events
// of one subject by their number, not by their bytes. FiredShare therefore frees space
// before the stream is full: when the stream is above trimAbove of its bytes, the first
// live node (by name) purges the oldest events of the largest services. It stops at
// trimTo, or when each of these services is down to its share: the stream's bytes divided by
// perServiceShare. A service below its share loses nothing.
//
// Sizes need not be configured. Once the stream is above trimAbove, the node reads the headers
// of each event and sums the bytes by service (firedUsage). It keeps the sums up to date until
// the stream falls below trimFollow. Without sums, a check costs the cluster one request.
//
// FiredShare does not protect services in two cases. Then the stream evicts its oldest events,
// whatever their service: if services fire more than the space above trimAbove (a quarter of
// the stream) within trimEvery, and if services that stay within their shares fill the stream
// together. The sweeper fires timers again whose events left the stream before their callbacks
// have a result.
type FiredShare struct {
	jet *jet.Client
	log zerolog.Logger
	// isFirst reports whether this node is the first of the live ones.
	isFirst func() bool
	// leaderMs returns the time of the JetStream leader in Unix milliseconds, or false if
	// it is not known yet.
	leaderMs func() (int64, bool)

	trimmed atomic.Uint64 // events; see FiredTrimmed
}

func newFiredShare(c *jet.Client, log zerolog.Logger, isFirst func() bool, leaderMs func() (int64, bool)) *FiredShare {
	return &FiredShare{jet: c, log: log, isFirst: isFirst, leaderMs: leaderMs}
}

const trimmedPrefix = clockPrefix + "trimmed."

// Trimmed reports the events that a service lost because it exceeded its share of
// TIMERS_FIRED while the stream was nearly full.
type Trimmed struct {
	Service string `json:"service"`
	// Events and Bytes are the number and the size of the events that the last trim removed.
	// Share is the size in bytes below which a service loses nothing.
	Events uint64 `json:"events"`
	Bytes  uint64 `json:"bytes"`
	Share  uint64 `json:"share_bytes"`
	// Total is the sum of Events of the recorded trims. It starts again after trimmedTTL
	// without a trim of the service.
	Total uint64    `json:"total_events"`
	At    time.Time `json:"at"`
}

// Problem describes the trim in one sentence, and what to do about it.
func (t Trimmed) Problem() string {
	return fmt.Sprintf("service %s fills %s: its %d oldest events left the stream early (%d in all, the last at %s); raise the bytes of %s, or have the service fire less or smaller events",
		t.Service, schemas.StreamFired, t.Events, t.Total, t.At.UTC().Format(time.RFC3339), schemas.StreamFired)
}

// firedUsage sums the bytes of events by service, up to a sequence of TIMERS_FIRED.
type firedUsage struct {
	part     uint64 // bytes
	read     uint64 // the last sequence in the sums
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

// drop removes the parts whose events are all below a sequence, and returns their size.
func (s *serviceUsage) drop(below uint64) (events, bytes uint64) {
	n := 0
	for ; n < len(s.parts) && s.parts[n].last < below; n++ {
		events, bytes = events+s.parts[n].events, bytes+s.parts[n].bytes
	}
	s.parts = slices.Delete(s.parts, 0, n)
	s.bytes -= bytes
	return events, bytes
}

// drop removes the events that have left the stream; first is its first sequence.
func (u *firedUsage) drop(first uint64) {
	for svc, s := range u.services {
		if s.drop(first); len(s.parts) == 0 {
			delete(u.services, svc)
		}
	}
}

// level returns the size in bytes to which all larger services must be trimmed to free
// excess bytes. It is never less than share.
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

// cut returns the sequence below which to purge a service's events so that at most level
// bytes stay; 0 if no part can be purged.
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

// run keeps services to their share of TIMERS_FIRED until ctx ends.
func (f *FiredShare) run(ctx context.Context) {
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
		if !f.isFirst() {
			usage = nil
			continue
		}
		var err error
		usage, err = f.trim(ctx, usage)
		if err != nil && ctx.Err() == nil && !failed {
			f.log.Warn().Err(err).Msg("the sizes of services in TIMERS_FIRED are not known; trying again")
		}
		failed = err != nil
	}
}

// trim checks the stream once and trims it if necessary. It returns the sums for the next
// check, or nil if the stream is not full enough to keep them.
func (f *FiredShare) trim(ctx context.Context, usage *firedUsage) (*firedUsage, error) {
	info, err := f.jet.Stream(ctx, schemas.StreamFired)
	if errors.Is(err, schemas.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return usage, err
	}
	limit, used := uint64(max(info.Config.MaxBytes, 0)), info.State.Bytes
	above := func(part float64) bool { return float64(used) > part*float64(limit) }
	if limit == 0 || !above(trimFollow) || usage != nil && info.State.LastSeq < usage.read {
		return nil, nil // a lower last sequence: the stream was made again
	}
	if usage == nil {
		if !above(trimAbove) {
			return nil, nil
		}
		usage = newFiredUsage(limit / perServiceShare)
	}
	if err := f.readUsage(ctx, usage); err != nil {
		return usage, err
	}
	usage.drop(info.State.FirstSeq)
	if !above(trimAbove) {
		return usage, nil
	}
	return usage, f.trimLargest(ctx, usage, used-uint64(trimTo*float64(limit)), limit/perServiceShare)
}

// readUsage adds the events that were stored since the last check to the sums.
func (f *FiredShare) readUsage(ctx context.Context, u *firedUsage) error {
	events := jet.Range{Filters: []string{schemas.SubjectFiredPrefix + "*"}, HeadersOnly: true, AfterSeq: u.read}
	return f.jet.Scan(ctx, schemas.StreamFired, events, func(m jet.Msg) (bool, error) {
		if seq := m.Sequence; seq > u.read {
			u.read = seq
			u.add(schemas.ServiceOfSubject(m.Subject), seq, eventBytes(m))
		}
		return true, nil
	})
}

// eventBytes estimates the size of an event in the stream from its headers.
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
func (f *FiredShare) trimLargest(ctx context.Context, u *firedUsage, excess, share uint64) error {
	// fired-max-per-service may also have removed events: drop them from the sums.
	for svc, usage := range u.services {
		if usage.bytes <= share {
			continue
		}
		msgs, _, err := f.jet.Next(ctx, schemas.StreamFired, schemas.SubjectFired(svc), 0, 1)
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
			if err := f.purge(ctx, svc, seq); err != nil {
				return err
			}
			t := Trimmed{Service: svc, Share: share}
			t.Events, t.Bytes = usage.drop(seq)
			f.note(ctx, t)
		}
	}
	return nil
}

// purge removes the events of a service below a sequence. It may be repeated.
func (f *FiredShare) purge(ctx context.Context, svc string, below uint64) error {
	return f.jet.RemoveBelow(ctx, "trim the events of service "+svc, schemas.StreamFired, schemas.SubjectFired(svc), below)
}

// note counts, logs and records a trim. The record is for status and doctor. A failed write
// is not repeated: the recorded total then lacks the events of this trim.
func (f *FiredShare) note(ctx context.Context, t Trimmed) {
	f.trimmed.Add(t.Events)
	f.log.Warn().Str("service", t.Service).Uint64("events", t.Events).Uint64("bytes", t.Bytes).Uint64("share_bytes", t.Share).
		Msg("TIMERS_FIRED is nearly full: the oldest events of its largest service were removed; timers whose callback has not concluded are fired again")
	err := f.record(ctx, t)
	if err != nil {
		f.log.Debug().Err(err).Msg("a trim was not recorded")
	}
}

// record writes the key trimmed.<service> of bucket clock.
func (f *FiredShare) record(ctx context.Context, t Trimmed) error {
	subject := trimmedPrefix + t.Service
	var rev uint64
	switch m, err := f.jet.Last(ctx, clockStream, subject); {
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
	if ms, ok := f.leaderMs(); ok {
		t.At = time.UnixMilli(ms)
	}
	data, err := json.Marshal(t)
	if err != nil {
		return err
	}
	_, err = f.jet.Put(ctx, subject, data, rev, trimmedTTL)
	return err
}

// FiredTrimmed returns the number of events that this process has removed from
// TIMERS_FIRED because their service exceeded its share.
func (f *FiredShare) FiredTrimmed() uint64 { return f.trimmed.Load() }

// ReadTrimmed lists the services that were trimmed within trimmedTTL, by name, at most 1,024.
// Errors: schemas.ErrUnavailable.
func (f *FiredShare) ReadTrimmed(ctx context.Context) ([]Trimmed, error) {
	a, err := f.jet.Direct(ctx, clockStream, jet.Get{MultiLast: []string{trimmedPrefix + "*"}, MaxBytes: jet.MaxAnswerBytes})
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
