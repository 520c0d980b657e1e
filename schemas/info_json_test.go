package schemas

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestInfoJSON compares the hand-written JSON of answers with that of encoding/json, for
// records of random content: equal values after decoding, and the same members.
func TestInfoJSON(t *testing.T) {
	t.Parallel()
	type plainTimer TimerInfo // without MarshalJSON
	type plainReply AddReply
	rng := rand.New(rand.NewPCG(1, 2))
	texts := []string{"", "plain", `quote " and \`, "tab\tnew\nline", "ü 世界 <&>", "bad \xff\xfe", "http://user:secret@host/x", "nats:a.b"}
	text := func() string { return texts[rng.IntN(len(texts))] }
	number := func() int64 { return [...]int64{0, 1, 1_700_000_000_123, -5, 253_402_300_799_999}[rng.IntN(5)] }
	for range 5000 {
		r := Record{
			Definition: Definition{AddedMs: number(), Service: text(), Group: text(), Callback: text(), Source: text(), EventID: text(), Type: text()},
			RunState:   RunState{State: State(1 + rng.IntN(7)), Run: rng.Uint32(), Attempt: rng.Uint32N(3), MaxAttempt: rng.Uint32N(3), DueMs: number(), ScheduledMs: number(), FiredMs: number(), DoneMs: number(), NextMs: number(), Outcome: Outcome{Code: int32(number()), Error: text(), Response: []byte(text())}},
		}
		for range rng.IntN(3) {
			r.History = append(r.History, Operation{Kind: OperationKind(rng.IntN(9)), AtMs: number(), Caller: Caller{By: text(), Account: text(), User: text()}})
		}
		id, rev := NewTimerID(text(), text()), rng.Uint64()
		info := FromRecord(id, &r, rev)
		sameJSON(t, info, plainTimer(info))
		reply := AddReply{Timer: id, Due: TimeOf(r.DueMs), Duplicate: rng.IntN(2) == 0, State: r.State, Remark: text()}
		sameJSON(t, reply, plainReply(reply))
	}
}

// sameJSON checks that a, with MarshalJSON, and plain, without it, encode alike.
func sameJSON[T any](t *testing.T, a T, plain any) {
	t.Helper()
	var decoded [2]T
	var members [2]map[string]any
	for i, v := range [...]any{a, plain} {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &decoded[i]); err != nil {
			t.Fatalf("cannot decode %s: %v", text, err)
		}
		if err := json.Unmarshal(text, &members[i]); err != nil {
			t.Fatalf("cannot decode %s: %v", text, err)
		}
	}
	if !reflect.DeepEqual(decoded[0], decoded[1]) || !slices.Equal(slices.Sorted(maps.Keys(members[0])), slices.Sorted(maps.Keys(members[1]))) {
		t.Fatalf("got %+v, want, as from encoding/json, %+v", decoded[0], decoded[1])
	}
}

// TestInfoTimes: times in answers always have milliseconds, and unknown ones are absent.
func TestInfoTimes(t *testing.T) {
	t.Parallel()
	at := TimeOf(1_700_000_000_500)
	const text = `"2023-11-14T22:13:20.500Z"`
	for _, c := range []struct {
		v    any
		want []string
		not  string
	}{
		{TimerInfo{Scheduled: at, Due: at, Added: at, History: []OperationInfo{{Op: "cancel", At: at}}}, []string{`"scheduled":` + text, `"due":` + text, `"added":` + text, `"at":` + text}, `"fired"`},
		{AddReply{Due: at}, []string{`"due":` + text}, `"remark"`},
		{DeadInfo{Scheduled: at, Died: at, ErrorData: "a&b"}, []string{`"scheduled":` + text, `"died":` + text}, `"consumer"`},
		{DeadInfo{Died: at}, []string{`"died":` + text}, `"scheduled"`},
		{RejectedInfo{Rejected: at}, []string{`"rejected":` + text}, `"data"`},
	} {
		b, err := json.Marshal(c.v)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range c.want {
			if !strings.Contains(string(b), w) {
				t.Errorf("got %s, want %s in it", b, w)
			}
		}
		if strings.Contains(string(b), c.not) {
			t.Errorf("got %s, want no %s in it", b, c.not)
		}
	}
}

// BenchmarkInfo encodes the answer to a cancel.
func BenchmarkInfo(b *testing.B) {
	r := Record{
		Definition: Definition{AddedMs: 1_700_000_000_000, Service: "orders", Callback: "https://shop.example/expired", Source: "/shop", EventID: "order-17", Type: "order.timeout"},
		RunState:   RunState{State: StateCancelled, DueMs: 1_700_000_000_123, ScheduledMs: 1_700_000_000_123, DoneMs: 1_700_000_000_100, MaxAttempt: 5},
		History:    []Operation{{Kind: OperationCancel, AtMs: 1_700_000_000_100, Caller: Caller{By: "ann"}}},
	}
	id := NewTimerID(r.Source, r.EventID)
	room := make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		info := FromRecord(id, &r, 7)
		room = info.Append(room[:0])
	}
}

func TestPastDueRemark(t *testing.T) {
	t.Parallel()
	const at = 1_700_000_000_000
	for _, c := range []struct {
		agoMs int64
		want  string
	}{
		{-60_000, ""}, {0, ""}, {999, ""}, {1000, "due 1s ago: fires now"}, {1234, "due 1.234s ago: fires now"}, {3 * 3_600_000, "due 3h ago: fires now"},
		{60_000, "due 1m ago: fires now"}, {3_723_500, "due 1h2m3s ago: fires now"}, {at + 62_000_000_000_000, "due 2562047h47m16s ago: fires now"},
	} {
		if got := PastDueRemark(at-c.agoMs, at); got != c.want {
			t.Errorf("due %d ms ago: got remark %q, want %q", c.agoMs, got, c.want)
		}
	}
}

// TestLateFrom: lateness counts from the time at which a timer could fire, not from a due
// time that had passed when it was added.
func TestLateFrom(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		r    Record
		want int64
	}{
		{"ahead", Record{Definition: Definition{AddedMs: 10}, RunState: RunState{DueMs: 50}}, 50},
		{"in the past", Record{Definition: Definition{AddedMs: 100}, RunState: RunState{DueMs: 50}}, 100},
		{"moved ahead", Record{Definition: Definition{AddedMs: 10}, RunState: RunState{DueMs: 50}, History: []Operation{{Kind: OperationReschedule, AtMs: 20}}}, 50},
		{"moved to the past", Record{Definition: Definition{AddedMs: 10}, RunState: RunState{DueMs: 50}, History: []Operation{{Kind: OperationReschedule, AtMs: 90}}}, 90},
		{"replayed", Record{Definition: Definition{AddedMs: 10}, RunState: RunState{DueMs: 300}, History: []Operation{{Kind: OperationReplay, AtMs: 300}}}, 300},
	} {
		if got := c.r.LateFromMs(); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
	}
}
