package schemas_test

import (
	"testing"
	"time"

	"github.com/belfryio/belfry/schemas"
)

func TestRetryDelay(t *testing.T) {
	t.Parallel()
	const s, m = time.Second, time.Minute
	for _, c := range []struct {
		first, limit time.Duration
		n            uint32
		want         time.Duration
	}{
		{s, 10 * m, 1, s}, {s, 10 * m, 2, 2 * s}, {s, 10 * m, 5, 16 * s}, {s, 10 * m, 10, 512 * s}, {s, 10 * m, 11, 10 * m},
		{s, 10 * m, 4_000_000_000, 10 * m}, {200 * time.Millisecond, s, 3, 800 * time.Millisecond}, {200 * time.Millisecond, s, 4, s},
		{m, s, 1, s}, {0, 0, 1, time.Millisecond}, {s, 0, 100, schemas.DefaultBackoffTo}, {2 * time.Hour, 0, 1, 2 * time.Hour}, {-s, s, 1, time.Millisecond},
		{1 << 62, 1<<63 - 1, 2, 1<<63 - 1}, // no overflow
	} {
		if got := schemas.RetryDelay(c.first, c.limit, c.n); got != c.want {
			t.Errorf("RetryDelay(%v, %v, %d): got %v, want %v", c.first, c.limit, c.n, got, c.want)
		}
	}
}

func TestRetrySpan(t *testing.T) {
	t.Parallel()
	const s, m = time.Second, time.Minute
	for _, c := range []struct {
		first, limit time.Duration
		from, to     uint32
		want         time.Duration
	}{
		{s, 10 * m, 1, 1, 0}, {s, 10 * m, 1, 2, s}, {s, 10 * m, 1, 4, 7 * s}, {s, 10 * m, 3, 4, 4 * s}, {s, 10 * m, 5, 3, 0},
		{s, 4 * s, 1, 6, 15 * s}, {s, 4 * s, 1, 1_000_000_000, 3*s + 999_999_997*4*s},
		{time.Hour, 24 * time.Hour, 1, 4_000_000_000, 1<<63 - 1}, // no overflow
	} {
		if got := schemas.RetrySpan(c.first, c.limit, c.from, c.to); got != c.want {
			t.Errorf("RetrySpan(%v, %v, %d, %d): got %v, want %v", c.first, c.limit, c.from, c.to, got, c.want)
		}
	}
	if got := schemas.RetrySpan(schemas.DefaultBackoffFirst, schemas.DefaultBackoffTo, 1, schemas.DefaultMaxAttempts); got < schemas.DefaultSpan || got > schemas.DefaultSpan*11/10 {
		t.Errorf("the default policy spans %v, want %v to %v", got, schemas.DefaultSpan, schemas.DefaultSpan*11/10)
	}
}

// TestInfoTellsTheSpan: the answer for a timer with retries has the time of the last
// attempt.
func TestInfoTellsTheSpan(t *testing.T) {
	t.Parallel()
	body, spec, err := parse(doc(t, map[string]any{"timercallback": "https://x.example", "timerbackoff": "1s..1m", "timermaxattempts": "10"}))
	if err != nil {
		t.Fatal(err)
	}
	rec := schemas.Record{
		Definition: schemas.Definition{Callback: spec.Callback, Body: body},
		RunState:   schemas.RunState{State: schemas.StateRetrying, Attempt: 3, MaxAttempt: spec.MaxAttempts, NextMs: 1_000_000},
	}
	// Attempt 4 is next. The delays of 8, 16, 32 and then 60 s follow, up to attempt 10.
	want := schemas.TimeOf(1_000_000 + 1000*(8+16+32+3*60))
	if got := schemas.FromRecord(spec.Timer, &rec, 1); !got.Until.Equal(want) || !got.Next.Equal(schemas.TimeOf(1_000_000)) {
		t.Errorf("got until %s, next %s, want until %s, next %s", got.Until, got.Next, want, schemas.TimeOf(1_000_000))
	}
	rec.State, rec.Body = schemas.StateFail, schemas.Body{}
	if got := schemas.FromRecord(spec.Timer, &rec, 1); !got.Until.IsZero() {
		t.Errorf("a finished timer: got until %s, want none", got.Until)
	}
}
