// Package cpuspare measures how much CPU is left for work that can wait.
//
// A Meter compares two readings of the system's counters. What is left is the time in which the
// machine's CPUs were idle, but no more than GOMAXPROCS leaves to this process: in a container with
// a CPU limit Go sets GOMAXPROCS to the limit. Where the system reports neither, Spare says so, and
// the caller should work as if the machine were idle.
package cpuspare

import (
	"runtime"
	"time"

	"github.com/belfryio/belfry/internal/cputime"
)

// Least is the shortest period that a Meter measures. The counters of Linux have a resolution of
// 10 ms, so a period of this length is known to a twentieth of a core.
const Least = 200 * time.Millisecond

// reading has the counters at one time, in seconds since the start of the machine and of the
// process; negative if the system does not report them.
type reading struct {
	at         time.Time
	idle, used float64
}

// Meter measures periods. It is for one goroutine.
type Meter struct {
	last  reading
	cores float64
	known bool
}

// New returns a Meter, whose first period begins now.
func New() *Meter { return &Meter{last: read()} }

// Spare returns the number of cores that were left in the last period of at least Least, from 0 to
// GOMAXPROCS. ok is false before the end of the first period, and if the system reports nothing.
func (m *Meter) Spare() (cores float64, ok bool) {
	if time.Since(m.last.at) < Least {
		return m.cores, m.known
	}
	now := read()
	m.cores, m.known = between(m.last, now, float64(runtime.GOMAXPROCS(0)))
	m.last = now
	return m.cores, m.known
}

// between returns the cores that were left between two readings, of a process that may use most.
func between(from, to reading, most float64) (cores float64, ok bool) {
	took := to.at.Sub(from.at).Seconds()
	if took <= 0 {
		return 0, false
	}
	cores = most
	if from.used >= 0 && to.used >= 0 {
		cores, ok = min(cores, most-(to.used-from.used)/took), true
	}
	if from.idle >= 0 && to.idle >= 0 {
		cores, ok = min(cores, (to.idle-from.idle)/took), true
	}
	return max(cores, 0), ok
}

// read reads the counters of this system.
func read() reading {
	r := reading{at: time.Now(), idle: -1, used: -1}
	if _, idle, ok := cputime.Machine(); ok {
		r.idle = idle
	}
	if used, ok := cputime.Self(); ok {
		r.used = used.Seconds()
	}
	return r
}
