// Package testsize decides how much of a long test runs:
//
//	go test -short ./...             a brief run of every package
//	go test ./...                    what a change needs
//	BELFRY_TESTS=all go test ./...   every test at full length, as .ci/run does
//
// A test that does less than all says so in its log, or in the reason of its skip. Under the race detector, which makes a
// computation many times slower, each of these runs is smaller: what only computes on one goroutine, and what runs other
// processes, cannot have a data race that the detector sees.
package testsize

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Env is the environment variable that, set to "all", runs every test at full length.
const Env = "BELFRY_TESTS"

// All reports whether every test runs at full length.
func All() bool { return os.Getenv(Env) == "all" }

// Long skips the test unless every test runs at full length. why says what makes it long: "it runs three nodes for a
// minute".
func Long(tb testing.TB, why string) {
	tb.Helper()
	if testing.Short() || !All() {
		tb.Skipf("%s: %s=all go test runs it", why, Env)
	}
}

// NotShort skips the test, unless it is a benchmark, with -short. why says what makes it long: "it runs three nodes".
func NotShort(tb testing.TB, why string) {
	tb.Helper()
	if _, benchmark := tb.(*testing.B); testing.Short() && !benchmark {
		tb.Skipf("%s: go test runs it without -short", why)
	}
}

// NotRace skips the test under the race detector. why says why it is of no use there.
func NotRace(tb testing.TB, why string) {
	tb.Helper()
	if Race {
		tb.Skipf("%s: go test runs it without -race", why)
	}
}

// Choose returns the size of a test: least with -short or under the race detector, usual without, and all with
// BELFRY_TESTS=all. It logs a size other than all. unit names what the sizes count: "seeds".
func Choose(tb testing.TB, unit string, least, usual, all int) int {
	tb.Helper()
	size := usual
	switch {
	case testing.Short() || Race:
		size = least
	case All():
		size = all
	}
	if size != all {
		tb.Logf("%d %s of %d: %s=all go test runs all, without -short and -race", size, unit, all, Env)
	}
	return size
}

// Brief skips the test with -short unless it is one of the named tests. A fixture calls it, so that a brief run of a
// package whose tests all need the fixture has some of them. why says what makes the others long.
func Brief(tb testing.TB, why string, tests ...string) {
	tb.Helper()
	name, _, _ := strings.Cut(tb.Name(), "/")
	if !slices.Contains(tests, name) {
		NotShort(tb, why)
	}
}
