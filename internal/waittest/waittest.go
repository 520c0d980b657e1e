// Package waittest waits in tests, so that no test depends on the speed of the machine.
package waittest

import (
	"strings"
	"testing"
	"time"
)

const (
	// Bound is how long the functions wait before they fail the test. It is long, because several packages are tested
	// at once on a small machine, whose disk may stand still for seconds.
	Bound = 3 * time.Minute
	// pollInterval is the pause between two calls of a condition.
	pollInterval = 5 * time.Millisecond
)

// Until calls ok until it returns true. After Bound it fails the test with the description
// of the condition and the results of state.
func Until(tb testing.TB, condition string, ok func() bool, state ...func() string) {
	tb.Helper()
	UntilWithin(tb, Bound, condition, ok, state...)
}

// UntilWithin is Until with another bound.
func UntilWithin(tb testing.TB, bound time.Duration, condition string, ok func() bool, state ...func() string) {
	tb.Helper()
	deadline := time.NewTimer(bound)
	defer deadline.Stop()
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for !ok() {
		select {
		case <-poll.C:
		case <-deadline.C:
			tb.Fatalf("waited %s in vain: %s%s", bound, condition, text(state))
		}
	}
}

// Available sends a request, again and again while unavailable reports that the answer has the code unavailable: the disk of
// a busy machine may stand still for longer than a node waits for it. A write that took effect without an answer is then
// repeated, too. After Bound it fails the test with the name of the request and the results of state.
func Available(tb testing.TB, request string, unavailable func() bool, state ...func() string) {
	tb.Helper()
	Until(tb, request+" is available", func() bool { return !unavailable() }, state...)
}

// Receive returns the next value of a channel, or the zero value if the channel is closed.
// After Bound it fails the test with the description of the value and the results of state.
func Receive[T any](tb testing.TB, value string, c <-chan T, state ...func() string) T {
	tb.Helper()
	deadline := time.NewTimer(Bound)
	defer deadline.Stop()
	select {
	case v := <-c:
		return v
	case <-deadline.C:
		tb.Fatalf("waited %s in vain: %s%s", Bound, value, text(state))
		panic("unreachable")
	}
}

func text(state []func() string) string {
	var b strings.Builder
	for _, s := range state {
		b.WriteString("; " + s())
	}
	return b.String()
}
