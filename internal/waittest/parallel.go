package waittest

import (
	"flag"
	"strconv"

	"github.com/belfryio/belfry/internal/testsize"
)

// Parallel makes n parallel tests of the package run at a time, unless go test has -parallel. It is for a
// package whose tests mostly wait, so that more than GOMAXPROCS of them load the machine no more. Choose n so that the tests of the
// package need less than one processor: with more, on a machine with other work, servers starve each other and requests with
// a time limit fail. Under the race detector, where tests compute several times longer, a quarter of n run at a time, but at
// least 2. Call it in TestMain, before the tests run.
func Parallel(n int) {
	if testsize.Race {
		n = max(2, n/4)
	}
	if err := flag.Set("test.parallel", strconv.Itoa(n)); err != nil {
		panic(err) // not a test
	}
}
