package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

// Calendars stores named calendars: lists of dates on which schedules do not run. A calendar is
// one key of bucket calendars, and changes by compare-and-set. Its revision is its sequence in
// the bucket's stream. The bucket keeps the last calendarHistory revisions of a key.
//
// # When a change is in force
//
// Every node keeps a copy of all calendars (freshCopy), which it confirms every calendarPoll and
// may use for CalendarFresh. Schedulers and routers decide about a schedule that excludes
// calendars only with a fresh copy: schedulers before they claim a run, routers before they
// store the schedule. PutCalendar acknowledges a change CalendarFresh after it was stored. By
// then no older copy is fresh, so every later decision follows the change.
//
// While a node cannot read the calendars, the schedules of its shards that exclude calendars
// wait and hold back the low watermark. They fire when the node can read again, or when
// another node takes the shard.
type Calendars struct {
	keys CalendarKeys
	copy freshCopy[*CalendarSet]
	log  zerolog.Logger
}

const (
	// CalendarFresh bounds the age of a copy of the calendars that decisions may follow. The
	// acknowledgement of a change waits as long, so it must stay well below
	// router.OperationTimeout.
	CalendarFresh = 2 * time.Second
	// calendarPoll is the interval at which a node confirms its copy. The copy stays fresh if
	// up to two requests in a row fail.
	calendarPoll = 500 * time.Millisecond
	// MaxStoredCalendars bounds the calendars of a store.
	MaxStoredCalendars = 200
	// calendarHistory is the number of revisions of a calendar that the bucket keeps.
	calendarHistory = 5
	// calendarsMaxBytes bounds the bucket: a calendar of 4,000 dates has 60 kB.
	calendarsMaxBytes = 16 << 20
	calendarsStream   = "KV_" + schemas.BucketCalendars
	calendarsPrefix   = "$KV." + schemas.BucketCalendars + "."
	// calendarVersion is the version of a calendar's value.
	calendarVersion = 1
)

// CalendarKeys reads and writes bucket calendars. The store's own are in JetStream; package
// internal/sim/fake simulates them.
type CalendarKeys interface {
	// LastCalendar returns the last sequence of the bucket's stream, as the stream's leader knows
	// it. Errors: schemas.ErrUnavailable.
	LastCalendar(ctx context.Context) (uint64, error)
	// EachCalendar calls fn for the changes after a sequence, in stream order. A replica that is
	// behind may answer. Errors: schemas.ErrUnavailable.
	EachCalendar(ctx context.Context, after uint64, fn func(CalendarKey)) error
	// HasCalendar asks the stream's leader whether a change is still there. Errors:
	// schemas.ErrUnavailable.
	HasCalendar(ctx context.Context, seq uint64) (bool, error)
	// PutCalendarKey writes a key that must have revision rev, 0 for none, and returns the new
	// revision. Errors: ErrRevision; schemas.ErrStoreFull; schemas.ErrUnavailable, after which
	// the key may be written.
	PutCalendarKey(ctx context.Context, name string, value []byte, rev uint64) (uint64, error)
}

// CalendarKey is one change of a calendar's key: its sequence in the bucket's stream and its
// value, or its removal by another client than Belfry.
type CalendarKey struct {
	Name string
	Rev  uint64
	// StoredMs is the time at which the stream's leader stored the change, in Unix milliseconds.
	StoredMs int64
	Value    []byte
	Removed  bool
}

// NewCalendars makes Calendars, which know no calendar until the first RefreshCalendars.
func NewCalendars(keys CalendarKeys, clock CopyClock, log zerolog.Logger) *Calendars {
	return &Calendars{keys: keys, log: log, copy: freshCopy[*CalendarSet]{source: calendarSource{keys}, clock: clock, period: CalendarFresh}}
}

// calendarSource reads calendars for a copy.
type calendarSource struct{ keys CalendarKeys }

func (c calendarSource) empty() *CalendarSet { return newCalendarSet() }
func (c calendarSource) what() string        { return "calendars" }

func (c calendarSource) last(ctx context.Context) (uint64, error) { return c.keys.LastCalendar(ctx) }

func (c calendarSource) has(ctx context.Context, seq uint64) (bool, error) {
	return c.keys.HasCalendar(ctx, seq)
}

func (c calendarSource) readAfter(ctx context.Context, from *CalendarSet) (*CalendarSet, error) {
	set := &CalendarSet{Seq: from.Seq, all: maps.Clone(from.all)}
	err := c.keys.EachCalendar(ctx, from.Seq, func(k CalendarKey) {
		set.Seq = k.Rev
		set.apply(k)
	})
	return set, err
}

func (s *CalendarSet) sequence() uint64    { return s.Seq }
func (s *CalendarSet) includes(seq uint64) { s.Seq = seq }

// calendarBucket is bucket calendars in JetStream.
type calendarBucket struct {
	jet *jet.Client
	// moved is Config.Moved.
	moved func(time.Time) time.Time
}

func newCalendars(c *jet.Client, moved func(time.Time) time.Time, log zerolog.Logger) *Calendars {
	return NewCalendars(calendarBucket{c, moved}, CopyClock{Now: time.Now, Pause: pause.For}, log)
}

// LastCalendar implements CalendarKeys.
func (b calendarBucket) LastCalendar(ctx context.Context) (uint64, error) {
	info, err := b.jet.LeaderInfo(ctx, calendarsStream)
	return info.State.LastSeq, err
}

// EachCalendar implements CalendarKeys.
func (b calendarBucket) EachCalendar(ctx context.Context, after uint64, fn func(CalendarKey)) error {
	return b.jet.Scan(ctx, calendarsStream, jet.Range{AfterSeq: after}, func(m jet.Msg) (bool, error) {
		fn(CalendarKey{Name: strings.TrimPrefix(m.Subject, calendarsPrefix), Rev: m.Sequence, StoredMs: at(b.moved, m.Time).UnixMilli(), Value: m.Data, Removed: jet.HasOperation(&m)})
		return true, nil
	})
}

// HasCalendar implements CalendarKeys.
func (b calendarBucket) HasCalendar(ctx context.Context, seq uint64) (bool, error) {
	return b.jet.Has(ctx, calendarsStream, seq)
}

// PutCalendarKey implements CalendarKeys.
func (b calendarBucket) PutCalendarKey(ctx context.Context, name string, value []byte, rev uint64) (uint64, error) {
	return b.jet.Put(ctx, calendarsPrefix+name, value, rev, 0)
}

// Calendar is a stored calendar.
type Calendar struct {
	Name string `json:"-"`
	// Rev is the sequence in the bucket's stream.
	Rev uint64 `json:"-"`
	// Dates lists the dates in order: 2027-12-25, or *-12-25 for every year.
	Dates []string `json:"dates,omitempty"`
	// AtMs is the time of the last change, in Unix milliseconds. By names the caller.
	AtMs int64  `json:"at"`
	By   string `json:"by,omitempty"`
}

// storedCalendar is the value of a calendar's key: JSON with a checksum.
type storedCalendar struct {
	Version int  `json:"v"`
	Deleted bool `json:"deleted,omitempty"`
	Calendar
}

func encodeCalendar(c storedCalendar) ([]byte, error) {
	c.Version = calendarVersion
	return marshalSummed(c)
}

// decodeCalendar reads a calendar. It returns schemas.ErrNewer for a value of a newer version,
// and schemas.ErrDamaged for anything else that is not a calendar.
func decodeCalendar(name string, b []byte) (storedCalendar, calendar.Dates, error) {
	var c struct {
		storedCalendar
		Sum uint32 `json:"sum"`
	}
	bad := func(err error) (storedCalendar, calendar.Dates, error) {
		return storedCalendar{}, calendar.Dates{}, schemas.Errorf(schemas.CodeDamaged, "calendar %s is damaged: %w: put it again", name, err)
	}
	if err := json.Unmarshal(b, &c); err != nil {
		return bad(err)
	}
	if c.Version > calendarVersion {
		return storedCalendar{}, calendar.Dates{}, schemas.Errorf(schemas.CodeUnknownFormat, "calendar %s has format version %d; this version of belfry reads %d: upgrade this node", name, c.Version, calendarVersion)
	}
	if has, right := checkSum(b, c.Sum); !has || !right {
		return bad(errors.New("its checksum does not match"))
	}
	dates, err := calendar.NewDates(name, c.Dates...)
	if err != nil {
		return bad(err)
	}
	return c.storedCalendar, dates, nil
}

// CalendarSet is one copy of all calendars. It is immutable and safe for concurrent use.
type CalendarSet struct {
	// Seq is the last sequence of the bucket's stream that the copy includes; 0 if there has
	// never been a calendar.
	Seq uint64
	all map[string]calendarCopy

	mu sync.Mutex
	// joined caches results of Exclusions by the names, joined with commas; at most maxJoined.
	joined map[string]*calendar.Exclusions
}

// maxJoined bounds the combinations of calendars that a copy caches.
const maxJoined = 1000

// calendarCopy is one calendar of a CalendarSet.
type calendarCopy struct {
	Calendar
	dates calendar.Dates
	// storedMs is CalendarKey.StoredMs. A change that is not stored yet (With) is newer than all.
	storedMs int64
	deleted  bool
	err      error // for a value that cannot be read
}

// Get returns a calendar; false if it does not exist or cannot be read.
func (s *CalendarSet) Get(name string) (Calendar, bool) {
	c, ok := s.all[name]
	return c.Calendar, ok && !c.deleted && c.err == nil
}

// Err returns the reason why a calendar cannot be read: schemas.ErrDamaged or schemas.ErrNewer.
// It is nil for a calendar that can be read, or that does not exist.
func (s *CalendarSet) Err(name string) error { return s.all[name].err }

// Names returns the names of the calendars, in order, also of damaged and of newer ones.
func (s *CalendarSet) Names() []string {
	var names []string
	for name, c := range s.all {
		if !c.deleted {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Problems returns a sentence for each calendar that cannot be read, and for each calendar that does
// not exist although a schedule of these nodes waits for it.
func (s *CalendarSet) Problems(nodes []Member) []string {
	var out []string
	for _, name := range s.Names() {
		if err := s.Err(name); err != nil {
			out = append(out, fmt.Sprintf("schedules that exclude calendar %s wait: %v", name, err))
		}
	}
	named := map[string]bool{}
	for _, n := range nodes {
		for _, w := range n.Presence.Waits {
			if named[w.Calendar] || s.Missing([]string{w.Calendar}) == "" {
				continue // it has been put since
			}
			named[w.Calendar] = true
			out = append(out, fmt.Sprintf("schedules that exclude calendar %[1]s wait, such as %[2]s: there is no calendar %[1]s: make it with \"belfry calendar put\", or update the schedules", w.Calendar, w.Schedule))
		}
	}
	return out
}

// Exclusions returns the dates of several calendars together. Schedules that exclude the same
// calendars share the result. Errors: schemas.CodeInvalidAttribute for a calendar that does not
// exist, schemas.ErrDamaged and schemas.ErrNewer for a calendar that cannot be read.
func (s *CalendarSet) Exclusions(names []string) (*calendar.Exclusions, error) {
	key := strings.Join(names, ",")
	s.mu.Lock()
	defer s.mu.Unlock()
	if x, ok := s.joined[key]; ok {
		return x, nil
	}
	dates := make([]calendar.Dates, 0, len(names))
	var revision uint64
	var sinceMs int64
	for _, name := range names {
		c, ok := s.all[name]
		switch {
		case !ok || c.deleted:
			return nil, schemas.Errorf(schemas.CodeInvalidAttribute, "%s: there is no calendar %s: make it with \"belfry calendar put %s --date 2027-12-25\", then try again", schemas.AttrExclude, name, name)
		case c.err != nil:
			return nil, c.err
		}
		dates, revision, sinceMs = append(dates, c.dates), max(revision, c.Rev), max(sinceMs, c.storedMs)
	}
	x := calendar.Join(dates...)
	x.Revision, x.SinceMs = revision, sinceMs
	if s.joined == nil {
		s.joined = map[string]*calendar.Exclusions{}
	}
	if len(s.joined) < maxJoined {
		s.joined[key] = x
	}
	return x, nil
}

// Missing returns the first of several calendars that does not exist; "" if all exist.
func (s *CalendarSet) Missing(names []string) string {
	for _, name := range names {
		if c, ok := s.all[name]; !ok || c.deleted {
			return name
		}
	}
	return ""
}

// newCalendarSet returns the copy of an empty bucket.
func newCalendarSet() *CalendarSet { return &CalendarSet{all: map[string]calendarCopy{}} }

// With returns a changed copy, in which one calendar has the given dates. The calendar's
// revision there is higher than every revision in the store. Error: schemas.CodeBadRequest for
// dates that are not valid.
func (s *CalendarSet) With(name string, dates []string) (*CalendarSet, error) {
	next := &CalendarSet{Seq: s.Seq + 1, all: maps.Clone(s.all)}
	d, err := calendar.NewDates(name, dates...)
	if err != nil {
		return nil, schemas.Errorf(schemas.CodeBadRequest, "%w", err)
	}
	next.all[name] = calendarCopy{Calendar: Calendar{Name: name, Rev: next.Seq, Dates: dates}, dates: d, storedMs: math.MaxInt64}
	return next, nil
}

// CalendarsNow returns the node's copy of the calendars without a request; nil before the
// first reading. fresh reports whether decisions may follow the copy.
func (k *Calendars) CalendarsNow() (set *CalendarSet, fresh bool) { return k.copy.now() }

// RefreshCalendars brings the node's copy up to date. It returns a copy that includes every
// change that was stored before the call. Errors: schemas.ErrUnavailable.
func (k *Calendars) RefreshCalendars(ctx context.Context) (*CalendarSet, error) {
	return k.copy.refresh(ctx)
}

// apply applies one change.
func (s *CalendarSet) apply(k CalendarKey) {
	if k.Removed {
		s.all[k.Name] = calendarCopy{Calendar: Calendar{Name: k.Name, Rev: k.Rev}, deleted: true}
		return
	}
	stored, dates, err := decodeCalendar(k.Name, k.Value)
	c := calendarCopy{Calendar: stored.Calendar, dates: dates, storedMs: k.StoredMs, deleted: stored.Deleted, err: err}
	c.Name, c.Rev = k.Name, k.Rev
	s.all[k.Name] = c
}

// Run keeps the node's copy fresh until ctx ends.
func (k *Calendars) Run(ctx context.Context) {
	k.copy.keep(ctx, calendarPoll, CalendarFresh, k.log, "calendars cannot be read: schedules that exclude dates wait", "calendars can be read again")
}

// PutCalendar stores a calendar by compare-and-set. It returns the new revision CalendarFresh
// after the write, when the change is in force on all nodes. rev is the revision to replace; 0
// for a calendar that must not exist. Errors: ErrRevision; schemas.CodeBadRequest for an
// invalid name or date, and for too many calendars or dates; schemas.ErrNewer for a calendar
// that a newer version of Belfry has written; schemas.ErrStoreFull; schemas.ErrUnavailable,
// after which the change may be stored.
func (k *Calendars) PutCalendar(ctx context.Context, c Calendar, rev uint64) (uint64, error) {
	if err := CheckCalendarName(c.Name); err != nil {
		return 0, err
	}
	c.Dates = slices.Compact(slices.Sorted(slices.Values(c.Dates)))
	if _, err := calendar.NewDates(c.Name, c.Dates...); err != nil {
		return 0, schemas.Errorf(schemas.CodeBadRequest, "%w", err)
	}
	set, err := k.RefreshCalendars(ctx)
	if err != nil {
		return 0, err
	}
	if err := set.Err(c.Name); errors.Is(err, schemas.ErrNewer) {
		return 0, err
	}
	if old, known := set.all[c.Name]; (!known || old.deleted) && len(set.Names()) >= MaxStoredCalendars {
		return 0, schemas.Errorf(schemas.CodeBadRequest, "there are %d calendars, which is the limit: delete one, or join some", MaxStoredCalendars)
	}
	return k.write(ctx, set, storedCalendar{Calendar: c}, rev)
}

// DeleteCalendar removes a calendar by compare-and-set. It waits and fails like PutCalendar.
// The caller checks that no schedule excludes the calendar.
func (k *Calendars) DeleteCalendar(ctx context.Context, c Calendar, rev uint64) (uint64, error) {
	set, err := k.RefreshCalendars(ctx)
	if err != nil {
		return 0, err
	}
	c.Dates = nil
	return k.write(ctx, set, storedCalendar{Calendar: c, Deleted: true}, rev)
}

// write writes a calendar's key and waits CalendarFresh. For a deleted calendar the caller
// passes rev 0; write then replaces the revision of the deletion.
func (k *Calendars) write(ctx context.Context, set *CalendarSet, c storedCalendar, rev uint64) (uint64, error) {
	switch old, ok := set.all[c.Name]; {
	case !ok:
	case old.Rev != rev && (rev != 0 || !old.deleted):
		return 0, ErrRevision
	default:
		rev = old.Rev
	}
	b, err := encodeCalendar(c)
	if err != nil {
		return 0, err
	}
	next, err := k.keys.PutCalendarKey(ctx, c.Name, b, rev)
	if err != nil {
		return 0, err
	}
	if err := k.copy.acknowledge(ctx, "calendar "+c.Name); err != nil {
		return 0, err
	}
	return next, nil
}

// CheckCalendarName returns an error of schemas.CodeBadRequest for a name that a calendar
// cannot have.
func CheckCalendarName(name string) error {
	if schemas.ValidService(name) {
		return nil
	}
	return schemas.Errorf(schemas.CodeBadRequest, "calendar name %.80q must be 1 to %d letters, digits, '-' or '_'", name, schemas.MaxServiceLength)
}
