// Package cputime reads the system's counters of CPU time.
package cputime

import "github.com/prometheus/procfs"

// Machine returns the time in seconds, since the start of the machine, in which its CPUs were busy and
// idle, all CPUs together. Time that a virtual machine did not get (steal) counts as busy. ok is false
// if the system does not report it: only Linux does.
func Machine() (busy, idle float64, ok bool) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, 0, false
	}
	st, err := fs.Stat()
	if err != nil {
		return 0, 0, false
	}
	c := st.CPUTotal
	return c.User + c.Nice + c.System + c.IRQ + c.SoftIRQ + c.Steal, c.Idle + c.Iowait, true
}
