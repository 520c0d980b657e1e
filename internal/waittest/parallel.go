package waittest

import (
	"flag"
	"strconv"

	"github.com/belfryio/belfry/internal/testsize"
)

// Parallel makes n parallel tests of the package run at a time, unless go test has -parallel. It is for a
// package whose tests mostly wait, so that more than GOMAXPROCS of them load the machine no more. More than 4 with servers of
// their own starve each other on a machine with other work, and requests with a time limit fail. Under the race
// detector, where they compute several times longer, half of n run at a time. Call it in TestMain, before the tests run.
func Parallel(n int) {
	if testsize.Race {
		n = (n + 1) / 2
	}
	if err := flag.Set("test.parallel", strconv.Itoa(n)); err != nil {
		panic(err) // not a test
	}
}
