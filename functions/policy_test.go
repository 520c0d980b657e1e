package functions

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

var testSpec = schemas.Spec{RetryPolicy: schemas.RetryPolicy{MaxAttempts: 3, BackoffFirst: time.Second, BackoffTo: time.Minute}}

func deliveredRecord() schemas.Record {
	return schemas.Record{
		Definition: schemas.Definition{Body: schemas.Body{Mode: schemas.ModeBinary, Data: []byte("x")}},
		RunState:   schemas.RunState{State: schemas.StateDelivered, Run: 1, MaxAttempt: 3, DueMs: 500, ScheduledMs: 500},
	}
}

func TestNext(t *testing.T) {
	t.Parallel()
	p := Policy{ShortDelay: 30 * time.Second, MaxNotNow: 5}
	retry := callback.Retry(callback.ReasonStatus, "500")
	for _, c := range []struct {
		name       string
		attempt    uint32
		max        uint32
		out        callback.Outcome
		random     float64
		step       Step
		delay      time.Duration
		maxAfter   uint32
		stateAfter schemas.State
	}{
		{"success", 0, 3, callback.Outcome{Success: true, Code: 204}, 0, StepSuccess, 0, 3, schemas.StateSuccess},
		{"first failure", 0, 3, retry, 0, StepShortRetry, time.Second, 3, schemas.StateRetrying},
		{"jitter adds", 0, 3, retry, .5, StepShortRetry, 1100 * time.Millisecond, 3, schemas.StateRetrying},
		{"second failure", 1, 3, retry, 0, StepShortRetry, 2 * time.Second, 3, schemas.StateRetrying},
		{"last attempt", 2, 3, retry, 0, StepDead, 0, 3, schemas.StateFail},
		{"permanent", 0, 3, callback.Permanent(callback.ReasonStatus, "410"), 0, StepDead, 0, 3, schemas.StateFail},
		{"one attempt alone", 0, 1, retry, 0, StepDead, 0, 1, schemas.StateFail},
		{"no maximum known", 0, 0, retry, 0, StepShortRetry, time.Second, 3, schemas.StateRetrying},
		{"backoff above Retry-After", 5, 30, callback.Outcome{Retryable: true, RetryAfter: 30 * time.Second}, 0, StepLongRetry, 32 * time.Second, 30, schemas.StateRetrying},
		{"at the short limit", 0, 3, callback.Outcome{Retryable: true, RetryAfter: 30 * time.Second}, 0, StepShortRetry, 30 * time.Second, 3, schemas.StateRetrying},
		{"beyond the short limit", 0, 3, callback.Outcome{Retryable: true, RetryAfter: 30*time.Second + time.Millisecond}, 0, StepLongRetry, 30*time.Second + time.Millisecond, 3, schemas.StateRetrying},
		{"Retry-After below the backoff", 1, 3, callback.Outcome{Retryable: true, RetryAfter: time.Second}, 0, StepShortRetry, 2 * time.Second, 3, schemas.StateRetrying},
		{"Retry-After bounded", 0, 3, callback.Outcome{Retryable: true, RetryAfter: 1000 * time.Hour}, 0, StepLongRetry, callback.MaxRetryAfter, 3, schemas.StateRetrying},
		{"Retry-After bounded with jitter", 0, 3, callback.Outcome{Retryable: true, RetryAfter: 23 * time.Hour}, .9, StepLongRetry, callback.MaxRetryAfter, 3, schemas.StateRetrying},
		{"not now gives back", 2, 3, callback.Outcome{Retryable: true, NotNow: true, RetryAfter: 2 * time.Second}, 0, StepShortRetry, 2 * time.Second, 4, schemas.StateRetrying},
		{"not now does not double", 6, 7, callback.Outcome{Retryable: true, NotNow: true}, 0, StepShortRetry, time.Second, 8, schemas.StateRetrying},
		{"not now has an end", 7, 8, callback.Outcome{Retryable: true, NotNow: true}, 0, StepDead, 0, 8, schemas.StateFail},
	} {
		rec := deliveredRecord()
		rec.Attempt, rec.MaxAttempt = c.attempt, c.max
		spec := testSpec
		if c.max == 30 {
			spec.MaxAttempts = 30
		}
		got := p.Next(rec, c.out, spec, 10_000, c.random)
		r := got.Record
		if got.Step != c.step || got.Delay != c.delay || r.MaxAttempt != c.maxAfter || r.State != c.stateAfter || r.Attempt != c.attempt+1 {
			t.Errorf("%s: Step %d delay %v max %d state %v attempt %d", c.name, got.Step, got.Delay, r.MaxAttempt, r.State, r.Attempt)
		}
		if !rec.State.CanBecome(r.State) {
			t.Errorf("%s: %v cannot become %v", c.name, rec.State, r.State)
		}
		switch {
		case r.State.Final() && (r.Body.Mode != schemas.ModeNone || r.DoneMs != 10_000 || r.Queued):
			t.Errorf("%s: final record keeps %v, done %d, queued %v", c.name, r.Body, r.DoneMs, r.Queued)
		case !r.State.Final() && (r.Body.Mode != schemas.ModeBinary || r.NextMs != 10_000+c.delay.Milliseconds()):
			t.Errorf("%s: body %v, next %d", c.name, r.Body, r.NextMs)
		case c.step == StepLongRetry && (!r.Queued || r.DueMs != r.NextMs), c.step == StepShortRetry && (r.Queued || r.DueMs != 500):
			t.Errorf("%s: queued %v, due %d", c.name, r.Queued, r.DueMs)
		}
	}
}

// TestUnattempted: while no worker takes a timer, it waits in growing steps and uses no
// attempts. Then it has all attempts and starts with the first backoff. The wait is
// bounded.
func TestUnattempted(t *testing.T) {
	t.Parallel()
	p := Policy{ShortDelay: 30 * time.Second, MaxNotNow: 5}
	spec := schemas.Spec{RetryPolicy: schemas.RetryPolicy{MaxAttempts: 3, BackoffFirst: time.Second, BackoffTo: 10 * time.Minute}}
	rec := deliveredRecord()
	none := callback.Outcome{Retryable: true, NotNow: true, Unattempted: true, Reason: callback.ReasonNoResponders}
	nowMs := int64(500)
	for i := range 200 {
		got := p.Next(rec, none, spec, nowMs, 0)
		want := min(time.Second<<min(i, 20), maxWorkerPause)
		if got.Record.State != schemas.StateRetrying || got.Delay != want {
			t.Fatalf("wait %d: state %v, delay %v, want %v", i+1, got.Record.State, got.Delay, want)
		}
		rec = got.Record
		nowMs += got.Delay.Milliseconds()
	}
	failure := callback.Retry(callback.ReasonHandler, "no")
	for i, want := range []time.Duration{time.Second, 2 * time.Second, 0} {
		got := p.Next(rec, failure, spec, nowMs, 0)
		if got.Delay != want || (got.Step == StepDead) != (i == 2) {
			t.Errorf("failure %d after the wait: Step %d, delay %v, want %v", i+1, got.Step, got.Delay, want)
		}
		rec = got.Record
	}
	rec, nowMs = deliveredRecord(), maxWorkerWait.Milliseconds()+500
	for i := range 3 { // its attempts
		if rec = p.Next(rec, none, spec, nowMs, 0).Record; rec.State.Final() != (i == 2) {
			t.Errorf("request %d after %v without a worker: %v", i+1, maxWorkerWait, rec.State)
		}
	}
}

// TestUnattemptedAndNotNow: a run that has waited for a worker for long has all its "not now" answers, also after it was
// stored. When the workers are gone again for a moment, the pauses begin at the first backoff.
func TestUnattemptedAndNotNow(t *testing.T) {
	t.Parallel()
	p := Policy{ShortDelay: 30 * time.Second, MaxNotNow: 5}
	none := callback.Outcome{Retryable: true, NotNow: true, Unattempted: true, Reason: callback.ReasonNoResponders}
	notNow := callback.Outcome{Retryable: true, NotNow: true, RetryAfter: 2 * time.Second, Reason: callback.ReasonRetryLater}
	rec, nowMs := deliveredRecord(), int64(500)
	next := func(out callback.Outcome) Plan {
		t.Helper()
		got := p.Next(rec, out, testSpec, nowMs, 0)
		stored, err := schemas.DecodeRecord(got.Record.Append(nil))
		if err != nil {
			t.Fatal(err)
		}
		rec, nowMs = stored, nowMs+got.Delay.Milliseconds()
		return got
	}
	for range 20 {
		next(none)
	}
	for i := range 5 {
		if got := next(notNow); got.Step == StepDead || rec.MaxAttempt-rec.Attempt != 3 {
			t.Fatalf("\"not now\" number %d: step %d, attempt %d of %d", i+1, got.Step, rec.Attempt, rec.MaxAttempt)
		}
		for _, want := range []time.Duration{time.Second, 2 * time.Second} {
			if got := next(none); got.Delay != want {
				t.Errorf("without a worker after \"not now\" number %d: a pause of %s, want %s", i+1, got.Delay, want)
			}
		}
	}
	if next(notNow); rec.MaxAttempt-rec.Attempt != 2 {
		t.Errorf("\"not now\" number 6 counts as no attempt: %d of %d", rec.Attempt, rec.MaxAttempt)
	}
}

// TestReplayedRunWaits: a replayed run has all its "not now" answers again, and the pauses without a worker begin
// at the first backoff, however many attempts were made before. They are bounded after each replay.
func TestReplayedRunWaits(t *testing.T) {
	t.Parallel()
	p := Policy{ShortDelay: 30 * time.Second, MaxNotNow: 5}
	notNow := callback.Outcome{Retryable: true, NotNow: true, RetryAfter: 2 * time.Second, Reason: callback.ReasonRetryLater}
	rec := deliveredRecord()
	for replay := range 3 {
		calls := 0
		for ; !rec.State.Final(); calls++ {
			rec = p.Next(rec, notNow, testSpec, 1000, 0).Record
		}
		if calls != 5+3 {
			t.Fatalf("after %d replays there were %d calls, want 5 that are free and 3 attempts", replay, calls)
		}
		rec.Replay(deliveredRecord().Body, testSpec.MaxAttempts, true, 2000, schemas.Caller{})
		stored, err := schemas.DecodeRecord(rec.Append(nil))
		if err != nil {
			t.Fatal(err)
		}
		rec = stored
	}
	none := callback.Outcome{Retryable: true, NotNow: true, Unattempted: true, Reason: callback.ReasonNoResponders}
	for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		got := p.Next(rec, none, testSpec, 3000, 0)
		if got.Delay != want {
			t.Errorf("pause %d without a worker after a replay: %s, want %s", i+1, got.Delay, want)
		}
		rec = got.Record
	}
	if got := p.Next(rec, callback.Retry(callback.ReasonStatus, "500"), testSpec, 4000, 0); got.Delay != time.Second {
		t.Errorf("the delay after the first failure since the replay is %s, want the first backoff", got.Delay)
	}
}

// TestEveryRunEnds: whatever the callee answers, a run ends within its attempts and a
// bounded number of attempts that are given back.
func TestEveryRunEnds(t *testing.T) {
	t.Parallel()
	p := Policy{ShortDelay: 30 * time.Second, MaxNotNow: 20}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		spec := testSpec
		spec.MaxAttempts = 1 + rng.Uint32N(10)
		rec := deliveredRecord()
		rec.MaxAttempt = spec.MaxAttempts
		var calls uint32
		for !rec.State.Final() {
			out := callback.Outcome{Retryable: true, NotNow: rng.IntN(2) == 0, RetryAfter: time.Duration(rng.Int64N(int64(time.Hour)))}
			rec = p.Next(rec, out, spec, int64(calls), rng.Float64()).Record
			if calls++; calls > spec.MaxAttempts+20 {
				t.Fatalf("%d calls with %d attempts", calls, spec.MaxAttempts)
			}
		}
		if calls < spec.MaxAttempts {
			t.Fatalf("%d calls of %d attempts", calls, spec.MaxAttempts)
		}
	}
}

func TestAdmit(t *testing.T) {
	t.Parallel()
	claim := schemas.Claim{Run: 2, Attempt: 1}
	rec := func(change func(*schemas.Record)) *store.Timer {
		r := schemas.Record{RunState: schemas.RunState{State: schemas.StateDelivered, Run: 2, Attempt: 1}}
		change(&r)
		return &store.Timer{Record: r}
	}
	retrying := func(queued bool, next int64) *store.Timer {
		return rec(func(r *schemas.Record) {
			r.State, r.Queued, r.NextMs, r.Attempt = schemas.StateRetrying, queued, next, 2
		})
	}
	ack := Admission{}
	for name, c := range map[string]struct {
		t    *store.Timer
		want Admission
	}{
		"gone":                 {nil, ack},
		"cut short by a crash": {rec(func(*schemas.Record) {}), Admission{Run: true}},
		"success":              {rec(func(r *schemas.Record) { r.State = schemas.StateSuccess }), ack},
		"fail":                 {rec(func(r *schemas.Record) { r.State = schemas.StateFail }), ack},
		"cancelled":            {rec(func(r *schemas.Record) { r.State = schemas.StateCancelled }), ack},
		"pending again":        {rec(func(r *schemas.Record) { r.State = schemas.StatePending }), ack},
		"another run":          {rec(func(r *schemas.Record) { r.Run = 3 }), ack},
		"another timer's":      {rec(func(r *schemas.Record) { r.Hash[0] = 1 }), ack},
		"claimed for a retry":  {rec(func(r *schemas.Record) { r.Attempt = 2 }), ack},
		"in the wheel":         {retrying(true, 0), ack},
		"retry due":            {retrying(false, 1000), Admission{Run: true}},
		"retry not due":        {retrying(false, 1250), Admission{Wait: 250 * time.Millisecond}},
	} {
		if got := Admit(claim, c.t, 1000); got != c.want {
			t.Errorf("%s: %+v; want %+v", name, got, c.want)
		}
	}
}

func TestResolveConflict(t *testing.T) {
	t.Parallel()
	claim := schemas.Claim{Run: 1}
	at := func(state schemas.State, attempt uint32, queued bool) *store.Timer {
		return &store.Timer{Rev: 9, Record: schemas.Record{RunState: schemas.RunState{State: state, Run: 1, Attempt: attempt, Queued: queued, NextMs: 1300}}}
	}
	const d, r, s = schemas.StateDelivered, schemas.StateRetrying, schemas.StateSuccess
	for name, c := range map[string]struct {
		t       *store.Timer
		success bool
		goOn    bool
		wait    time.Duration
	}{
		"claimed again by a sweeper":    {at(d, 0, false), false, true, 0},
		"our own write, answer lost":    {at(r, 1, false), false, false, 300 * time.Millisecond},
		"our own long one, answer lost": {at(r, 1, true), false, false, 0},
		"claimed for the next attempt":  {at(d, 1, false), false, false, 0},
		"success after another failed":  {at(r, 1, true), true, true, 0},
		"success recorded before":       {at(s, 1, false), true, false, 0},
		"cancelled meanwhile":           {at(schemas.StateCancelled, 0, false), false, false, 0},
		"gone":                          {nil, true, false, 0},
	} {
		got, a := ResolveConflict(claim, 1, c.success, c.t, 1000)
		if (got != nil) != c.goOn || a.Wait != c.wait {
			t.Errorf("%s: go on %v, wait %v", name, got != nil, a.Wait)
		}
	}
}
