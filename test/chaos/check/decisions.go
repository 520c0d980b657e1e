package check

import (
	"math"
	"reflect"
	"slices"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/schemas"
)

// version is the recurrence of a schedule between two updates that changed its nominal times.
type version struct {
	calendar *calendar.Schedule
	rule     schemas.Recurrence
	// fromMs and toMs bound the nominal times that the version decides, inclusive. changedMs is
	// Progress.ChangedMs. Two versions have the same one if no nominal time was decided
	// between their updates.
	fromMs, toMs, changedMs int64
	// seenMs is the last nominal time that a record of this version had decided.
	seenMs int64
}

// decisions expands the decisions of all records that were read, and checks that each
// nominal time from the first to the last decided one has one decision.
func (s *schedule) decisions(c *checker) {
	s.fates, s.excludedMs = map[int64]fate{}, map[int64]int64{}
	if !s.findVersions(c) {
		return
	}
	for i := range s.stored {
		s.expand(c, s.stored[i].Schedule)
	}
	last := s.last()
	decided := last.Schedule.DecidedMs()
	for _, v := range s.versions {
		for at := range v.calendar.Between(v.fromMs, min(v.toMs, decided)) {
			s.decided(c, last.Schedule, at)
		}
	}
	p := last.Schedule
	if last.State == schemas.StatePending && p.NextMs != 0 && p.NextDueMs <= s.passedMs {
		s.fail(c, Behind, "%s is not decided; the low watermark is past %s", schemas.FormatTime(p.NextMs), schemas.FormatTime(s.passedMs))
	}
	if l := p.Limit; l > 0 && p.Fired > l && !s.updated() {
		s.fail(c, OverLimit, "%d runs fired; timerlimit is %d", p.Fired, l)
	}
}

// updated reports whether an update may have changed the schedule.
func (s *schedule) updated() bool {
	return slices.ContainsFunc(s.ops, func(o *operation) bool { return o.call.Kind == Update && o.outcome != never })
}

// decided checks that a nominal time has a decision.
func (s *schedule) decided(c *checker, p *schemas.Schedule, at int64) {
	r := &c.rep.Schedules
	f, ok := s.fates[at]
	switch {
	case ok:
		r.Judged++
		if f.kind != schemas.DecisionFired {
			r.Skipped++
		}
		if r.Kinds == nil {
			r.Kinds = map[schemas.DecisionKind]int{}
		}
		r.Kinds[f.kind]++
	case p.Waiting != nil && p.Waiting.NominalMs == at:
	case p.ForgottenMs <= at && at < p.KnownFromMs:
		r.Forgotten++
		s.forgotten++
	default:
		s.fail(c, Undecided, "%s has no decision", schemas.FormatTime(at))
	}
}

// findVersions finds the recurrences that the schedule had, from the records that were read.
func (s *schedule) findVersions(c *checker) bool {
	for i := range s.stored {
		e := &s.stored[i]
		p := e.Schedule
		if n := len(s.versions); n > 0 && s.versions[n-1].changedMs == p.ChangedMs && reflect.DeepEqual(s.versions[n-1].rule, p.Recurrence) {
			s.versions[n-1].seenMs = p.DecidedMs()
			continue
		}
		plan, err := recurrence.PlanOf(schemas.NewTimerID(s.source, s.id), p, recurrence.UnknownCalendars)
		if err != nil {
			s.fail(c, BadHistory, "its record has a recurrence that is refused: %v", err)
			return false
		}
		v := version{calendar: plan.Calendar(), rule: p.Recurrence, fromMs: p.ChangedMs, toMs: math.MaxInt64, changedMs: p.ChangedMs, seenMs: p.DecidedMs()}
		if p.ChangedMs == 0 {
			v.fromMs = max(e.AddedMs+1, p.StartMs)
		}
		// The nominal times of the version before end with the update. If there may be another
		// version between, they are known only as far as a record had decided them.
		for k := len(s.versions) - 1; k >= 0; k-- {
			before := &s.versions[k]
			before.toMs = min(before.toMs, v.fromMs-1)
			switch {
			case k < len(s.versions)-1:
			case s.surelyRead():
				before.toMs = min(before.toMs, e.UpdatedMs)
			default:
				before.toMs = min(before.toMs, before.seenMs)
			}
		}
		s.versions = append(s.versions, v)
	}
	return true
}

// surelyRead reports whether a record was read after each update that took effect, before
// the next.
func (s *schedule) surelyRead() bool {
	var read []Event
	read = append(read, s.stored...)
	slices.SortFunc(read, func(a, b Event) int { return int(a.AtNs - b.AtNs) })
	for i, o := range s.ops {
		if o.call.Kind != Update || o.outcome == never {
			continue
		}
		if o.outcome == maybe {
			return false
		}
		until := int64(math.MaxInt64)
		for _, next := range s.ops[i+1:] {
			if next.call.Kind == Update {
				until = next.call.AtNs
				break
			}
		}
		if !slices.ContainsFunc(read, func(e Event) bool {
			return o.answer.AtNs <= e.AtNs && e.AtNs <= until && e.Sequence >= o.answer.Sequence
		}) {
			return false
		}
	}
	return true
}

// at returns the version that decides a nominal time; nil if it is not known.
func (s *schedule) at(ms int64) *version {
	for i := range s.versions {
		if v := &s.versions[i]; v.fromMs <= ms && ms <= v.toMs {
			return v
		}
	}
	return nil
}

// expand adds the decisions of one record to the fates.
func (s *schedule) expand(c *checker, p *schemas.Schedule) {
	here := map[int64]schemas.DecisionKind{}
	for _, d := range p.Decisions {
		switch d.Kind {
		case schemas.DecisionTriggered, schemas.DecisionTriggerOverlap, schemas.DecisionTriggerCancelled, schemas.DecisionBackfilled:
			continue
		}
		v := s.at(d.FromMs)
		if v == nil || d.ToMs > v.toMs {
			continue // a version that no client has read
		}
		n := uint32(0)
		for at := range v.calendar.Between(d.FromMs, d.ToMs) {
			f := fate{d.Kind, d.Run}
			switch d.Kind {
			case schemas.DecisionFired:
				f.run += n
			case schemas.DecisionExcluded:
				f.run = 0 // it names calendars
				s.excludedMs[at] = max(s.excludedMs[at], d.AtMs)
			}
			n++
			if other, ok := here[at]; ok {
				s.fail(c, DecidedTwice, "%s is %s and %s", schemas.FormatTime(at), other, d.Kind)
			}
			here[at] = d.Kind
			if other, ok := s.fates[at]; ok && other != f {
				s.fail(c, DecidedTwice, "%s was %s (run %d), and is %s (run %d)", schemas.FormatTime(at), other.kind, other.run, f.kind, f.run)
			}
			s.fates[at] = f
		}
		if n != d.Count {
			s.fail(c, WrongCount, "%s of %d nominal times from %s to %s; the calendar has %d", d.Kind, d.Count, schemas.FormatTime(d.FromMs), schemas.FormatTime(d.ToMs), n)
		}
	}
}

// explained compares the events with the decisions.
func (s *schedule) explained(c *checker) {
	for at, f := range s.fates {
		if f.kind != schemas.DecisionFired {
			continue
		}
		if e, ok := s.byRun[f.run]; !ok || e.DueMs != at || e.Trigger != schemas.TriggerSchedule {
			s.fail(c, NoEvent, "%s fired as run %d; the event of that run, if any, is for %s (%s)", schemas.FormatTime(at), f.run, schemas.FormatTime(e.DueMs), e.Trigger)
		}
	}
	last := s.last().Schedule
	complete := len(last.Decisions) < schemas.MaxDecisions
	for _, e := range s.fired {
		if e.Trigger != schemas.TriggerSchedule {
			if complete && !asks(last, e) {
				s.fail(c, Unexplained, "run %d (%s of %s) is in no decision", e.Run, e.Trigger, schemas.FormatTime(e.DueMs))
			}
			continue
		}
		v := s.at(e.DueMs)
		if v != nil && e.TimeNs < v.calendar.DueMs(e.DueMs)*1_000_000 {
			s.fail(c, Early, "run %d fired %.3f ms before it was due", e.Run, float64(v.calendar.DueMs(e.DueMs)*1_000_000-e.TimeNs)/1e6)
		}
		f, ok := s.fates[e.DueMs]
		switch {
		case ok && f == fate{schemas.DecisionFired, e.Run}:
		case ok:
			s.fail(c, Unexplained, "run %d fired for %s, which is %s (run %d)", e.Run, schemas.FormatTime(e.DueMs), f.kind, f.run)
		case last.ForgottenMs <= e.DueMs && e.DueMs < last.KnownFromMs:
		case last.Of(e.DueMs) == nil: // not even in a range of a version that no client has read
			s.fail(c, Unexplained, "run %d fired for %s, which is not decided", e.Run, schemas.FormatTime(e.DueMs))
		}
		if complete && coalesced(last, e.Run) > e.Missed {
			s.fail(c, Unexplained, "run %d says that it missed %d; %d are coalesced into it", e.Run, e.Missed, coalesced(last, e.Run))
		}
	}
}

// asks reports whether a decision names a run that somebody asked for.
func asks(p *schemas.Schedule, e Event) bool {
	kind := schemas.DecisionTriggered
	if e.Trigger == schemas.TriggerBackfill {
		kind = schemas.DecisionBackfilled
	}
	return slices.ContainsFunc(p.Decisions, func(d schemas.Decision) bool {
		return d.Kind == kind && d.Run <= e.Run && e.Run < d.Run+d.Count && d.FromMs <= e.DueMs && e.DueMs <= d.ToMs
	})
}

// coalesced counts the nominal times for which a run fired instead.
func coalesced(p *schemas.Schedule, run uint32) uint32 {
	n := uint32(0)
	for _, d := range p.Decisions {
		if d.Kind == schemas.DecisionCoalesced && d.Run == run {
			n += d.Count
		}
	}
	return n
}
