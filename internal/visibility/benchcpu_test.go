//go:build unix

package visibility

import "github.com/belfryio/belfry/internal/cputest"

func init() { measureCPU = cputest.Measure }
