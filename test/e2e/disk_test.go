//go:build unix

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/proc"
)

// maxLogLines bounds the log of a node whose disk is full twice.
const maxLogLines = 500

// TestFullDisk: while the disk of an embedded node is full, adds are refused, and /readyz
// names the reason. When there is room again, the same process continues by itself, and
// every acknowledged timer fires, including timers that became due while the disk was full.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for _, profile := range []string{"safe", "fast"} {
		t.Run(profile, func(t *testing.T) {
			t.Parallel()
			if profile == "fast" {
				testsize.Long(t, "two more outages")
			}
			n := proc.New(t, proc.Options{Config: "profile: " + profile + "\nshards: 2\n"})
			if err := n.SmallDisk(256 << 20); err != nil {
				t.Skipf("NOTHING WAS SHOWN: this machine cannot provide a disk that can be filled: %v", err)
			}
			n.Start()
			n.Ready(t.Context())
			c := diskClient(t, n.URL())

			acked := map[string]bool{}
			add := func(id string, after time.Duration) error {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				_, err := c.Add(ctx, diskEvent(id), belfry.After(after))
				if err == nil {
					acked[id] = true
				}
				return err
			}
			for i := range 100 { // due from now until well into the outage
				if err := add(fmt.Sprintf("before-%d", i), time.Duration(i)*100*time.Millisecond); err != nil {
					t.Fatal(err)
				}
			}
			for round := range 2 { // twice, because it must recover more than once
				if err := n.Fill(); err != nil {
					t.Fatal(err)
				}
				waittest.Until(t, "an add is refused", func() bool {
					return add(fmt.Sprintf("full-%d-%d", round, len(acked)), time.Second) != nil
				}, n.LogTail)
				reportsFullDisk(t, n)
				if err := n.Free(); err != nil {
					t.Fatal(err)
				}
				n.Ready(t.Context())
				id := fmt.Sprintf("after-%d", round)
				waittest.Until(t, "an add is accepted", func() bool { return add(id, time.Millisecond) == nil }, n.LogTail)
				waittest.Until(t, "every acknowledged timer fires", func() bool { return len(missing(acked, firedEvents(t, c))) == 0 },
					func() string { return fmt.Sprint(missing(acked, firedEvents(t, c))) })
			}
			for id, times := range firedEvents(t, c) {
				if times != 1 {
					t.Errorf("timer %s fired %d times, want once", id, times)
				}
			}
			b, err := os.ReadFile(n.LogPath())
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Count(string(b), "\n")
			t.Logf("the node logged %d lines, restarted its server %d times and replaced its process %d times",
				lines, strings.Count(string(b), "the embedded server was restarted"), strings.Count(string(b), "the process is replaced by"))
			if lines > maxLogLines {
				t.Errorf("the node logged %d lines about two full disks, want %d at most", lines, maxLogLines)
			}
		})
	}
}

func diskEvent(id string) event.Event {
	e := event.New()
	e.SetID(id)
	e.SetSource("/disk")
	e.SetType("disk")
	return e
}

func diskClient(t *testing.T, url string) *belfry.Client {
	t.Helper()
	c, err := belfry.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// firedEvents counts the events in TIMERS_FIRED by their IDs.
func firedEvents(t *testing.T, c *belfry.Client) map[string]int {
	t.Helper()
	js := natstest.JetStream(t, c.Conn())
	stream, err := js.Stream(t.Context(), schemas.StreamFired)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	state := stream.CachedInfo().State
	for seq := max(state.FirstSeq, 1); seq <= state.LastSeq; seq++ {
		m, err := stream.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		e, _, _, err := schemas.ParseFired(m.Header, m.Data)
		if err != nil {
			t.Fatal(err)
		}
		out[e.ID()]++
	}
	return out
}

// missing returns the acknowledged timers that have not fired.
func missing(acked map[string]bool, fired map[string]int) []string {
	var out []string
	for id := range acked {
		if fired[id] == 0 {
			out = append(out, id)
		}
	}
	return out
}

// reportsFullDisk waits until /readyz names the full disk.
func reportsFullDisk(t *testing.T, n *proc.Node) {
	t.Helper()
	waittest.Until(t, "readyz names the disk", func() bool {
		status, body, err := n.Readiness()
		return err == nil && status == http.StatusServiceUnavailable && strings.Contains(body, "is full: 0 MB free, needs ")
	}, n.LogTail)
}

// TestStartOnFullDisk: a node that starts while its disk is full waits for room.
func TestStartOnFullDisk(t *testing.T) {
	t.Parallel()
	n := proc.New(t, proc.Options{Config: "shards: 2\n"})
	if err := n.SmallDisk(256 << 20); err != nil {
		t.Skipf("NOTHING WAS SHOWN: this machine cannot provide a disk that can be filled: %v", err)
	}
	n.Start()
	n.Ready(t.Context())
	n.Terminate()
	if err := n.Fill(); err != nil {
		t.Fatal(err)
	}
	n.Start()
	reportsFullDisk(t, n)
	if err := n.Free(); err != nil {
		t.Fatal(err)
	}
	n.Ready(t.Context())
	c := diskClient(t, n.URL())
	if _, err := c.Add(t.Context(), diskEvent("x"), belfry.After(time.Hour)); err != nil {
		t.Error(err)
	}
}
