package flow

import (
	"testing"
	"time"
)

// TestRetryAfter: a target's pause is bounded, is extended but not shortened, and ends by itself.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	var h Hold
	sec := int64(time.Second)
	want := func(what string, at int64, p Permission, until int64) {
		t.Helper()
		if got, atNs := h.Ask(at); got != p || p == Held && atNs != until {
			t.Errorf("%s: got %d at %d, want %d at %d", what, got, atNs, p, until)
		}
	}
	want("a new key", start, Free, 0)
	if h.RetryAfter(0, start) || h.RetryAfter(-time.Second, start) {
		t.Error("Retry-After: 0 changes the hold")
	}
	if !h.RetryAfter(10*time.Second, start) || h.RetryAfter(10*time.Second, start+sec/2) || h.RetryAfter(time.Second, start) {
		t.Error("only the first of three answers changes the hold")
	}
	want("during the pause", start+10*sec-1, Held, start+10*sec)
	if !h.RetryAfter(10*time.Second, start+5*sec) {
		t.Error("a later answer does not extend the hold")
	}
	want("during the longer pause", start+10*sec, Held, start+15*sec)
	want("after the pause", start+15*sec, Free, 0)
	if !h.RetryAfter(30*24*time.Hour, start+20*sec) {
		t.Error("a new pause after the first does not change the hold")
	}
	want("a month is cut to an hour", start+20*sec, Held, start+20*sec+int64(MaxHold))
	want("after the clock went back a day", start-24*int64(time.Hour), Free, 0)
	if !h.RetryAfter(time.Second, start-24*int64(time.Hour)) {
		t.Error("a target cannot pause the key after the clock went back")
	}
}

// TestCircuit: the circuit opens after connection errors in a row, admits one probe for each
// backoff, and is closed by the answer to a probe of the same opening.
func TestCircuit(t *testing.T) {
	t.Parallel()
	var s Streak
	for i, step := range []struct {
		c    Contact
		open bool
	}{{Unreachable, false}, {Unreachable, false}, {Answered, false}, {Unreachable, false}, {Unknown, false}, {Unreachable, false}, {Unknown, false}, {Unreachable, true}, {Unknown, false}, {Unreachable, true}} {
		if got := s.Count(step.c, 3); got != step.open {
			t.Errorf("call %d: opens %t, want %t", i, got, step.open)
		}
	}
	if s = 0; s.Count(Unreachable, 1) != true || s.Count(Unreachable, 0) {
		t.Error("1 opens at the first error, 0 never")
	}
	var h Hold
	if h.Close(0) || !h.Open(start) || h.Open(start+1) {
		t.Error("a closed circuit opens once")
	}
	at, last := start, time.Duration(0)
	for n := range 12 {
		p, next := h.Ask(at)
		if p != Held || h.TakeProbe(at) {
			t.Fatalf("probe %d: got %d at %d, want to wait", n, p, next-start)
		}
		gap := time.Duration(next - at)
		if gap < last || gap > mostProbe || n == 0 && gap != leastProbe || n > 8 && gap != mostProbe {
			t.Errorf("probe %d comes after %s, the one before after %s", n, gap, last)
		}
		at, last = next, gap
		if !h.TakeProbe(at) || h.TakeProbe(at) {
			t.Fatalf("probe %d is not taken once", n)
		}
	}
	far := h
	if p, _ := far.Ask(at + int64(mostProbe) + int64(CircuitKeep)); p != Free {
		t.Errorf("an hour without a probe: got %d, want free", p)
	}
	if p, _ := far.Ask(start - 24*int64(time.Hour)); p != Free {
		t.Errorf("after the clock went back a day: got %d, want free", p)
	}
	if h.Close(start+1) || h.RetryAfter(time.Hour, at) != true || !h.Close(start) || h.Close(start) {
		t.Error("the probe of an opening closes that opening once")
	}
	if p, until := h.Ask(at + 1); p != Held || until != at+int64(time.Hour) {
		t.Errorf("the target's own pause after the circuit: got %d until %d", p, until)
	}
}
