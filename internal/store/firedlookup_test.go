package store

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// TestFiredLookup: find reads each event once, unless a search starts at an earlier time, or
// there are too many events.
func TestFiredLookup(t *testing.T) {
	t.Parallel()
	type event struct {
		ms    int64
		msgID string
	}
	var stream []event
	id := func(i int) schemas.TimerID { return schemas.NewTimerID("/test", fmt.Sprint(i)) }
	for i := range 10 {
		stream = append(stream, event{int64(100 * i), id(i).MsgID(1)}, event{int64(100 * i), id(1000 + i).MsgID(2)}, event{int64(100 * i), "anything.1"})
	}
	reads, broken := 0, errors.New("broken")
	var err error
	l := &firedLookup{max: 11, keep: time.Hour, read: func(_ context.Context, _ []string, after uint64, since time.Time, fn func(string, int64) bool) (uint64, error) {
		for seq := after + 1; seq <= uint64(len(stream)); seq++ {
			if e := stream[seq-1]; after > 0 || e.ms >= since.UnixMilli() {
				reads++
				if after = seq; !fn(e.msgID, e.ms) {
					break
				}
			}
		}
		return after, err
	}}
	find := func(sinceMs int64, want string, wantReads int) {
		t.Helper()
		var asked []schemas.TimerID
		for i := range 2000 {
			asked = append(asked, id(i))
		}
		reads = 0
		fired, ok, err := l.find(t.Context(), sinceMs, asked)
		got := fmt.Sprint(len(fired), ok, err)
		if got != want || reads != wantReads {
			t.Errorf("since %d: %s with %d reads; want %s with %d", sinceMs, got, reads, want, wantReads)
		}
	}
	find(500, "5 true <nil>", 15)
	find(700, "5 true <nil>", 0)
	stream = append(stream, event{1000, id(10).MsgID(1)})
	find(600, "6 true <nil>", 1)
	find(0, "11 true <nil>", 31) // earlier than all searches before
	err = broken
	stream = append(stream, event{1100, id(3).MsgID(1)}, event{1100, id(4).MsgID(1)})
	find(0, "0 false broken", 2)
	err = nil
	find(0, "11 true <nil>", 2)
	l.clear()
	find(900, "4 true <nil>", 6)
	find(0, "11 true <nil>", 33)
	stream = append(stream, event{1200, id(11).MsgID(1)}, event{1200, id(12).MsgID(1)})
	find(0, "0 false <nil>", 1)
	find(900, "0 false <nil>", 0)
	l.tooMany = time.Now()
	find(900, "6 true <nil>", 8)
}
