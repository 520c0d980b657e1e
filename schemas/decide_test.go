package schemas

import "testing"

// TestDecideAfterUpdates: a range holds nominal times of one recurrence. After two updates without
// a decision between them, a time of the recurrence between begins a range of its own.
func TestDecideAfterUpdates(t *testing.T) {
	t.Parallel()
	queue := func(ms int64) Decision {
		return Decision{Kind: DecisionQueue, FromMs: ms, ToMs: ms, Count: 1, AtMs: 50_000}
	}
	p := Progress{Decisions: []Decision{{Kind: DecisionQueue, FromMs: 33_000, ToMs: 39_000, Count: 7}}}
	p.ChangedMs = 42_000 // the first update changed from 41,666 on
	p.Decide(queue(41_666))
	if len(p.Decisions) != 2 || p.Decisions[0].Count != 7 || p.Decisions[1].FromMs != 41_666 {
		t.Fatalf("got %+v, want a range of its own for 41666", p.Decisions)
	}
	p.Decide(queue(42_000))
	p.Decide(queue(45_000))
	if n := len(p.Decisions); n != 3 || p.Decisions[2].Count != 2 {
		t.Errorf("got %+v, want 42000 and 45000 in a third range", p.Decisions)
	}
}
