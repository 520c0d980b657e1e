package e2e

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/proc"
)

// TestChurn lets timers run through a node, each fired and one in ten called back,
// and waits until what they left has expired: streams and memory are where they
// began. BELFRY_CHURN sets how many; with it the index entries and the events on
// timers.fired, which are kept for minutes, are waited for too.
func TestChurn(t *testing.T) {
	count, whole := 4000, false
	if text := os.Getenv("BELFRY_CHURN"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("BELFRY_CHURN=%q must be how many timers", text)
		}
		count, whole = n, true
	}
	// The index is kept for two minutes and two sweep delays.
	n := proc.New(t, proc.Options{Config: "profile: fast\nretention: 5s\nsweep-delay: 1s\nfired-max-age: 2m\n"})
	n.Start()
	n.Ready(t.Context())
	c := connect(t, n.URL())
	sub, err := c.nc.Subscribe("churn.callback", func(m *nats.Msg) {
		if err := m.Respond(nil); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		t.Fatal(err)
	}
	// Once through, so that every stream, consumer and buffer is there.
	c.churn("warm", 2000)
	c.eventuallyEmpty(t, false)
	before, at := c.usage(n), time.Now()
	c.churn("through", count)
	took := time.Since(at)
	c.eventuallyEmpty(t, whole)
	after := c.usage(n)
	t.Logf("%d timers ran through in %s\nbefore: %s\nafter:  %s", count, took.Round(time.Second), before, after)
}

// churn adds timers in waves and waits until the last of them has concluded.
func (c *client) churn(name string, count int) {
	c.t.Helper()
	const wave = 5000
	for first := 0; first < count; first += wave {
		for i := first; i < min(first+wave, count); i++ {
			a := attrs{"id": fmt.Sprintf("%s-%d", name, i), "timersvc": "churn", "timerafter": "1s"}
			if i%10 == 0 {
				a["timercallback"] = "nats:churn.callback"
			}
			if _, err := c.js.PublishMsgAsync(binary(a, "text/plain", "x"), jetstream.WithStallWait(bound)); err != nil {
				c.t.Fatal(err)
			}
		}
		select {
		case <-c.js.PublishAsyncComplete():
		case <-time.After(bound):
			c.t.Fatal("adds were not acknowledged")
		}
	}
	last := fmt.Sprintf("%s-%d", name, count-1)
	limit := bound + time.Duration(count)*time.Millisecond // a slow machine's thousand a second
	within(c.t, limit, "the last one done, or gone again", func() bool {
		i, err := c.info(last)
		return err == nil && i.State == schemas.StateSuccess || schemas.CodeOf(err) == schemas.CodeNotFound && c.left(schemas.StreamAdd) == 0
	})
}

// within waits for something that may take long.
func within(t *testing.T, limit time.Duration, what string, done func() bool) {
	t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// eventuallyEmpty waits until nothing is left of the timers.
func (c *client) eventuallyEmpty(t *testing.T, whole bool) {
	t.Helper()
	const expiry = 5 * time.Minute
	keys := []string{".timer.>"}
	if whole {
		keys = append(keys, ".slot.>")
	}
	within(t, expiry, "nothing is left", func() bool {
		left := map[string]uint64{schemas.StreamAdd: c.left(schemas.StreamAdd), schemas.StreamRetry: c.left(schemas.StreamRetry)}
		if whole {
			left[schemas.StreamFired] = c.left(schemas.StreamFired)
		}
		for shard := range schemas.DefaultShards {
			for _, key := range keys {
				bucket := schemas.BucketTimers(shard)
				left[bucket+key] = c.subjects("KV_"+bucket, "$KV."+bucket+key)
			}
		}
		sum := uint64(0)
		for _, n := range left {
			sum += n
		}
		return sum == 0
	})
}

// subjects counts the keys of a bucket that match.
func (c *client) subjects(stream, filter string) uint64 {
	c.t.Helper()
	// Counted by a consumer, not by listing a million names.
	ctx, cancel := context.WithTimeout(c.t.Context(), bound)
	defer cancel()
	cons, err := c.js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{FilterSubject: filter, AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true})
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.js.DeleteConsumer(ctx, stream, cons.CachedInfo().Name); err != nil {
		c.t.Fatal(err)
	}
	return cons.CachedInfo().NumPending
}

var metricLine = regexp.MustCompile(`(?m)^(process_resident_memory_bytes|go_memstats_heap_inuse_bytes|process_open_fds|go_goroutines) (\S+)$`)

// usage is what the node's process has of memory, files and goroutines, and what
// its streams hold.
func (c *client) usage(n *proc.Node) string {
	c.t.Helper()
	var out []string
	for _, m := range metricLine.FindAllStringSubmatch(n.Metrics(), -1) {
		v, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			c.t.Fatal(err)
		}
		if strings.HasSuffix(m[1], "_bytes") {
			out = append(out, fmt.Sprintf("%s %.0f MB", m[1], v/1e6))
			continue
		}
		out = append(out, fmt.Sprintf("%s %.0f", m[1], v))
	}
	info, err := c.js.AccountInfo(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.Join(append(out, fmt.Sprintf("streams %d MB", info.Store>>20)), ", ")
}
