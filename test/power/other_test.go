//go:build !linux || !(amd64 || arm64)

package power

import (
	"runtime"
	"testing"
)

// TestPowerLossSafe works only on Linux.
func TestPowerLossSafe(t *testing.T) {
	t.Skipf("NOTHING WAS SHOWN: the tracer needs Linux on amd64 or arm64; this is %s on %s", runtime.GOOS, runtime.GOARCH)
}
