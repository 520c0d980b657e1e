package calendar

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// Describe says in words when the schedule runs, for example "At 02:30 on the last weekday of
// the month, Europe/Berlin".
func (s *Schedule) Describe() string {
	var b strings.Builder
	if s.cron != nil {
		b.WriteString(s.cron.times())
		b.WriteString(s.cron.dates())
	} else {
		b.WriteString(s.every.describe())
	}
	b.WriteString(", " + s.zone.name)
	if s.cron != nil && s.spec.StartMs != 0 {
		b.WriteString("; from " + formatUTC(s.startMs))
	}
	if s.spec.EndMs != 0 {
		b.WriteString("; until " + formatUTC(s.endMs))
	}
	if s.jitterMs > 0 {
		b.WriteString("; up to " + durationText(s.jitterMs) + " later")
	}
	if n := s.exclude.count; n > 0 {
		var names []string
		for _, c := range s.exclude.calendars {
			names = append(names, c.name)
		}
		fmt.Fprintf(&b, "; not on %s of %s", count(n, "date"), join(names))
		switch s.exclude.shift {
		case shiftNext:
			b.WriteString(", then on the next date")
		case shiftPrevious:
			b.WriteString(", then on the previous date")
		}
	}
	return b.String()
}

// maxListedTimes is the number of times of day that Describe lists one by one.
const maxListedTimes = 6

// times describes the times of day.
func (c *cron) times() string {
	hours, minutes, seconds := bits.OnesCount32(c.hour), bits.OnesCount64(c.minute), bits.OnesCount64(c.second)
	if seconds == 1 && hours < 24 && hours*minutes <= maxListedTimes {
		var list []string
		for at, ok := c.timeOfDay(0); ok; at, ok = c.timeOfDay(at + 1) {
			if list = append(list, clock(int64(at)*secondMs)); at == dayMs/secondMs-1 {
				break
			}
		}
		return "At " + join(list)
	}
	text := ""
	if c.second != 1 {
		text = every64(c.second, "second", 60) + " of "
	}
	switch {
	case text != "" && seconds == 60 && minutes == 60:
		text = "every second"
	case minutes < 60 || hours < 24 || text == "":
		text += every64(c.minute, "minute", 60)
	default:
		text += "every minute"
	}
	switch _, even := evenStep(c.minute, 60); {
	case hours < 24:
		text += " of " + every64(uint64(c.hour), "hour", 24)
	case minutes < 60 && !even:
		text += " of every hour"
	}
	if !strings.HasPrefix(text, "every") {
		return "At " + text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// every64 describes a set of values of one field: "every minute", "every 15 minutes", "minute 5"
// or "minutes 0 and 7".
func every64(set uint64, name string, size int) string {
	if step, ok := evenStep(set, size); ok {
		if step == 1 {
			return "every " + name
		}
		return fmt.Sprintf("every %d %ss", step, name)
	}
	list := ranges(set, strconv.Itoa)
	if len(list) == 1 && bits.OnesCount64(set) == 1 {
		return name + " " + list[0]
	}
	return name + "s " + join(list)
}

// evenStep returns the distance of the values if they start at 0 and stay even across the end
// of the field.
func evenStep(set uint64, size int) (int, bool) {
	n := bits.OnesCount64(set)
	if n < 2 || set&1 == 0 || size%n != 0 {
		return 0, false
	}
	step := size / n
	for v := 0; v < size; v += step {
		if set&(1<<v) == 0 {
			return 0, false
		}
	}
	return step, true
}

// ranges lists the values of a set. Three or more in a row become "1 to 5".
func ranges(set uint64, name func(int) string) []string {
	var list []string
	for set != 0 {
		from := bits.TrailingZeros64(set)
		length := bits.TrailingZeros64(^(set >> from))
		switch length {
		case 1:
			list = append(list, name(from))
		case 2:
			list = append(list, name(from), name(from+1))
		default:
			list = append(list, name(from)+" to "+name(from+length-1))
		}
		set = set >> (from + length) << (from + length)
	}
	return list
}

// dates describes the days and months.
func (c *cron) dates() string {
	d, text := &c.days, ""
	switch {
	case d.anyMonth && d.anyWeek:
	case d.anyWeek:
		text = " on " + d.monthDays()
	case d.anyMonth:
		text = " on " + d.weekDays()
	case d.either:
		text = " on " + d.monthDays() + " or on " + d.weekDays()
	default:
		text = " on " + d.monthDays() + " if it is " + d.weekDays()
	}
	if c.month == 1<<13-2 {
		return text
	}
	months := join(ranges(uint64(c.month), func(m int) string { return time.Month(m).String() }))
	if text == "" {
		return " on every day of " + months
	}
	if strings.Contains(text, " of the month") {
		return strings.ReplaceAll(text, " of the month", " of "+months)
	}
	return text + " in " + months
}

// monthDays describes the day-of-month field.
func (d *days) monthDays() string {
	list := ranges(uint64(d.month), ordinal)
	for i := range list {
		list[i] = "the " + list[i]
	}
	for rest := d.nearest; rest != 0; rest &= rest - 1 {
		list = append(list, "the weekday nearest to the "+ordinal(bits.TrailingZeros32(rest)))
	}
	for rest := d.fromLast; rest != 0; rest &= rest - 1 {
		if n := bits.TrailingZeros32(rest); n == 0 {
			list = append(list, "the last day")
		} else {
			list = append(list, "the "+ordinal(n)+" day before the last day")
		}
	}
	if d.lastWeekday {
		list = append(list, "the last weekday")
	}
	return join(list) + " of the month"
}

// weekDays describes the day-of-week field.
func (d *days) weekDays() string {
	name := func(w int) string { return time.Weekday(w % 7).String() }
	// A week begins on Monday here, so that Saturday and Sunday are adjacent.
	list := ranges(uint64(d.week&^1)|uint64(d.week&1)<<7, name)
	var ofMonth []string
	for rest := d.nth; rest != 0; rest &= rest - 1 {
		n := bits.TrailingZeros64(rest)
		ofMonth = append(ofMonth, "the "+[...]string{"first", "second", "third", "fourth", "fifth"}[n%5]+" "+name(n/5))
	}
	for rest := d.lastWeek; rest != 0; rest &= rest - 1 {
		ofMonth = append(ofMonth, "the last "+name(bits.TrailingZeros8(rest)))
	}
	if len(ofMonth) > 0 {
		list = append(list, join(ofMonth)+" of the month")
	}
	return join(list)
}

// describe describes a period.
func (e *every) describe() string {
	at := " at " + clock(e.localMs-dayOf(e.localMs)*dayMs) + " from " + date(e.localMs)
	switch {
	case e.unit == unitElapsed:
		return "Every " + durationText(e.count) + " of elapsed time from " + formatUTC(e.startMs)
	case e.unit == unitDays && e.count%7 == 0:
		return "Every " + times(e.count/7, "week") + " on " + time.Weekday(weekday(dayOf(e.localMs))).String() + at
	case e.unit == unitDays:
		return "Every " + times(e.count, "day") + at
	}
	short := ""
	if e.day > 28 {
		short = ", or the last day of a shorter month,"
	}
	if e.count%12 == 0 {
		return fmt.Sprintf("Every %s on %s %d%s", times(e.count/12, "year"), time.Month(e.month), e.day, short) + at
	}
	return fmt.Sprintf("Every %s on the %s%s", times(e.count, "month"), ordinal(e.day), short) + at
}

// times writes "week" or "2 weeks".
func times(n int64, name string) string {
	if n == 1 {
		return name
	}
	return fmt.Sprintf("%d %ss", n, name)
}

// count writes "1 day" or "2 days".
func count(n int, name string) string {
	if n == 1 {
		return "1 " + name
	}
	return fmt.Sprintf("%d %ss", n, name)
}

// ordinal writes 1st, 2nd, 3rd, 4th.
func ordinal(n int) string {
	suffix := "th"
	if n%100/10 != 1 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return strconv.Itoa(n) + suffix
}

// join writes "a", "a and b", "a, b and c".
func join(list []string) string {
	if len(list) == 0 {
		return ""
	}
	last := len(list) - 1
	if last == 0 {
		return list[0]
	}
	return strings.Join(list[:last], ", ") + " and " + list[last]
}
