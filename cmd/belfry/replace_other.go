//go:build !unix

package main

// replaceProcess is not possible here: the process ends with the cause, for a supervisor
// to start it again.
func replaceProcess(cause error) error { return cause }
