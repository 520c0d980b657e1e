package calendar

import "math/bits"

// cron is a compiled cron expression: bit sets of matching values. Bit n stands for value n.
type cron struct {
	second, minute uint64
	hour           uint32
	month          uint16
	days           days
	// wildcard: the minute or hour field begins with "*". Such a schedule follows real time
	// through changes of the offset.
	wildcard bool
	// withSeconds: the expression has six fields.
	withSeconds bool
}

// days says which days of a month match.
type days struct {
	// Day of month: explicit days; LW; L-n as bit n; nW as bit n.
	month       uint32
	lastWeekday bool
	fromLast    uint32
	nearest     uint32
	// Day of week, 0 for Sunday: explicit weekdays; n#k as bit 5n+k-1; nL as bit n.
	week     uint8
	nth      uint64
	lastWeek uint8
	// anyMonth and anyWeek: the field does not restrict the day.
	anyMonth, anyWeek bool
	// either: a day matches if one field matches (timerdays or). Otherwise both must match.
	either bool
}

// inMonth returns the matching days of a month, as bits 1 to 31. first is the weekday of
// the month's first day, length its number of days.
func (d *days) inMonth(first, length int) uint32 {
	all := uint32(1)<<(length+1) - 2
	switch {
	case d.anyMonth && d.anyWeek:
		return all
	case d.anyMonth:
		return d.byWeek(first, length) & all
	case d.anyWeek:
		return d.byMonth(first, length) & all
	case d.either:
		return (d.byMonth(first, length) | d.byWeek(first, length)) & all
	}
	return d.byMonth(first, length) & d.byWeek(first, length) & all
}

// byMonth returns the days that match the day-of-month field.
func (d *days) byMonth(first, length int) uint32 {
	set := d.month
	for rest := d.fromLast; rest != 0; rest &= rest - 1 {
		if day := length - bits.TrailingZeros32(rest); day >= 1 {
			set |= 1 << day
		}
	}
	for rest := d.nearest; rest != 0; rest &= rest - 1 {
		if day := bits.TrailingZeros32(rest); day <= length {
			set |= 1 << nearestWeekday(day, first, length)
		}
	}
	if d.lastWeekday {
		set |= 1 << nearestWeekday(length, first, length)
	}
	return set
}

// nearestWeekday returns the day from Monday to Friday that is nearest to the given day in
// the same month.
func nearestWeekday(day, first, length int) int {
	switch (first + day - 1) % 7 {
	case 6: // Saturday
		if day == 1 {
			return 3
		}
		return day - 1
	case 0: // Sunday
		if day == length {
			return day - 2
		}
		return day + 1
	}
	return day
}

// byWeek returns the days that match the day-of-week field. It may contain days after the
// end of the month.
func (d *days) byWeek(first, length int) uint32 {
	// everyWeek has the days 1, 8, 15, 22 and 29.
	const everyWeek = 1<<1 | 1<<8 | 1<<15 | 1<<22 | 1<<29
	set := uint32(0)
	for rest := d.week; rest != 0; rest &= rest - 1 {
		set |= everyWeek << ((bits.TrailingZeros8(rest) - first + 7) % 7)
	}
	for rest := d.nth; rest != 0; rest &= rest - 1 {
		n := bits.TrailingZeros64(rest)
		set |= 1 << (1 + (n/5-first+7)%7 + 7*(n%5)) // a sixth week overflows to 0
	}
	for rest := d.lastWeek; rest != 0; rest &= rest - 1 {
		last := (first + length - 1) % 7
		set |= 1 << (length - (last-bits.TrailingZeros8(rest)+7)%7)
	}
	return set
}

// next returns the first matching local time in [from, to). steps counts months visited.
func (c *cron) next(fromMs, toMs int64, steps *int) (int64, bool) {
	if fromMs >= toMs {
		return 0, false
	}
	second := ceilDiv(fromMs, secondMs)
	day := floorDiv(second, dayMs/secondMs)
	inDay := int(second - day*(dayMs/secondMs))
	year, month, dayOfMonth := civil(day)
	for monthStart := day - int64(dayOfMonth-1); monthStart*dayMs < toMs; {
		*steps++
		length := daysIn(year, month)
		set := uint32(0)
		if c.month&(1<<month) != 0 {
			set = c.days.inMonth(weekday(monthStart), length) &^ (1<<dayOfMonth - 1)
		}
		for ; set != 0; set &= set - 1 {
			d := bits.TrailingZeros32(set)
			if d > dayOfMonth {
				inDay = 0
			}
			if s, ok := c.timeOfDay(inDay); ok {
				at := (monthStart+int64(d-1))*dayMs + int64(s)*secondMs
				return at, at < toMs
			}
		}
		monthStart += int64(length)
		dayOfMonth, inDay = 1, 0
		if month++; month > 12 {
			year, month = year+1, 1
		}
	}
	return 0, false
}

// timeOfDay returns the first matching second of a day that is not before the given one.
func (c *cron) timeOfDay(from int) (int, bool) {
	h, m, s := from/3600, from/60%60, from%60
	if c.hour&(1<<h) != 0 {
		if c.minute&(1<<m) != 0 {
			if rest := c.second >> s << s; rest != 0 {
				return h*3600 + m*60 + bits.TrailingZeros64(rest), true
			}
		}
		if rest := c.minute >> (m + 1) << (m + 1); rest != 0 {
			return h*3600 + bits.TrailingZeros64(rest)*60 + bits.TrailingZeros64(c.second), true
		}
	}
	if rest := c.hour >> (h + 1) << (h + 1); rest != 0 {
		return bits.TrailingZeros32(rest)*3600 + bits.TrailingZeros64(c.minute)*60 + bits.TrailingZeros64(c.second), true
	}
	return 0, false
}

// matchesSomeDay reports whether a day exists that matches. Dates and weekdays repeat every
// 400 years.
func (c *cron) matchesSomeDay() bool {
	const year0 = 2000
	for day, n := dayOfDate(year0, 1, 1), 0; n < 400*12; n++ {
		year, month := year0+n/12, n%12+1
		length := daysIn(year, month)
		if c.month&(1<<month) != 0 && c.days.inMonth(weekday(day), length) != 0 {
			return true
		}
		day += int64(length)
	}
	return false
}
