//go:build unix

package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// replaceProcess starts this program again in the same process, with the same arguments
// and environment. The kernel closes its files, ports and locks, as after a SIGKILL. It
// returns only if that fails, with the reason and cause.
func replaceProcess(cause error) error {
	exe, err := os.Executable()
	if err == nil {
		err = syscall.Exec(exe, os.Args, os.Environ())
	}
	return errors.Join(cause, fmt.Errorf("start the program again: %w", err))
}
