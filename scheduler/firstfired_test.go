package scheduler

import (
	"testing"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// TestFirstFiring: the claim of a retry that waited in the wheel keeps the time at which the run
// fired first. A claim that fails, and one of a run that was never published, keep no time.
func TestFirstFiring(t *testing.T) {
	const first = 1234
	for _, c := range []struct {
		name       string
		attempt    uint32
		firstFired int64 // of the record
		want       int64 // the time of the first firing after the claim; 0 for that of the claim
	}{
		{"first retry", 1, 0, first},
		{"second retry", 2, first - 5, first - 5},
		{"replay of a run that was never published", 0, 0, 0},
	} {
		k, now := loaded(t, 1)
		tm := store.Timer{ID: schemas.NewTimerID("/t", "1"), Rev: 7, Record: schemas.Record{
			Definition: schemas.Definition{Service: "s", Callback: "nats:x", Body: schemas.Body{Mode: schemas.ModeStructured, Data: []byte(`{}`)}},
			RunState:   schemas.RunState{State: schemas.StateRetrying, Queued: true, Run: 1, Attempt: c.attempt, FiredMs: first, FirstFiredMs: c.firstFired, DueMs: now + 10, ScheduledMs: first},
		}}
		k.Step(now, EvTail{Timer: tm})
		now += 10
		claim := one[ActClaim](t, k.Step(now, EvTick{}))
		want := c.want
		if want == 0 {
			want = now
		}
		if r := claim.Record; r.FiredMs != now || r.FirstMs() != want {
			t.Errorf("%s: claimed at %d, first fired at %d; want %d and %d", c.name, r.FiredMs, r.FirstMs(), now, want)
		}
		letter := one[ActDeadLetter](t, k.Step(now, EvClaimed{ID: tm.ID, Err: errTooLarge}))
		if fail := one[ActFail](t, k.Step(now, EvDeadLettered{ID: tm.ID})); letter.ID != tm.ID || fail.Record.FiredMs != first || fail.Record.FirstFiredMs != c.firstFired {
			t.Errorf("%s: after a rejected claim the record says %d and %d, want %d and %d", c.name, fail.Record.FiredMs, fail.Record.FirstFiredMs, first, c.firstFired)
		}
	}
}
