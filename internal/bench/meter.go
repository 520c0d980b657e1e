package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"time"

	"github.com/prometheus/procfs"

	"github.com/belfryio/belfry/internal/cputime"
)

// meter measures the usage of a part of a run: CPU of this process and of the servers that it
// started, allocations, and messages stored in streams.
type meter struct {
	env     *Env
	begun   time.Time
	cpu     time.Duration
	apart   float64 // CPU of servers and node in separate processes, in seconds
	disk    int64
	mem     runtime.MemStats
	machine float64 // busy time of all CPUs in seconds; 0 if unknown
	seqs    uint64
	calls   uint64
	profile *os.File
}

// usage is the difference between the start of a meter and its stop.
type usage struct {
	took                   time.Duration
	cpu                    float64 // CPU of all processes of the run, in seconds
	apart                  float64 // CPU of the system under test in seconds; 0 unless it has processes of its own
	disk                   int64   // growth of its data in bytes; 0 unless it has processes of its own
	others                 float64 // CPU of processes outside the run, in seconds
	allocs, bytes          uint64
	messages               uint64
	calls                  uint64 // read and write system calls of this process
	clientsOnly, processes bool
}

// meter starts a measurement, and a CPU profile if the configuration requests one.
func (e *Env) meter(ctx context.Context) (*meter, error) {
	m := &meter{env: e}
	var err error
	if m.seqs, err = e.sequences(ctx); err != nil {
		return nil, err
	}
	if e.deployed != nil {
		if m.apart, err = e.deployed.cpu(); err != nil {
			return nil, err
		}
		if m.disk, err = e.deployed.diskBytes(); err != nil {
			return nil, err
		}
	}
	if e.CPUProfile != "" {
		if m.profile, err = os.Create(e.CPUProfile); err != nil {
			return nil, err
		}
		if err := pprof.StartCPUProfile(m.profile); err != nil {
			return nil, errors.Join(err, m.profile.Close())
		}
		e.CPUProfile = "" // a run has one profile
		e.onClose(m.endProfile)
	}
	runtime.ReadMemStats(&m.mem)
	m.calls = selfCalls()
	m.machine = machineCPU()
	m.begun, m.cpu = time.Now(), selfCPU()
	return m, nil
}

// machineCPU returns the busy time of all CPUs of this machine in seconds, or 0 if the system
// does not report it.
func machineCPU() float64 {
	busy, _, _ := cputime.Machine() // 0 if unknown
	return busy
}

// selfCPU returns the user and system CPU time of this process, or 0 if the system does not
// report it. Results then lack figures of CPU.
func selfCPU() time.Duration {
	used, _ := cputime.Self() // 0 if unknown
	return used
}

// selfCalls returns the number of read and write system calls of this process, or 0 if the
// system does not report it. In-process connections make none.
func selfCalls() uint64 {
	self, err := procfs.Self()
	if err != nil {
		return 0
	}
	io, err := self.IO()
	if err != nil {
		return 0
	}
	return io.SyscR + io.SyscW
}

func (m *meter) endProfile() error {
	if m.profile == nil {
		return nil
	}
	pprof.StopCPUProfile()
	f := m.profile
	m.profile = nil
	return f.Close()
}

// memProfile writes a profile of the allocations since the process began, once a run.
func (e *Env) memProfile() error {
	if e.MemProfile == "" {
		return nil
	}
	f, err := os.Create(e.MemProfile)
	if err != nil {
		return err
	}
	e.MemProfile = ""
	return errors.Join(pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
}

func (m *meter) stop(ctx context.Context) (usage, error) {
	u := usage{took: time.Since(m.begun), cpu: (selfCPU() - m.cpu).Seconds(), clientsOnly: m.env.node == nil && !m.env.deployed.whole(), processes: m.env.deployed != nil}
	worked := machineCPU() - m.machine
	u.calls = selfCalls() - m.calls
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	if err := errors.Join(m.endProfile(), m.env.memProfile()); err != nil {
		return u, err
	}
	u.allocs, u.bytes = mem.Mallocs-m.mem.Mallocs, mem.TotalAlloc-m.mem.TotalAlloc
	if m.env.deployed != nil {
		now, err := m.env.deployed.cpu()
		if err != nil {
			return u, err
		}
		u.cpu += now - m.apart
		if m.env.deployed.whole() {
			u.apart = now - m.apart
			disk, err := m.env.deployed.diskBytes()
			if err != nil {
				return u, err
			}
			u.disk = disk - m.disk
		}
	}
	if worked > 0 && !u.clientsOnly {
		u.others = max(worked-u.cpu, 0)
	}
	seqs, err := m.env.sequences(ctx)
	u.messages = seqs - m.seqs
	return u, err
}

const (
	// cpuFigure is the CPU time per timer or operation.
	cpuFigure   = "CPU a timer"
	callsFigure = "reads and writes a timer (system calls)"
)

// othersFigure is the CPU of other processes during the run. Above busyPercent of a core
// the run reports that it was disturbed.
const (
	othersFigure = "CPU used by others, of one core"
	busyPercent  = 10
)

// figures adds figures of the cost of one of count timers. The CPU of a server elsewhere
// is unknown, so for such a server it adds only the messages.
func (u usage) figures(r *Result, count int) {
	n := float64(count)
	if u.cpu > 0 && !u.clientsOnly {
		r.figure(cpuFigure, u.cpu/n*1e6, "µs")
		r.figure("CPU used, of one core", u.cpu/u.took.Seconds()*100, "%")
	}
	if u.others > 0 {
		r.figure(othersFigure, u.others/u.took.Seconds()*100, "%")
	}
	if u.apart > 0 {
		r.figure(apartFigure, u.apart/n*1e6, "µs")
		r.figure(diskFigure, float64(u.disk)/n, "B")
	} else if !u.clientsOnly {
		what := ""
		if u.processes {
			what = ", without the servers"
		}
		r.figure("allocations a timer"+what, float64(u.allocs)/n, "")
		r.figure("bytes allocated a timer"+what, float64(u.bytes)/n, "B")
		if u.calls > 0 {
			r.figure(callsFigure+what, float64(u.calls)/n, "")
		}
	}
	r.figure("messages stored a timer", float64(u.messages)/n, "")
}

// sequences returns the number of messages that all streams have ever stored. It retries while a
// cluster elects a leader.
func (e *Env) sequences(ctx context.Context) (uint64, error) {
	for begun := time.Now(); ; {
		var n uint64
		l := e.js.ListStreams(ctx)
		for info := range l.Info() {
			n += info.State.LastSeq
		}
		err := l.Err()
		if err == nil {
			return n, nil
		}
		if err := againAfter(ctx, err, begun, patience); err != nil {
			return 0, fmt.Errorf("read the state of the streams: %w", err)
		}
	}
}
