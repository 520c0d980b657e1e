package order

import (
	"encoding/json"
	"reflect"
	"testing"
)

// event returns an event with an id, due at a time.
func event(n byte, dueMs int64) Event {
	e := Event{DueMs: dueMs, AddedMs: 7}
	e.ID[0] = n
	return e
}

// key is the state of one key, changed by nodes.
type key struct {
	t *testing.T
	State
	most int
}

// ask asks one question and returns its answer and the wakes.
func (k *key) ask(node string, nowMs int64, a Ask) (Answer, []Wake) {
	answers, wakes := Decide(&k.State, node, nowMs, k.most, []Ask{a})
	return answers[0], wakes
}

// TestLease: a call that runs on a node counts until its lease ends: another node neither calls the
// event, nor can it give the turn on. A lease from before the clock was set back does not count.
func TestLease(t *testing.T) {
	t.Parallel()
	k := key{t: t, most: 10}
	a, b := event(1, 100), event(2, 200)
	now := int64(1_000_000)
	if got, _ := k.ask("one", now, Ask{Kind: Join, Event: a}); !got.Go {
		t.Fatalf("the first event: got %+v", got)
	}
	if got, _ := k.ask("two", now+1, Ask{Kind: Join, Event: a}); !got.Busy || got.AtMs != now+11_000 {
		t.Fatalf("the same event on another node: got %+v", got)
	}
	if got, wakes := k.ask("two", now+2, Ask{Kind: Join, Event: b}); got.Go || got.AtMs != now+2+30_000 || len(wakes) > 0 {
		t.Fatalf("another event: got %+v, wakes %v", got, wakes)
	}
	for _, node := range []string{"two", ""} {
		if _, wakes := k.ask(node, now+3, Ask{Kind: Done, Event: a}); k.Head != a || len(wakes) > 0 {
			t.Fatalf("%q ended the event that another node calls: %+v", node, k.State)
		}
	}
	if got, _ := k.ask("one", now+9_000, Ask{Kind: Keep, Event: a}); !got.Go || k.UntilMs != now+19_000 {
		t.Fatalf("a renewal: got %+v, %+v", got, k.State)
	}
	// The clock is set back by an hour: the lease cannot be that long.
	back := now - 3_600_000
	if got, _ := k.ask("two", back, Ask{Kind: Join, Event: a}); !got.Go {
		t.Fatalf("after the clock was set back: got %+v", got)
	}
	if got, _ := k.ask("one", back+1, Ask{Kind: Keep, Event: a}); got.Go {
		t.Fatal("a node renews a lease that another took")
	}
	if _, wakes := k.ask("one", back+2, Ask{Kind: Leave, Event: a, Look: true}); k.Node != "two" || !reflect.DeepEqual(wakes, []Wake{{a, back + 2}}) {
		t.Fatalf("a lost call ends: %+v, wakes %v", k.State, wakes)
	}
	if _, wakes := k.ask("two", back+3, Ask{Kind: Done, Event: a}); k.Head != b || !reflect.DeepEqual(wakes, []Wake{{b, back + 3}}) {
		t.Fatalf("the end: %+v, wakes %v", k.State, wakes)
	}
}

// TestPlaces: events without a place are collected before others that are due later pass, and the
// first of them is woken when the collection ends, also if the clock was set back.
func TestPlaces(t *testing.T) {
	t.Parallel()
	k := key{t: t, most: 2}
	now := int64(1_000_000)
	k.ask("n", now, Ask{Kind: Join, Event: event(1, 1)})
	k.ask("n", now, Ask{Kind: Join, Event: event(2, 2)})
	k.ask("n", now, Ask{Kind: Join, Event: event(4, 4)})
	if got, wakes := k.ask("n", now, Ask{Kind: Join, Event: event(3, 3)}); got.Go || !reflect.DeepEqual(wakes, []Wake{{event(4, 4), now + 10_000}}) {
		t.Fatalf("got %+v, wakes %v; want the last event to lose its place", got, wakes)
	}
	if got, _ := k.ask("n", now, Ask{Kind: Join, Event: event(5, 5)}); got.AtMs != now+10_000 || len(k.Waiting) != 2 {
		t.Fatalf("without room: got %+v", got)
	}
	for n := byte(1); n <= 3; n++ {
		k.ask("n", now+1000, Ask{Kind: Join, Event: event(n, int64(n))})
		k.ask("n", now+1000, Ask{Kind: Done, Event: event(n, int64(n))})
	}
	if !k.Head.IsZero() || k.ReopenMs != now+16_000 {
		t.Fatalf("got %+v, want a collection", k.State)
	}
	if got, wakes := k.ask("n", now+2000, Ask{Kind: Join, Event: event(5, 5)}); got.Go || got.AtMs != k.ReopenMs || len(wakes) != 1 || wakes[0].AtMs != k.ReopenMs {
		t.Fatalf("a collected event: got %+v, wakes %v", got, wakes)
	}
	k.ask("n", now+3000, Ask{Kind: Join, Event: event(4, 4)})
	set := k.Clone()
	back := key{t: t, State: set, most: 2}
	if got, _ := back.ask("n", now-3_600_000, Ask{Kind: Join, Event: event(4, 4)}); !got.Go {
		t.Errorf("after the clock was set back: got %+v", got)
	}
	if got, wakes := k.ask("n", k.ReopenMs, Ask{Kind: Confirm, Event: event(5, 5)}); got.Go || k.Head.DueMs != 4 || len(wakes) != 1 || wakes[0].Event.DueMs != 4 {
		t.Errorf("the collection ends: got %+v, wakes %v", k.State, wakes)
	}
}

// TestReplayIsQueuedAgain: an event that comes again with another due time gets that place.
func TestReplayIsQueuedAgain(t *testing.T) {
	t.Parallel()
	k := key{t: t, most: 10}
	k.ask("n", 1000, Ask{Kind: Join, Event: event(1, 1)})
	k.ask("n", 1000, Ask{Kind: Join, Event: event(2, 2)})
	k.ask("n", 1000, Ask{Kind: Join, Event: event(3, 3)})
	k.ask("n", 1000, Ask{Kind: Join, Event: event(2, 5)})
	if len(k.Waiting) != 2 || k.Waiting[1].DueMs != 5 {
		t.Errorf("got %+v", k.Waiting)
	}
}

// TestEncoding: a state survives its JSON, and damaged events are an error. A full state fits in a
// message of 64 KiB.
func TestEncoding(t *testing.T) {
	t.Parallel()
	full := State{Head: event(1, 1), SinceMs: 5, TurnMs: 4, Node: "n", UntilMs: 6, Bound: event(2, 2), NextBound: event(3, 3), ReopenMs: 9}
	for i := range MaxWaiting {
		e := event(byte(i), 1_800_000_000_000+int64(i)*60_000)
		e.ID[1], e.ID[15] = byte(i>>8), 1
		full.Waiting = append(full.Waiting, e)
	}
	for _, s := range []State{{}, {Head: event(1, -5)}, full} {
		b, err := json.Marshal(s)
		if err != nil || len(b) > 64<<10 {
			t.Fatalf("%d bytes, %v", len(b), err)
		}
		var got State
		if err := json.Unmarshal(b, &got); err != nil || !reflect.DeepEqual(got, s) {
			t.Errorf("got %+v, %v; want %+v", got, err, s)
		}
	}
	for _, text := range []string{`{"w":"AQ=="}`, `{"h":"AAAAAAAAAAAAAAAAAAAAAAAA"}`, `{"w":5}`} {
		var got State
		if err := json.Unmarshal([]byte(text), &got); err == nil {
			t.Errorf("%s: got %+v, want an error", text, got)
		}
	}
}
