package main

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// pausedLine returns the line of an export for a paused timer that is due at a time.
func pausedLine(id string, due time.Time) string {
	return eventLine(id, fmt.Sprintf(`"timersvc":"held","timerat":%q,"belfrystate":"paused","belfrynote":"hot"`, showTime(due)))
}

// stays checks that the timer of a line is paused with its note, has never fired, and has its due time.
func (n *node) stays(t *testing.T, id string, due time.Time) {
	t.Helper()
	info := ok[schemas.TimerInfo](t, n, "get", id, "--source", "/i")[0]
	if info.State != schemas.StatePaused || info.PauseNote != "hot" || !info.Fired.IsZero() || !info.Scheduled.Equal(due) {
		t.Errorf("%s is %s (%q), fired %s, due %s; want it paused and due %s", id, info.State, info.PauseNote, info.Fired, info.Scheduled, due)
	}
}

// TestImportParksWhileItWaits: the due time of a paused timer passes while its add waits for a limit. The timer
// is paused, and does not fire. The clock of the import is an hour behind until then.
func TestImportParksWhileItWaits(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	for _, line := range []string{"flow set adds:held --pending 1", "add --in 2h --svc held --id full --source /i"} {
		if r := n.client(t, strings.Fields(line)...); r.code != exitOK {
			t.Fatal(r)
		}
	}
	client, err := belfry.Connect(t.Context(), n.nats)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	var out, errOut logtest.Buffer
	var passed atomic.Bool
	m := newImporter(&cli{process: process{out: &out, err: &errOut, lookupEnv: func(string) (string, bool) { return "", false }}})
	m.now = func() time.Time {
		if passed.Load() {
			return time.Now()
		}
		return time.Now().Add(-time.Hour)
	}
	due := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
	done := make(chan error, 1)
	go func() {
		done <- m.run(t.Context(), session{client, &clientFlags{}}, strings.NewReader(pausedLine("late", due)))
	}()
	waittest.Until(t, "the add waits for the limit", func() bool { return strings.Contains(errOut.String(), "line 1 waits") })
	passed.Store(true)
	if r := n.client(t, "cancel", "full", "--source", "/i"); r.code != exitOK {
		t.Fatal(r)
	}
	select {
	case err := <-done:
		if err != nil || m.counts.Accepted != 1 || m.counts.Paused != 1 {
			t.Errorf("import: %+v, %v", m.counts, err)
		}
	case <-time.After(bound):
		t.Fatal("the import does not end")
	}
	n.stays(t, "late", due)
}

// TestImportPausesWhatIsLeft: an import was interrupted between the add and the pause of a timer, and is repeated
// when the timer is to be parked, or parked with a later time than before. It pauses the timer.
func TestImportPausesWhatIsLeft(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	near := time.Now().Add(parkMargin / 2).Truncate(time.Millisecond)
	left := func(id string) {
		t.Helper()
		if counts, r := n.imported(t, eventLine(id, fmt.Sprintf(`"timersvc":"held","timerat":%q`, showTime(near)))); r.code != exitOK || counts.Accepted != 1 {
			t.Fatalf("%+v, %v", counts, r)
		}
	}
	for id, due := range map[string]time.Time{"plain": near, "parked": near.Add(-2 * parkStep)} {
		left(id)
		for again, paused := range []int{1, 0} {
			if counts, r := n.imported(t, pausedLine(id, due)); r.code != exitOK || counts.Duplicate != 1 || counts.Paused != paused {
				t.Errorf("%s, import %d: %+v, %v", id, again, counts, r)
			}
			n.stays(t, id, due)
		}
	}
	// Another due time is another event, and a timer that was resumed since stays as it is.
	left("other")
	if counts, r := n.imported(t, pausedLine("other", near.Add(-time.Hour))); r.code != exitRefused || counts.Rejected != 1 {
		t.Errorf("another due time: %+v, %v", counts, r)
	}
	left("resumed")
	for _, op := range []string{"pause", "resume"} {
		if r := n.client(t, op, "resumed", "--source", "/i"); r.code != exitOK {
			t.Fatal(r)
		}
	}
	if counts, r := n.imported(t, pausedLine("resumed", near)); r.code != exitOK || counts.Duplicate != 1 || counts.Paused != 0 {
		t.Errorf("resumed since: %+v, %v", counts, r)
	}
	if info := ok[schemas.TimerInfo](t, n, "get", "resumed", "--source", "/i")[0]; info.State != schemas.StatePending {
		t.Errorf("the import paused what was resumed: %s", info.State)
	}
}
