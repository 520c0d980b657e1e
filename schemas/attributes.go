package schemas

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Extension attributes of an add. An add has exactly one of AttrAt, AttrAfter, AttrCron and
// AttrEvery; the others are optional.
const (
	AttrAt          = "timerat"          // due time, RFC 3339
	AttrAfter       = "timerafter"       // due time as a duration from the add, see ParseDuration
	AttrService     = "timersvc"         // service, see ValidService; DefaultService if absent
	AttrCallback    = "timercallback"    // URL, nats:<subject> or path to call, see CheckCallback
	AttrMaxAttempts = "timermaxattempts" // attempts before the run becomes a dead letter
	AttrBackoff     = "timerbackoff"     // delays between attempts: first, or first..cap
	AttrTimeout     = "timertimeout"     // limit of one attempt, a duration
	AttrGroup       = "timergroup"       // label to filter lists by, at most MaxGroupLength bytes
)

// Extension attributes that Belfry adds to an event that it publishes. AttrErrorCode and
// AttrErrorData are only on dead letters and overdue events, AttrMissed and AttrTrigger only on the runs of
// schedules that have them.
const (
	AttrScheduled = "timerscheduled" // due time that the user asked for, RFC 3339; of a schedule's run the nominal time
	AttrFired     = "timerfired"     // time of firing, RFC 3339
	AttrRun       = "timerrun"       // number of the due occurrence, from 1
	AttrAttempt   = "timerattempt"   // number of finished callback attempts
	AttrErrorCode = "timererrorcode" // short reason of a dead letter
	AttrErrorData = "timererrordata" // details of that reason
	AttrMissed    = "timermissed"    // number of missed nominal times that the run stands for
	AttrTrigger   = "timertrigger"   // why the run fired at no due time: manual, backfill
	AttrOverdue   = "timeroverdue"   // deadline without a success, RFC 3339; only on overdue events
)

// attributePrefix is reserved for Belfry, so typos in attribute names are rejected
// instead of ignored.
const attributePrefix = "timer"

var (
	inputAttributes = []string{
		AttrAt, AttrAfter, AttrService, AttrCallback, AttrMaxAttempts, AttrBackoff, AttrTimeout, AttrGroup, AttrFlow, AttrKey,
		AttrCron, AttrEvery, AttrZone, AttrStart, AttrEnd, AttrLimit, AttrJitter, AttrDST, AttrDays, AttrMisfire, AttrGrace, AttrOverlap, AttrExpect, AttrExclude, AttrExcludeShift,
	}
	outputAttributes = []string{AttrScheduled, AttrFired, AttrRun, AttrAttempt, AttrErrorCode, AttrErrorData, AttrMissed, AttrTrigger, AttrOverdue}
)

// Defaults of the retry policy, and limits of the values in an add.
//
// The default attempts span at least DefaultSpan: 12 delays double from 1 s to
// 2,048 s (4,095 s in all), and 23 more of an hour each make 86,895 s. Jitter only adds.
const (
	DefaultMaxAttempts  = 36
	DefaultBackoffFirst = time.Second
	DefaultBackoffTo    = time.Hour
	// DefaultSpan is the minimum time between the first and the last attempt with the
	// default policy. A timer survives an outage of a day, or a deployment that is
	// repaired the next day.
	DefaultSpan    = 24 * time.Hour
	DefaultTimeout = 30 * time.Second
	MinBackoff     = 10 * time.Millisecond
	MinTimeout     = 10 * time.Millisecond

	// DefaultLimitMessage is nats-server's default max_payload.
	DefaultLimitMessage  = 1 << 20
	DefaultLimitPayload  = DefaultLimitMessage - PayloadReserve
	DefaultLimitHorizon  = 10 * 366 * 24 * time.Hour
	DefaultLimitAttempts = 1000
	DefaultLimitTimeout  = 15 * time.Minute
	DefaultLimitBackoff  = 24 * time.Hour

	// MaxAttributeLength bounds the value of one context attribute, in bytes.
	MaxAttributeLength = 2048
	// MaxNameLength bounds an attribute's name.
	MaxNameLength = 64
	// MaxAttributes bounds how many attributes an event has.
	MaxAttributes = 64
	// MaxGroupLength bounds timergroup, in bytes.
	MaxGroupLength = 128
)

// Limits bounds the values in an add. The zero value of a field means its default.
type Limits struct {
	// MaxPayload bounds headers and data together, in bytes. It is at most MaxMessage
	// less PayloadReserve.
	MaxPayload int
	// MaxMessage is JetStream's limit of headers and data of a message, in bytes: the
	// server's max_payload, or a stream's limit if that is lower.
	MaxMessage int
	// MaxHorizon is how far ahead of the add a timer may be due.
	MaxHorizon  time.Duration
	MaxAttempts uint32
	// MaxTimeout bounds one callback attempt.
	MaxTimeout time.Duration
	// MaxBackoff bounds the delay between attempts.
	MaxBackoff time.Duration
	// Tenant is the tenant that adds the event; "" for the default tenant.
	Tenant string
	// accepted is true for an event that was accepted before. Its callback is not checked
	// here again; each attempt checks it.
	accepted bool
}

func (l Limits) withDefaults() Limits {
	if l.MaxMessage <= 0 {
		l.MaxMessage = DefaultLimitMessage
	}
	if most := max(l.MaxMessage-PayloadReserve, 0); l.MaxPayload <= 0 || l.MaxPayload > most {
		l.MaxPayload = most
	}
	if l.MaxHorizon <= 0 {
		l.MaxHorizon = DefaultLimitHorizon
	}
	if l.MaxAttempts == 0 {
		l.MaxAttempts = DefaultLimitAttempts
	}
	if l.MaxTimeout <= 0 {
		l.MaxTimeout = DefaultLimitTimeout
	}
	if l.MaxBackoff <= 0 {
		l.MaxBackoff = DefaultLimitBackoff
	}
	return l
}

// Spec is the validated content of an event's timer attributes, with defaults filled in.
type Spec struct {
	Timer                 TimerID
	EventID, Source, Type string
	// DueMs is the due time in Unix milliseconds. For a schedule ParseAdd leaves it 0;
	// package internal/recurrence sets it to that of the first run.
	DueMs          int64
	Service, Group string
	Callback       string // "" for none: Belfry only publishes the event
	// Flow is the flow key that the event names; "" for the default, see FlowKey.
	Flow string
	// Key is the ordering key; "" for none, see AttrKey.
	Key string
	// Recurrence makes the timer a schedule; nil for a one-shot timer.
	Recurrence *Recurrence
	RetryPolicy
	Hash [16]byte // equal for repeated adds, see Record.Hash
}

// Fired holds the values of the attributes that Belfry adds to an event when it fires.
type Fired struct {
	ScheduledMs, FiredMs int64 // Unix milliseconds
	Run, Attempt         uint32
	// Missed and Trigger are those of a schedule's run; see Origin.
	Missed  uint32
	Trigger Trigger
	// OverdueMs is the deadline of an overdue event, 0 for all other events. An overdue event
	// has no AttrAttempt, and no AttrRun if Run is 0.
	OverdueMs int64
	// NoCallback removes timercallback from the event, because HeaderCallback has it.
	NoCallback bool
}

func badAttribute(name, value, format string, args ...any) *Error {
	e := Errorf(CodeInvalidAttribute, format, args...)
	e.Attribute = name
	e.Msg = name + " " + strconv.Quote(clip(value, 80)) + ": " + e.Msg
	return e
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// ParseTime parses an RFC 3339 time and returns Unix milliseconds. It rounds fractions of
// a millisecond up, so that no timer fires early. Its errors have CodeInvalidAttribute.
func ParseTime(s string) (int64, error) {
	t, err := parseTimestamp(s)
	if err != nil || !twoDigitHour(s) {
		return 0, Errorf(CodeInvalidAttribute, "not an RFC 3339 time such as 2026-12-24T18:00:00.000Z")
	}
	ms := t.Unix()*1000 + int64(t.Nanosecond()+999_999)/1_000_000
	if ms < 0 {
		return 0, Errorf(CodeInvalidAttribute, "a time before 1970")
	}
	return ms, nil
}

// ParseDuration parses a Go duration (1h30m, 250ms) or an ISO 8601 duration (PT10S,
// P1DT2H), in which the last number may have a fraction. It rejects ISO 8601 years and
// months, which have no fixed length. Its errors have CodeInvalidAttribute.
func ParseDuration(s string) (time.Duration, error) {
	unsigned := strings.TrimPrefix(s, "-")
	switch {
	case len(s) > maxDurationLength:
		return 0, badDuration("longer than %d characters", maxDurationLength)
	case strings.HasPrefix(unsigned, "P"):
		d, err := parseISO(unsigned)
		if unsigned != s {
			d = -d
		}
		return d, err
	}
	d, err := time.ParseDuration(s)
	switch {
	case err == nil:
		return d, nil
	case s != "" && strings.Trim(s, "+-.0123456789") == "":
		return 0, badDuration("a number without a unit, write 10s")
	case isGoDuration(s):
		return 0, badDuration("out of range")
	}
	return 0, badDuration("not a duration such as 10s, 1h30m or PT10S")
}

// maxDurationLength bounds the text of a duration.
const maxDurationLength = 64

func badDuration(format string, args ...any) error {
	return Errorf(CodeInvalidAttribute, format, args...)
}

// parseISO parses an ISO 8601 duration without a sign. Each designator must occur at most
// once and in order.
func parseISO(s string) (time.Duration, error) {
	malformed := func() error { return badDuration("not an ISO 8601 duration such as PT10S or P1DT2H") }
	date, clock, hasClock := strings.Cut(s[1:], "T")
	if hasClock && clock == "" || date == "" && !hasClock {
		return 0, badDuration("duration has no value; write PT0S for zero")
	}
	var total int64 // nanoseconds
	fraction := false
	for _, part := range [...]struct {
		text string
		list []isoUnit
	}{{date, isoDate}, {clock, isoClock}} {
		left := part.list
		for text := part.text; text != ""; {
			n := strings.IndexFunc(text, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
			if n <= 0 {
				return 0, malformed()
			}
			number, designator := text[:n], text[n]
			text = text[n+1:]
			at := slices.IndexFunc(left, func(u isoUnit) bool { return u.designator == designator })
			switch {
			case at < 0:
				return 0, malformed()
			case left[at].unit == "":
				return 0, badDuration("years and months have no fixed length; use days, or timerat")
			case fraction:
				return 0, badDuration("only the last number of an ISO 8601 duration has a fraction")
			}
			fraction = strings.Contains(number, ".")
			// Go's parser is exact to the nanosecond and detects overflow.
			d, err := time.ParseDuration(number + left[at].unit)
			switch {
			case err != nil && !isGoDuration(number+left[at].unit):
				return 0, malformed()
			case err != nil || int64(d) > (math.MaxInt64-total)/left[at].times:
				return 0, badDuration("out of range")
			}
			total += int64(d) * left[at].times
			left = left[at+1:]
		}
	}
	return time.Duration(total), nil
}

// isoUnit defines an ISO 8601 designator as a multiple of a unit of Go durations. An empty
// unit means that the designator has no fixed length.
type isoUnit struct {
	designator byte
	unit       string
	times      int64
}

var (
	isoDate  = []isoUnit{{'Y', "", 0}, {'M', "", 0}, {'W', "h", 7 * 24}, {'D', "h", 24}}
	isoClock = []isoUnit{{'H', "h", 1}, {'M', "m", 1}, {'S', "s", 1}}
)

// goDuration matches the syntax of Go durations. A text that matches, but that
// time.ParseDuration rejects, is out of range.
var goDuration = regexp.MustCompile(`^[-+]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`)

func isGoDuration(s string) bool { return goDuration.MatchString(s) }

// parseBackoff parses the delays "first" or "first..cap".
func parseBackoff(s string, limit time.Duration) (first, to time.Duration, err error) {
	a, b, ranged := strings.Cut(s, "..")
	if first, err = ParseDuration(a); err != nil {
		return 0, 0, err
	}
	to = max(first, min(DefaultBackoffTo, limit))
	if ranged {
		if to, err = ParseDuration(b); err != nil {
			return 0, 0, err
		}
	}
	switch {
	case first < MinBackoff:
		return 0, 0, Errorf(CodeInvalidAttribute, "the first delay must be %s or more", MinBackoff)
	case to < first:
		return 0, 0, Errorf(CodeInvalidAttribute, "the cap (%s) is below the first delay (%s)", to, first)
	case to > limit:
		return 0, 0, Errorf(CodeInvalidAttribute, "the limit is %s", limit)
	}
	return first, to, nil
}

// FormatTime formats Unix milliseconds as RFC 3339 in UTC with milliseconds.
func FormatTime(ms int64) string {
	var buf [32]byte
	return string(appendTime(buf[:0], ms))
}

// appendTime is FormatTime without the allocation. It avoids time.Format, which takes four
// times as long.
func appendTime(dst []byte, ms int64) []byte {
	t := time.UnixMilli(ms).UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	if year < 0 || year > 9999 {
		return t.AppendFormat(dst, "2006-01-02T15:04:05.000Z")
	}
	dst = append2(append2(dst, year/100), year%100)
	dst = append2(append(dst, '-'), int(month))
	dst = append2(append(dst, '-'), day)
	dst = append2(append(dst, 'T'), hour)
	dst = append2(append(dst, ':'), minute)
	dst = append2(append(dst, ':'), second)
	milli := t.Nanosecond() / 1_000_000
	return append(append2(append(dst, '.', byte('0'+milli/100)), milli%100), 'Z')
}

// append2 appends two digits.
func append2(dst []byte, n int) []byte { return append(dst, byte('0'+n/10), byte('0'+n%10)) }
