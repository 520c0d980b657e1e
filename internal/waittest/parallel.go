package waittest

import "flag"

// Parallel makes n parallel tests of the package run at a time, unless go test has -parallel. It is for a
// package whose tests mostly wait, so that more than GOMAXPROCS of them load the machine no more. Call it in
// TestMain, before the tests run.
func Parallel(n string) {
	if err := flag.Set("test.parallel", n); err != nil {
		panic(err) // not a number, or not a test
	}
}
