//go:build !race

package testsize

// Race reports whether the tests run under the race detector.
const Race = false
