package bench

import (
	"bytes"

	"github.com/belfryio/belfry/schemas"
)

// recurring makes schedules of an adder's timers. The adder then numbers the runs: run k of
// schedule n, both from 0, has the number n×runs+k.
type recurring struct {
	// runs is the number of measured nominal times of a schedule.
	runs int
	// everyMs is the time between two of them.
	everyMs int64
	// firstMs returns the first nominal time of schedule n.
	firstMs func(n int) int64
	// attributes appends the attributes of a schedule with this first nominal time to its event,
	// from the quote that ends the previous attribute to the value of the last one.
	attributes func(event []byte, firstMs int64) []byte
}

var (
	scheduledMark = []byte(`"` + schemas.AttrScheduled + `":"`)
	missedMark    = []byte(`"` + schemas.AttrMissed + `":`)
)

// number returns the number of the run of schedule n that published an event. ok is false for a
// nominal time that is not measured.
func (r *recurring) number(n int, event []byte) (number int, ok bool) {
	_, text, ok := bytes.Cut(event, scheduledMark)
	if !ok {
		return 0, false
	}
	text, _, _ = bytes.Cut(text, []byte(`"`))
	nominalMs, err := schemas.ParseTime(string(text))
	if err != nil {
		return 0, false
	}
	after := nominalMs - r.firstMs(n)
	k := after / r.everyMs
	return n*r.runs + int(k), after >= 0 && after%r.everyMs == 0 && k < int64(r.runs)
}

// missed returns the number of earlier nominal times for which a run fired, without its own. A
// nil receiver is for one-shot timers.
func (r *recurring) missed(event []byte) int {
	if r == nil {
		return 0
	}
	_, text, _ := bytes.Cut(event, missedMark)
	n := 0
	for _, c := range text {
		if c < '0' || c > '9' || n > maxCount {
			break
		}
		n = n*10 + int(c-'0')
	}
	return n
}
