package schemas

import (
	"strconv"
	"strings"
	"time"

	"github.com/sosodev/duration"
)

// Extension attributes that an add may carry.
const (
	AttrAt          = "timerat"
	AttrAfter       = "timerafter"
	AttrService     = "timersvc"
	AttrCallback    = "timercallback"
	AttrMaxAttempts = "timermaxattempts"
	AttrBackoff     = "timerbackoff"
	AttrTimeout     = "timertimeout"
	AttrGroup       = "timergroup"
)

// Extension attributes that Belfry adds to an event when it fires, or dies.
const (
	AttrScheduled = "timerscheduled"
	AttrFired     = "timerfired"
	AttrRun       = "timerrun"
	AttrAttempt   = "timerattempt"
	AttrErrorCode = "timererrorcode"
	AttrErrorData = "timererrordata"
)

// attributePrefix is reserved to Belfry, so that a misspelt attribute is an
// error rather than a timer that does something else.
const attributePrefix = "timer"

var (
	inputAttributes  = []string{AttrAt, AttrAfter, AttrService, AttrCallback, AttrMaxAttempts, AttrBackoff, AttrTimeout, AttrGroup}
	outputAttributes = []string{AttrScheduled, AttrFired, AttrRun, AttrAttempt, AttrErrorCode, AttrErrorData}
	// laterAttributes belong to the contract and are not served yet. They are
	// refused: a recurring timer must not fire once and be forgotten.
	laterAttributes = []string{"timercron", "timerevery", "timertz", "timerstart", "timerend", "timerlimit", "timermisfire", "timergrace", "timerjitter"}
)

// Defaults of the retry policy, and bounds of what an add may ask for.
const (
	DefaultMaxAttempts  = 12
	DefaultBackoffFirst = time.Second
	DefaultBackoffTo    = 10 * time.Minute
	DefaultTimeout      = 30 * time.Second
	MinBackoff          = 10 * time.Millisecond
	MinTimeout          = 10 * time.Millisecond

	DefaultLimitPayload  = 1<<20 - payloadReserve
	DefaultLimitHorizon  = 10 * 366 * 24 * time.Hour
	DefaultLimitAttempts = 1000
	DefaultLimitTimeout  = 15 * time.Minute
	DefaultLimitBackoff  = 24 * time.Hour

	// payloadReserve is the room that Belfry's own headers and attributes, and the
	// record's fields, take of a message.
	payloadReserve = 16 << 10

	// MaxAttributeLength bounds the value of one context attribute, in bytes.
	MaxAttributeLength = 2048
	// MaxNameLength bounds an attribute's name.
	MaxNameLength = 64
	// MaxAttributes bounds how many attributes an event has.
	MaxAttributes = 64
	// MaxGroupLength bounds timergroup, in bytes.
	MaxGroupLength = 128
)

// Limits bounds what an add may ask for. The zero value of a field means its default.
type Limits struct {
	// MaxPayload bounds headers and data together, in bytes.
	MaxPayload int
	// MaxHorizon is how far ahead of the add a timer may be due.
	MaxHorizon  time.Duration
	MaxAttempts uint32
	// MaxTimeout bounds one callback attempt.
	MaxTimeout time.Duration
	// MaxBackoff bounds the delay between attempts.
	MaxBackoff time.Duration
}

func (l Limits) withDefaults() Limits {
	if l.MaxPayload <= 0 {
		l.MaxPayload = DefaultLimitPayload
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

// Spec is what an event's timer attributes ask for, validated, defaults filled in.
type Spec struct {
	Timer                   TimerID
	EventID, Source, Type   string
	DueMs                   int64 // Unix milliseconds
	Service, Group          string
	Callback                string // "" means: only publish
	MaxAttempts             uint32
	BackoffFirst, BackoffTo time.Duration
	Timeout                 time.Duration
	Hash                    [16]byte
}

// Fired is what Belfry adds to an event when it is due.
type Fired struct {
	ScheduledMs, FiredMs int64
	Run, Attempt         uint32
}

func badAttribute(name, value, format string, args ...any) *Error {
	e := Errorf(CodeInvalidAttribute, format, args...)
	e.Msg = name + " " + strconv.Quote(clip(value, 80)) + ": " + e.Msg
	return e
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// ParseTime reads an RFC 3339 time as Unix milliseconds; what is finer is
// rounded up, so that nothing is early.
func ParseTime(s string) (int64, error) {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return 0, Errorf(CodeInvalidAttribute, "not an RFC 3339 time such as 2026-12-24T18:00:00.000Z")
	}
	ms := t.Unix()*1000 + int64(t.Nanosecond()+999_999)/1_000_000
	if ms < 0 {
		return 0, Errorf(CodeInvalidAttribute, "a time before 1970")
	}
	return ms, nil
}

// ParseDuration reads a Go duration (1h30m, 250ms) or an ISO 8601 one of days
// and less (PT10S, P1DT2H). Months and years have no fixed length and are refused.
func ParseDuration(s string) (time.Duration, error) {
	bad := Errorf(CodeInvalidAttribute, "not a duration such as 10s, 1h30m or PT10S")
	if len(s) > 64 {
		return 0, bad
	}
	if !strings.HasPrefix(s, "P") && !strings.HasPrefix(s, "-P") {
		d, err := time.ParseDuration(s)
		if err != nil {
			return 0, bad
		}
		return d, nil
	}
	d, err := duration.Parse(s)
	if err != nil {
		return 0, bad
	}
	if d.Years != 0 || d.Months != 0 {
		return 0, Errorf(CodeInvalidAttribute, "years and months have no fixed length; use days, or timerat")
	}
	seconds := ((d.Weeks*7+d.Days)*24+d.Hours)*3600 + d.Minutes*60 + d.Seconds
	if !(seconds >= 0 && seconds < float64(1<<63-1)/1e9) {
		return 0, Errorf(CodeInvalidAttribute, "out of range")
	}
	out := time.Duration(seconds * 1e9)
	if d.Negative {
		out = -out
	}
	return out, nil
}

// parseBackoff reads "first" or "first..cap".
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

// FormatTime is RFC 3339 in UTC with milliseconds.
func FormatTime(ms int64) string {
	return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z")
}
