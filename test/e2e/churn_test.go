//go:build unix

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/proc"
)

// TestChurn runs many timers through a node. All fire, one in ten is called back, and
// finally all that they used has expired. With BELFRY_CHURN, the number of timers, the
// test also waits for the expiry of index entries (half an hour) and of fired events (two
// minutes), and checks that streams, disk, memory and goroutines are back at their sizes
// before.
func TestChurn(t *testing.T) {
	count, whole, config := testsize.Choose(t, "timers", 1000, 1000, 4000), false, "profile: fast\nretention: 2s\nsweep-delay: 1500ms\n"
	if text := os.Getenv("BELFRY_CHURN"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("BELFRY_CHURN=%q must be the number of timers", text)
		}
		// Index entries are kept for half an hour.
		count, whole, config = n, true, "profile: fast\nretention: 15s\nsweep-delay: 12s\nfired-max-age: 2m\n"
	}
	if !whole {
		t.Parallel() // nothing is measured
	}
	data := t.TempDir()
	n := proc.New(t, proc.Options{Config: config, Data: data})
	n.Start()
	n.Ready(t.Context())
	c := connect(t, n.URL())
	empty := c.held()
	// Run some timers first, so that every stream, consumer and buffer exists.
	c.churn("warm", 1000)
	c.gone(empty, false)
	if whole {
		collect(t, n)
	}
	before, fired := c.usage(n, data), c.lastSeq(schemas.StreamFired)
	t.Logf("before: %s", before)
	at := time.Now()
	c.churn("through", count)
	took := time.Since(at)
	t.Logf("%d timers ran through in %s, %.0f a second: %s", count, took.Round(time.Second), float64(count)/took.Seconds(), c.usage(n, data))
	c.gone(empty, whole)
	t.Logf("after %s nothing is left of them: %s", time.Since(at).Round(time.Second), c.usage(n, data))
	// Read it only now: a subscriber receives an event before its stream stores it.
	if fired = c.lastSeq(schemas.StreamFired) - fired; fired != uint64(count) {
		t.Errorf("%d timers were published %d times", count, fired)
	}
	if !whole {
		return
	}
	// nats-server rewrites its files every two minutes, one after another, and Go returns
	// memory to the system gradually.
	const back = 8 * time.Minute
	var after usage
	waittest.UntilWithin(t, back, "all is where it was", func() bool {
		collect(t, n)
		after = c.usage(n, data)
		return after.within(before)
	}, func() string { return after.String() })
	t.Logf("after %s: %s", time.Since(at).Round(time.Second), after)
}

// churnWindow bounds the number of open timers.
const churnWindow = 5000

// churn adds timers and waits until each has ended. At most churnWindow are open at a
// time.
func (c *client) churn(name string, count int) {
	c.t.Helper()
	places := make(chan struct{}, churnWindow)
	for range churnWindow {
		places <- struct{}{}
	}
	done := func() {
		select {
		case places <- struct{}{}:
		default: // a repeated callback
		}
	}
	const call, svc = "churn.callback", "churn"
	defer c.listen(call, func(m *nats.Msg) {
		if err := m.Respond(nil); err != nil {
			c.t.Error(err)
		}
		done()
	})()
	defer c.listen(schemas.SubjectFired(svc), func(m *nats.Msg) {
		// The event does not say that its timer has a callback. Such a timer ends with
		// its callback.
		if id := m.Header.Get("ce-id"); !strings.HasSuffix(id, "0") {
			done()
		}
	})()
	place := func() { waittest.Receive(c.t, "a timer concludes", places) }
	for i := range count {
		place()
		a := attrs{"id": fmt.Sprintf("%s-%d", name, i), "timersvc": svc, "timerafter": "400ms"}
		if i%10 == 0 {
			a["timercallback"] = "nats:" + call
		}
		if _, err := c.js.PublishMsgAsync(binary(a, "text/plain", "x"), jetstream.WithStallWait(bound)); err != nil {
			c.t.Fatal(err)
		}
	}
	for range churnWindow {
		place()
	}
}

// listen calls h for each message until stop is called.
func (c *client) listen(subject string, h nats.MsgHandler) (stop func()) {
	c.t.Helper()
	sub, err := c.nc.Subscribe(subject, h)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		c.t.Fatal(err)
	}
	if err := c.nc.Flush(); err != nil {
		c.t.Fatal(err)
	}
	return func() { _ = sub.Unsubscribe() } // fails only with the connection
}

// gone waits until nothing of the timers is left: no record and, if whole, no index entry
// and no fired event.
func (c *client) gone(empty map[string]uint64, whole bool) {
	c.t.Helper()
	expiry := 5 * time.Minute
	if whole {
		expiry += store.DefaultIndexKeep
	}
	waittest.UntilWithin(c.t, expiry, "nothing is left", func() bool {
		if c.left(schemas.StreamAdd)+c.left(schemas.StreamRetry) > 0 {
			return false
		}
		if !whole {
			for shard := range schemas.DefaultShards {
				bucket := schemas.BucketTimers(shard)
				if c.subjects("KV_"+bucket, "$KV."+bucket+".timer.>") > 0 {
					return false
				}
			}
			return true
		}
		for stream, msgs := range c.held() {
			if (strings.HasPrefix(stream, "KV_timers") || stream == schemas.StreamFired) && msgs > empty[stream] {
				return false
			}
		}
		return true
	})
}

// held returns the number of messages of each stream.
func (c *client) held() map[string]uint64 {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), bound)
	defer cancel()
	all := c.js.ListStreams(ctx)
	held := map[string]uint64{}
	for i := range all.Info() {
		held[i.Config.Name] = i.State.Msgs
	}
	if err := all.Err(); err != nil {
		c.t.Fatal(err)
	}
	return held
}

func (c *client) lastSeq(stream string) uint64 {
	c.t.Helper()
	s, err := c.js.Stream(c.t.Context(), stream)
	if err != nil {
		c.t.Fatal(err)
	}
	return s.CachedInfo().State.LastSeq
}

// subjects counts the keys of a bucket that match a filter.
func (c *client) subjects(stream, filter string) uint64 {
	c.t.Helper()
	// Use the count of a consumer instead of listing the names.
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

// usage is what a node and its server use.
type usage struct {
	messages, storedKB, consumers uint64
	diskMB, residentMB, liveMB    float64
	goroutines, openFiles         float64
}

func (u usage) String() string {
	return fmt.Sprintf("%d messages of %d KB, %d consumers; disk %.1f MB; memory %.0f MB, of it Go's live heap %.0f MB; %.0f goroutines, %.0f files",
		u.messages, u.storedKB, u.consumers, u.diskMB, u.residentMB, u.liveMB, u.goroutines, u.openFiles)
}

func (c *client) usage(n *proc.Node, data string) usage {
	c.t.Helper()
	metrics := n.Metrics()
	u := usage{
		residentMB: metrictest.TextSum(c.t, metrics, "process_resident_memory_bytes") / 1e6,
		// The next collection starts when the heap has twice the size that the last one
		// left.
		liveMB:     metrictest.TextSum(c.t, metrics, "go_memstats_next_gc_bytes") / 2e6,
		goroutines: metrictest.TextSum(c.t, metrics, "go_goroutines"), openFiles: metrictest.TextSum(c.t, metrics, "process_open_fds"),
		diskMB: disk(c.t, data),
	}
	info, err := c.js.AccountInfo(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	u.storedKB, u.consumers = info.Store>>10, uint64(info.Consumers)
	for _, msgs := range c.held() {
		u.messages += msgs
	}
	return u
}

// collect waits for two garbage collections of the node. Reading its metrics allocates
// enough to cause them.
func collect(t *testing.T, n *proc.Node) {
	t.Helper()
	for range 2 {
		at := metrictest.TextSum(t, n.Metrics(), "go_memstats_last_gc_time_seconds")
		waittest.UntilWithin(t, 2*time.Minute, "garbage is collected", func() bool {
			for range 200 {
				if metrictest.TextSum(t, n.Metrics(), "go_memstats_last_gc_time_seconds") > at {
					return true
				}
			}
			return false
		})
	}
}

// disk returns the size of a folder in MB. Files may disappear meanwhile.
func disk(t *testing.T, dir string) float64 {
	t.Helper()
	blocks := int64(0)
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = d.Info()
		}
		if err == nil {
			blocks += info.Sys().(*syscall.Stat_t).Blocks
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return float64(blocks) * 512 / 1e6
}

// within reports whether nothing has grown by more than the usual variation. For each
// shard nats-server leaves the last state of its index and a file of tombstones: 17 MB in
// all after 60,000 timers, 26 MB after a million.
func (u usage) within(before usage) bool {
	const heapMB, residentMB, diskMB, few = 16, 100, 48, 10
	return u.messages <= before.messages && u.storedKB <= before.storedKB && u.consumers <= before.consumers &&
		u.liveMB <= before.liveMB+heapMB && u.residentMB <= before.residentMB+residentMB && u.diskMB <= before.diskMB+diskMB &&
		u.goroutines <= before.goroutines+few && u.openFiles <= before.openFiles+few
}
