package calendar

// Local times and dates are plain numbers here: a local time is the number of
// milliseconds that a wall clock without daylight saving would have counted since
// 1970-01-01T00:00, and a day is the number of days since then. Day 0 is a Thursday.

const (
	secondMs = 1000
	minuteMs = 60 * secondMs
	hourMs   = 60 * minuteMs
	dayMs    = 24 * hourMs
)

// civil returns the date of a day. The algorithm counts years from March, so that a leap
// day is the last day of its year.
func civil(day int64) (year, month, dayOfMonth int) {
	z := day + 719468 // days since 0000-03-01
	era := floorDiv(z, 146097)
	doe := z - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	dayOfMonth = int(doy-(153*mp+2)/5) + 1
	month = int(mp) + 3
	year = int(yoe + era*400)
	if month > 12 {
		month, year = month-12, year+1
	}
	return year, month, dayOfMonth
}

// dayOfDate is the inverse of civil. dayOfMonth may be outside the month.
func dayOfDate(year, month, dayOfMonth int) int64 {
	y, m := int64(year), int64(month)
	if m <= 2 {
		y, m = y-1, m+12
	}
	era := floorDiv(y, 400)
	yoe := y - era*400
	doy := (153*(m-3)+2)/5 + int64(dayOfMonth) - 1
	return era*146097 + yoe*365 + yoe/4 - yoe/100 + doy - 719468
}

// weekday returns 0 for Sunday to 6 for Saturday.
func weekday(day int64) int { return int((day%7 + 11) % 7) }

func leapYear(year int) bool { return year%4 == 0 && (year%100 != 0 || year%400 == 0) }

func daysIn(year, month int) int {
	switch month {
	case 2:
		if leapYear(year) {
			return 29
		}
		return 28
	case 4, 6, 9, 11:
		return 30
	}
	return 31
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func ceilDiv(a, b int64) int64 { return -floorDiv(-a, b) }

// dayOf returns the day of a local time.
func dayOf(localMs int64) int64 { return floorDiv(localMs, dayMs) }
