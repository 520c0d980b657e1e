//go:build !unix

package main

// replaceProcess is not possible on this system. It returns the cause; the process ends, and a
// supervisor must start it again.
func replaceProcess(cause error) error { return cause }
