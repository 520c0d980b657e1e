package calendar

// Key identifies a nominal time of a schedule independently of the zone data: with any two
// releases, the same run has the same key. Keys grow with time. The key of a cron expression is
// the local time that it asks for, converted to Unix milliseconds as if it were UTC. The key of
// a period of days or months is the number of the run, from 1. A time to which excluded dates move their runs has the key of
// the last of these runs.
//
// Key returns 0 for a schedule that follows real time through a change of the offset, because it
// runs again when a local time occurs again. It also returns 0 for an instant that is not a
// nominal time.
func (s *Schedule) Key(nominalMs int64) int64 {
	if s.dst.overlap == overlapBoth {
		return 0
	}
	q := search{Schedule: s}
	if f, ok := q.after(nominalMs - 1); ok && f.atMs == nominalMs {
		return s.key(f.wantedMs)
	}
	return 0
}

func (s *Schedule) key(wantedMs int64) int64 {
	if s.cron != nil {
		return wantedMs
	}
	day := dayOf(wantedMs)
	_, last := s.exclude.sources(day)
	return s.every.number(wantedMs+(last-day)*dayMs) + 1
}

// NextKey returns the first nominal time after an instant whose key is at least the given one.
// It returns false if none is left.
func (s *Schedule) NextKey(afterMs, key int64) (nominalMs int64, ok bool) {
	local := key
	if s.cron == nil {
		local = s.every.at(key - 1)
		if s.exclude.shift == shiftPrevious {
			day := dayOf(local)
			local += (s.exclude.onOrBefore(day) - day) * dayMs
		}
	}
	q := search{Schedule: s}
	f, ok := q.after(max(afterMs, s.zone.firstInstant(local)-1))
	for ok && s.key(f.wantedMs) < key { // an earlier local time in the same gap
		f, ok = q.after(f.atMs)
	}
	return f.atMs, ok && f.atMs <= s.endMs
}

// number returns the number of the last run at or before a local time, from 0.
func (e *every) number(localMs int64) int64 {
	if e.unit == unitDays {
		return floorDiv(localMs-e.localMs, e.count*dayMs)
	}
	year, month, _ := civil(dayOf(localMs))
	n := floorDiv(int64(year-e.year)*12+int64(month-e.month), e.count)
	if e.months(n) > localMs {
		n--
	}
	return n
}

// at returns the local time of a run.
func (e *every) at(n int64) int64 {
	if e.unit == unitDays {
		return e.localMs + n*e.count*dayMs
	}
	return e.months(n)
}
