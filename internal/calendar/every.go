package calendar

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

const attrEvery = "timerevery"

const (
	// MinPeriod is the shortest elapsed period.
	MinPeriod = time.Second
	// maxPeriodDays bounds all periods: 100 years. Sums of times stay far from overflow.
	maxPeriodDays = 36_525
	// maxEveryLength bounds the text of a period, in bytes.
	maxEveryLength = 64
)

// unit is the unit of a period.
type unit uint8

const (
	unitElapsed unit = iota // milliseconds of real time
	unitDays                // days on the wall clock
	unitMonths              // months on the wall clock
)

// every is a compiled period: runs are at start + n × count units, for n ≥ 0.
type every struct {
	unit    unit
	count   int64
	startMs int64
	// localMs is startMs on the wall clock.
	localMs int64
	// year, month and day are the date of localMs.
	year, month, day int
}

// elapsedNext returns the first run of an elapsed period at or after an instant.
func (e *every) elapsedNext(ms int64) int64 {
	return e.startMs + max(0, ceilDiv(ms-e.startMs, e.count))*e.count
}

// next returns the first local time of a wall-clock period in [from, to).
func (e *every) next(fromMs, toMs int64) (int64, bool) {
	if fromMs >= toMs {
		return 0, false
	}
	fromMs = max(fromMs, e.localMs)
	at := e.localMs + ceilDiv(fromMs-e.localMs, e.count*dayMs)*e.count*dayMs
	if e.unit == unitMonths {
		year, month, _ := civil(dayOf(fromMs))
		n := (int64(year-e.year)*12 + int64(month-e.month)) / e.count
		if at = e.months(n); at < fromMs {
			at = e.months(n + 1)
		}
	}
	return at, at < toMs
}

// months returns the local time n periods of months after the start. A day that the month
// does not have becomes its last day.
func (e *every) months(n int64) int64 {
	month := int64(e.year)*12 + int64(e.month-1) + n*e.count
	y, m := int(floorDiv(month, 12)), int(month-floorDiv(month, 12)*12)+1
	return dayOfDate(y, m, min(e.day, daysIn(y, m)))*dayMs + e.localMs - dayOf(e.localMs)*dayMs
}

// parseEvery compiles a period that starts at an instant.
func parseEvery(text string, startMs int64, z *zone) (every, error) {
	e := every{startMs: startMs, localMs: z.localMs(startMs)}
	e.year, e.month, e.day = civil(dayOf(e.localMs))
	var err *Error
	switch {
	case len(text) > maxEveryLength:
		err = badPeriod(text, whole, fmt.Sprintf("longer than %d characters", maxEveryLength), "write one number and one unit, for example PT15M")
	case strings.HasPrefix(text, "P") && !strings.HasPrefix(text, "PT"):
		err = e.parseCalendar(text)
	default:
		err = e.parseElapsed(text)
	}
	if err != nil {
		return every{}, err
	}
	return e, nil
}

func badPeriod(text string, offset int, reason, instead string) *Error {
	return &Error{attrEvery, text, offset, reason, instead}
}

// parseCalendar parses P2W, P1D, P1M and P1Y: one kind of unit, days or months.
func (e *every) parseCalendar(text string) *Error {
	const write = "write a number and a unit: P1D, P2W, P1M or P1Y"
	e.unit = unitDays
	days, months := int64(0), int64(0)
	for rest := text[1:]; rest != ""; {
		offset := len(text) - len(rest)
		n := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
		if rest[0] == 'T' {
			return badPeriod(text, offset, "days on the wall clock and hours of elapsed time cannot be one period", "write PT36H for elapsed time, or P1D and the time of day in timerstart")
		}
		if n > 0 && (rest[n] == '.' || rest[n] == ',') {
			return badPeriod(text, offset, "days and longer units take whole numbers", "write PT36H instead of P1.5D")
		}
		value, ok := 0, false
		if n > 0 {
			value, ok = number(rest[:n])
		}
		if !ok {
			return badPeriod(text, offset, "not an ISO 8601 duration", write)
		}
		switch rest[n] {
		case 'D':
			days += int64(value)
		case 'W':
			days += 7 * int64(value)
		case 'M':
			months += int64(value)
		case 'Y':
			months += 12 * int64(value)
		default:
			return badPeriod(text, offset+n, fmt.Sprintf("%q is not a unit", rest[n:n+1]), write)
		}
		rest = rest[n+1:]
	}
	switch e.count = days; {
	case months > 0 && days > 0:
		return badPeriod(text, whole, "months and days cannot be one period, because months differ in length", "write either P1M or P30D")
	case months > 0:
		e.unit, e.count = unitMonths, months
	case days == 0:
		return badPeriod(text, whole, "the period is empty", write)
	}
	if max(days, months*31) > maxPeriodDays {
		return badPeriod(text, whole, "the period is longer than 100 years", "add a one-shot timer with timerat")
	}
	return nil
}

// elapsed returns a number of days or weeks, such as 2w, in hours; 24h as an example for anything else.
func elapsed(text string) string {
	hours := map[byte]int{'d': 24, 'w': 7 * 24}[text[len(text)-1]|0x20]
	n, ok := number(text[:len(text)-1])
	if hours == 0 || !ok {
		return "a number of hours such as 24h"
	}
	return fmt.Sprintf("%dh", n*hours)
}

// isoClock is the shape of an ISO 8601 duration without a date part.
var isoClock = regexp.MustCompile(`^PT([0-9]+H)?([0-9]+M)?([0-9]+([.,][0-9]+)?S)?$`)

// parseElapsed parses PT336H, PT90M, 90m and 1h30m.
func (e *every) parseElapsed(text string) *Error {
	const write = "write a duration such as 90m or PT90M, or P1D for days on the wall clock"
	short := text
	if isoClock.MatchString(text) {
		short = strings.ToLower(strings.ReplaceAll(text[2:], ",", "."))
	}
	d, parseErr := time.ParseDuration(short)
	switch {
	case text == "":
		return badPeriod(text, whole, "the period is empty", write)
	case strings.Count(strings.TrimSpace(text), " ") >= 4 || strings.ContainsAny(text, "*@"):
		return badPeriod(text, whole, "this is a cron expression", "write it in timercron")
	case strings.HasPrefix(text, "-"):
		return badPeriod(text, 0, "the period is negative", write)
	case strings.Trim(text, "0123456789.") == "":
		return badPeriod(text, len(text), "a number without a unit", fmt.Sprintf("write %ss for seconds or %sm for minutes", text, text))
	case parseErr != nil && strings.Trim(text, "0123456789dwyDWY") == "":
		return badPeriod(text, len(text)-1, "days and longer units are written as in ISO 8601", "write P"+strings.ToUpper(text)+" for steps on the wall clock, or "+elapsed(text)+" for elapsed time")
	case parseErr != nil && strings.HasPrefix(text, "p"):
		return badPeriod(text, 0, "ISO 8601 has capital letters", "write "+strings.ToUpper(text))
	case parseErr != nil:
		return badPeriod(text, whole, "not a duration", write)
	case d < MinPeriod:
		return badPeriod(text, whole, "the period is shorter than 1s", "write 1s or more")
	case d%time.Millisecond != 0:
		return badPeriod(text, whole, "the period is finer than a millisecond", "round it to milliseconds")
	case d > maxPeriodDays*24*time.Hour:
		return badPeriod(text, whole, "the period is longer than 100 years", "add a one-shot timer with timerat")
	}
	e.count = d.Milliseconds()
	return nil
}
