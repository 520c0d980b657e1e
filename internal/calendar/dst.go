package calendar

import (
	"fmt"
	"strings"
)

// overlap says in which pass of a repeated local time a schedule runs.
type overlap uint8

const (
	overlapFirst overlap = iota
	overlapLast
	overlapBoth
)

// dst is the rule for changes of the offset.
type dst struct {
	// shift: a local time in a gap runs at the first instant after the gap.
	shift   bool
	overlap overlap
}

// shiftsGap reports whether local times in a gap of this length run after it. A longer gap is
// a change of the calendar, not daylight saving.
func (d dst) shiftsGap(lengthMs int64) bool { return d.shift && lengthMs <= maxGapMs }

// parseDST parses timerdst: auto, or one or both of gap=shift|skip and overlap=first|last|both.
// A missing part follows auto. realTime schedules follow real time under auto.
func parseDST(text string, realTime, elapsed bool) (dst, error) {
	d := dst{shift: !realTime, overlap: overlapFirst}
	if realTime {
		d.overlap = overlapBoth
	}
	if text == "" || text == "auto" {
		return d, nil
	}
	fail := func(offset int, reason string) error {
		return &Error{attrDST, text, offset, reason, "write auto, or gap=shift|skip and overlap=first|last|both, for example gap=skip,overlap=both"}
	}
	if elapsed {
		return d, &Error{attrDST, text, whole, "an elapsed period follows real time through every change", "write a period of days or longer such as P1D, or remove timerdst"}
	}
	offset, seen := 0, map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(part, "=")
		if seen[name] {
			return d, fail(offset, fmt.Sprintf("duplicate rule %q", name))
		}
		seen[name] = true
		switch part {
		case "gap=shift", "gap=skip":
			d.shift = value == "shift"
		case "overlap=first":
			d.overlap = overlapFirst
		case "overlap=last":
			d.overlap = overlapLast
		case "overlap=both":
			d.overlap = overlapBoth
		default:
			return d, fail(offset, fmt.Sprintf("%q is not a rule", part))
		}
		offset += len(part) + 1
	}
	return d, nil
}
