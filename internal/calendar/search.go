package calendar

// maxSteps bounds the work of one Next: the segments, months and stretches of excluded dates
// that it visits, and with ExcludeShift next or previous also the dates that move.
//
// From MinMs to MaxMs there are 2,760 months and at most maxSegments segments. Each segment is
// searched twice, for its gap and for its time, and a search visits at least one month.
// Excluded dates add at most three visits each. Real schedules take fewer than 100 steps.
const maxSteps = 2*(2_760+maxSegments) + 3*MaxCalendars*maxDays

// search is one call of Next. steps counts the work, for tests.
type search struct {
	*Schedule
	steps int
}

// found is an instant at which the schedule runs.
type found struct {
	atMs int64
	// wantedMs is the local time that the schedule asks for. It differs from the local time
	// at atMs only if shifted.
	wantedMs int64
	segment  int
	// shifted: wantedMs is in a gap, and atMs is the first instant after it.
	shifted bool
}

// after returns the first run after an instant, before MaxMs. It ignores the schedule's end.
func (q *search) after(ms int64) (found, bool) {
	ms = max(ms, q.startMs-1, MinMs-1)
	if ms >= MaxMs-1 {
		return found{}, false
	}
	switch {
	case q.cron != nil:
		return q.onWallClock(ms)
	case q.every.unit == unitElapsed:
		return q.elapsed(ms)
	}
	return q.periodic(ms)
}

// periodic returns the first run of a wall-clock period. Run 0 is at the start exactly, even
// if the start's local time occurs twice and the rule for overlaps would pick the other one.
func (q *search) periodic(ms int64) (found, bool) {
	excluded := q.exclude.excluded(dayOf(q.every.localMs))
	if ms < q.startMs && !excluded {
		return found{atMs: q.startMs, wantedMs: q.every.localMs, segment: q.zone.at(q.startMs)}, true
	}
	f, ok := q.onWallClock(ms)
	for ok && !excluded && f.wantedMs == q.every.localMs {
		f, ok = q.onWallClock(f.atMs)
	}
	return f, ok
}

// elapsed returns the first run of an elapsed period. It jumps over excluded dates.
func (q *search) elapsed(ms int64) (found, bool) {
	for at := q.every.elapsedNext(ms + 1); at < MaxMs; {
		q.steps++
		i := q.zone.at(at)
		local := at + q.zone.segments[i].offsetMs
		day := dayOf(local)
		if !q.exclude.excluded(day) {
			return found{atMs: at, wantedMs: local, segment: i}, true
		}
		at = q.every.elapsedNext(max(at+1, q.zone.firstInstant(q.exclude.onOrAfter(day)*dayMs)))
	}
	return found{}, false
}

// onWallClock walks the zone's segments from the instant after ms and maps the first local
// time that the schedule asks for to an instant. See "Daylight saving" in the package
// comment.
func (q *search) onWallClock(ms int64) (found, bool) {
	for i := q.zone.at(ms + 1); i < len(q.zone.segments); i++ {
		q.steps++
		g := &q.zone.segments[i]
		from, to := max(ms+1, g.startMs)+g.offsetMs, g.endMs+g.offsetMs
		if first, last, ok := g.gap(); ok && from == last && q.dst.shiftsGap(last-first) {
			if wanted, ok := q.wanted(first, last); ok {
				return found{atMs: g.startMs, wantedMs: wanted, segment: i, shifted: true}, true
			}
		}
		switch q.dst.overlap {
		case overlapFirst:
			from = max(from, g.seenMs)
		case overlapLast:
			to = min(to, g.laterMs)
		}
		if wanted, ok := q.wanted(from, to); ok {
			return found{atMs: wanted - g.offsetMs, wantedMs: wanted, segment: i}, true
		}
	}
	return found{}, false
}

// rule returns the first local time in [from, to) that the expression or period asks for,
// without regard to excluded dates.
func (q *search) rule(fromMs, toMs int64) (int64, bool) {
	if q.cron != nil {
		return q.cron.next(fromMs, toMs, &q.steps)
	}
	return q.every.next(fromMs, toMs)
}

// wanted returns the first local time in [from, to) after excluded dates are removed or
// moved.
func (q *search) wanted(fromMs, toMs int64) (int64, bool) {
	switch {
	case q.exclude.count == 0:
		return q.rule(fromMs, toMs)
	case q.exclude.shift == shiftSkip:
		return q.notExcluded(fromMs, toMs)
	}
	for day := q.exclude.onOrAfter(dayOf(fromMs)); day*dayMs < toMs; {
		q.steps++
		if at, ok := q.onDay(day, max(fromMs-day*dayMs, 0)); ok {
			return at, at < toMs
		}
		var ok bool
		if day, ok = q.dayAfter(day, toMs); !ok {
			break
		}
	}
	return 0, false
}

// notExcluded returns the first local time in [from, to) on a date that is not excluded.
func (q *search) notExcluded(fromMs, toMs int64) (int64, bool) {
	for {
		q.steps++
		at, ok := q.rule(fromMs, toMs)
		if !ok {
			return 0, false
		}
		day := q.exclude.onOrAfter(dayOf(at))
		if day == dayOf(at) {
			return at, true
		}
		fromMs = day * dayMs
	}
}

// onDay returns the first local time on a date that is not excluded, at or after a time of
// day. It includes the times that move to this date.
func (q *search) onDay(day, timeOfDayMs int64) (int64, bool) {
	best := int64(dayMs)
	first, last := q.exclude.sources(day)
	for source := first; source <= last; source++ {
		q.steps++
		if at, ok := q.rule(source*dayMs+timeOfDayMs, (source+1)*dayMs); ok {
			best = min(best, at-source*dayMs)
		}
	}
	return day*dayMs + best, best < dayMs
}

// dayAfter returns the first date after day on which something runs, counting times that
// move there. It is not excluded.
func (q *search) dayAfter(day, toMs int64) (int64, bool) {
	if q.exclude.shift == shiftNext {
		at, ok := q.rule((day+1)*dayMs, toMs)
		return q.exclude.onOrAfter(dayOf(at)), ok
	}
	// Excluded dates just after day move to day itself. Those after toMs may move before it.
	at, ok := q.rule(q.exclude.onOrAfter(day+1)*dayMs, q.exclude.onOrAfter(dayOf(toMs-1)+1)*dayMs)
	return q.exclude.onOrBefore(dayOf(at)), ok
}
