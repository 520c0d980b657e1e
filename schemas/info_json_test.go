package schemas

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"testing"
)

// TestAppendInfo: what is appended is what the JSON encoder makes of FromRecord,
// for records of any content.
func TestAppendInfo(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	texts := []string{"", "plain", `quote " and \`, "tab\tnew\nline", "ü 世界 <&>", "bad \xff\xfe", "http://user:secret@host/x", "nats:a.b"}
	text := func() string { return texts[rng.IntN(len(texts))] }
	number := func() int64 { return [...]int64{0, 1, 1_700_000_000_123, -5, 253_402_300_799_999}[rng.IntN(5)] }
	for range 5000 {
		r := Record{
			State: State(1 + rng.IntN(7)), Run: rng.Uint32(), Attempt: rng.Uint32N(3), MaxAttempt: rng.Uint32N(3),
			DueMs: number(), ScheduledMs: number(), AddedMs: number(), FiredMs: number(), DoneMs: number(), NextMs: number(),
			Service: text(), Group: text(), Callback: text(), Source: text(), EventID: text(), Type: text(),
			Outcome: Outcome{Code: int32(number()), Error: text(), Response: []byte(text())},
		}
		for range rng.IntN(3) {
			r.History = append(r.History, Operation{Kind: OperationKind(rng.IntN(9)), AtMs: number(), Caller: Caller{By: text(), Account: text(), User: text()}})
		}
		id, rev := NewTimerID(text(), text()), rng.Uint64()
		want, err := json.Marshal(FromRecord(id, &r, rev))
		if err != nil {
			t.Fatal(err)
		}
		sameJSON(t, AppendInfo(nil, id, &r, rev), want, &TimerInfo{}, &TimerInfo{})
		reply := AddReply{Timer: id, Due: FormatTime(r.DueMs), Duplicate: rng.IntN(2) == 0, State: r.State, Remark: text()}
		if want, err = json.Marshal(reply); err != nil {
			t.Fatal(err)
		}
		sameJSON(t, reply.Append(nil), want, &AddReply{}, &AddReply{})
	}
}

// sameJSON compares the values, and the members that are there.
func sameJSON(t *testing.T, got, want []byte, a, b any) {
	t.Helper()
	var ga, wa map[string]any
	for _, in := range []struct {
		text []byte
		into any
	}{{got, a}, {want, b}, {got, &ga}, {want, &wa}} {
		if err := json.Unmarshal(in.text, in.into); err != nil {
			t.Fatalf("%s: %v", in.text, err)
		}
	}
	if !reflect.DeepEqual(a, b) || !reflect.DeepEqual(ga, wa) {
		t.Fatalf("got  %s\nwant %s", got, want)
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
			t.Errorf("%d ms ago: %q, want %q", c.agoMs, got, c.want)
		}
	}
}

// TestLateFrom: lateness counts from when a timer could have fired, not from a due
// time that lay in the past when it was asked for.
func TestLateFrom(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		r    Record
		want int64
	}{
		{"ahead", Record{AddedMs: 10, DueMs: 50}, 50},
		{"in the past", Record{AddedMs: 100, DueMs: 50}, 100},
		{"moved ahead", Record{AddedMs: 10, DueMs: 50, History: []Operation{{Kind: OperationReschedule, AtMs: 20}}}, 50},
		{"moved to the past", Record{AddedMs: 10, DueMs: 50, History: []Operation{{Kind: OperationReschedule, AtMs: 90}}}, 90},
		{"replayed", Record{AddedMs: 10, DueMs: 300, History: []Operation{{Kind: OperationReplay, AtMs: 300}}}, 300},
	} {
		if got := c.r.LateFromMs(); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
