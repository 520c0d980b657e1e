// Package skipped counts the nominal times of schedules that do not fire, in
// belfry_schedule_skipped_total. The scheduler counts the decisions of its turns, the router
// the decisions of operations. Both use one metric if they run in one process.
package skipped

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/belfryio/belfry/schemas"
)

// Counter counts decisions. The zero value counts nothing.
type Counter struct{ vec *prometheus.CounterVec }

// NewCounter makes a counter, and registers it unless reg is nil. It returns the counter of
// another role of the process if that has registered one.
func NewCounter(reg prometheus.Registerer) (Counter, error) {
	c := Counter{prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: "belfry", Name: "schedule_skipped_total", Help: "Nominal times of schedules that did not fire, by reason.",
	}, []string{"reason"})}
	if reg == nil {
		return c, nil
	}
	err := reg.Register(c.vec)
	var taken prometheus.AlreadyRegisteredError
	if errors.As(err, &taken) {
		if vec, ok := taken.ExistingCollector.(*prometheus.CounterVec); ok {
			return Counter{vec}, nil
		}
	}
	return c, err
}

// Init makes every reason visible, with 0.
func (c Counter) Init() {
	for kind := schemas.DecisionFired; kind.Known(); kind++ {
		if !kind.Fires() {
			c.vec.WithLabelValues(kind.String())
		}
	}
}

// Add counts decisions, except runs that fired.
func (c Counter) Add(decisions ...schemas.Decision) {
	for i := range decisions {
		if d := &decisions[i]; c.vec != nil && !d.Kind.Fires() {
			c.vec.WithLabelValues(d.Kind.String()).Add(float64(d.Count))
		}
	}
}

// Between returns the decisions that a change of a schedule has added. A decision that extends
// a range has the number of the nominal times that were added.
func Between(before, after *schemas.Schedule) []schemas.Decision {
	if before == nil || after == nil {
		return nil
	}
	var added []schemas.Decision
	old := before.Decisions
	for _, d := range after.Decisions {
		// The ranges of both are in the same order; a change drops the oldest, extends the last
		// and appends others.
		i := 0
		for i < len(old) && (old[i].Kind != d.Kind || old[i].FromMs != d.FromMs) {
			i++
		}
		if i < len(old) {
			d.Count -= old[i].Count
			old = old[i+1:]
		}
		if d.Count > 0 {
			added = append(added, d)
		}
	}
	return added
}
