package bench

import (
	"time"

	"github.com/belfryio/belfry/internal/cputime"
)

// load measures the CPU that processes outside a run use from its begin to its end, the pauses
// and the start of its processes included. othersFigure is for the measurement alone.
type load struct {
	begun   time.Time
	machine float64 // busy time of all CPUs in seconds; 0 if unknown
	own     float64 // CPU time of this process and of its children that have ended, in seconds
}

const loadFigure = "CPU used by others in the whole run, of one core"

func beginLoad() load {
	return load{begun: time.Now(), machine: machineCPU(), own: ownCPU()}
}

// ownCPU returns the CPU time of this process and of its children that have ended.
func ownCPU() float64 {
	children, _ := cputime.Children() // 0 if unknown
	return (selfCPU() + children).Seconds()
}

// figure adds the load since beginLoad. All processes of the run must have ended.
func (l load) figure(r *Result) {
	worked, own := machineCPU()-l.machine, ownCPU()-l.own
	if worked <= 0 || own <= 0 {
		return // this system does not report them
	}
	r.figure(loadFigure, max(worked-own, 0)/time.Since(l.begun).Seconds()*100, "%")
}
