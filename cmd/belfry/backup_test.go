package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/backup"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// drillTimers is the number of timers of each kind.
const drillTimers = 5

// TestBackupDrill is the drill of docs/operations.md: a busy node is backed up, killed,
// and restored in another folder.
func TestBackupDrill(t *testing.T) {
	t.Parallel()
	calls := newCalls()
	hook := httptest.NewServer(calls)
	t.Cleanup(hook.Close)
	n := serve(t, "")
	js := connectJS(t, n)
	// Due while nothing runs, if the machine is fast enough.
	due := time.Now().Add(10 * time.Second).UTC().Format(time.RFC3339Nano)
	for i := range drillTimers {
		publishAdd(t, js, fmt.Sprintf("far-%d", i), `"timerafter":"1h"`)
		publishAdd(t, js, fmt.Sprintf("due-%d", i), fmt.Sprintf(`"timerat":%q,"timersvc":"orders","timercallback":%q`, due, hook.URL+"/ok"))
		publishAdd(t, js, fmt.Sprintf("cancelled-%d", i), fmt.Sprintf(`"timerat":%q,"timersvc":"orders","timercallback":%q`, due, hook.URL+"/ok"))
	}
	if r := n.client(t, "flow", "set", "api.example.com", "--rate", "100/1m"); r.code != exitOK {
		t.Fatalf("flow set: got %v", r)
	}
	if r := n.client(t, "flow", "set", "adds:counted", "--pending", "5"); r.code != exitOK {
		t.Fatalf("flow set --pending: got %v", r)
	}
	for i := range 3 {
		publishAdd(t, js, fmt.Sprintf("counted-%d", i), `"timerafter":"1h","timersvc":"counted"`)
	}
	counted := func(n *node) bool {
		s := ok[schemas.FlowStatus](t, n, "flow", "show", "adds:counted")[0]
		return s.Uncounted == 0 && len(s.Keys) == 1 && s.Keys[0].Pending == 3
	}
	publishAdd(t, js, "dead", fmt.Sprintf(`"timerafter":"1ms","timersvc":"orders","timermaxattempts":"1","timercallback":%q`, hook.URL+"/gone"))
	publishAdd(t, js, "plain", `"timerafter":"1ms","timersvc":"orders"`)
	publishAdd(t, js, "rejected", `"timersvc":"no due time"`)
	for i := range drillTimers {
		id := fmt.Sprintf("cancelled-%d", i)
		waittest.Until(t, "timer "+id+" is stored, and then cancelled", func() bool { return n.client(t, "cancel", id, "--source", "/drill").code == exitOK })
	}
	waittest.Until(t, "a dead letter, a rejection, and a timer that has fired", func() bool {
		return counted(n) && len(ok[schemas.DeadInfo](t, n, "dead", "ls")) == 1 && len(ok[schemas.RejectedInfo](t, n, "rejected", "ls")) == 1 && state(t, n, "plain") == schemas.StateSuccess
	})

	// Adds continue during the backup. The backup must contain every timer whose add was
	// acknowledged before the backup began.
	ctx, cancel := context.WithCancel(t.Context())
	var adders sync.WaitGroup
	adders.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			if _, err := js.Publish(ctx, schemas.SubjectAdd, drillEvent(fmt.Sprintf("during-%d", i), `"timerafter":"1h"`)); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	dir := filepath.Join(t.TempDir(), "backup")
	m := ok[backup.Manifest](t, n, "backup", dir)[0]
	cancel()
	adders.Wait()
	if m.Shards != 2 || len(m.Streams) != 12 || m.Begun.IsZero() {
		t.Errorf("backup wrote manifest %+v, want 2 shards, 12 streams and a time", m)
	}
	n.client(t, "backup", dir).oneLine(t, exitUsage, "empty")

	if err := n.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-n.done
	data := filepath.Join(t.TempDir(), "data")
	if r := belfryRun(t, "restore", dir, "--data", data); r.code != exitOK || !strings.Contains(r.out, "streams  12") {
		t.Fatalf("belfry restore: got %v, want exit code 0 and 12 streams", r)
	}
	belfryRun(t, "restore", dir, "--data", data).oneLine(t, exitRefused, "exists already")
	restored := serve(t, data)
	belfryRun(t, "restore", dir, "--data", data).oneLine(t, exitInUse)

	for i := range drillTimers {
		if s := state(t, restored, fmt.Sprintf("far-%d", i)); s != schemas.StatePending {
			t.Errorf("after the restore far-%d is %s, want pending", i, s)
		}
		if s := state(t, restored, fmt.Sprintf("cancelled-%d", i)); s != schemas.StateCancelled {
			t.Errorf("after the restore cancelled-%d is %s, want cancelled", i, s)
		}
		id := fmt.Sprintf("due-%d", i)
		waittest.Until(t, "timer "+id+" is called back after the restore", func() bool { return state(t, restored, id) == schemas.StateSuccess && calls.of(id) > 0 })
		if n := calls.of(fmt.Sprintf("cancelled-%d", i)); n > 0 {
			t.Errorf("after the restore cancelled-%d was called back %d times, want none", i, n)
		}
	}
	if d := ok[schemas.DeadInfo](t, restored, "dead", "ls"); len(d) != 1 || d[0].ID != "dead" {
		t.Errorf("after the restore got dead letters %+v, want one with the id dead", d)
	}
	if r := ok[schemas.RejectedInfo](t, restored, "rejected", "ls"); len(r) != 1 || r[0].ID != "rejected" {
		t.Errorf("after the restore got rejections %+v, want one with the id rejected", r)
	}
	if l := ok[schemas.FlowLimitInfo](t, restored, "flow", "ls"); len(l) != 2 || l[0].Pending != 5 || l[1].Rate != "100/1m" {
		t.Errorf("after the restore got limits %+v, want those of adds:counted and api.example.com", l)
	}
	// The numbers of pending timers in the backup are those of owners that are gone.
	waittest.Until(t, "the pending timers are counted", func() bool { return counted(restored) })
	for i, code := range []int{exitOK, exitOK, exitRefused} {
		if r := restored.client(t, "add", "--in", "1h", "--svc", "counted", "--source", "/drill", "--id", fmt.Sprint("more-", i)); r.code != code {
			t.Errorf("add %d beside the 3 of 5 that are pending: got %v, want exit code %d", i, r, code)
		}
	}
	if s := state(t, restored, "plain"); s != schemas.StateSuccess {
		t.Errorf("after the restore plain is %s, want success", s)
	}
}

// TestRestoreRefusesDamage: a damaged backup is not restored, not even in part.
func TestRestoreRefusesDamage(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	publishAdd(t, connectJS(t, n), "one", `"timerafter":"1h"`)
	dir := filepath.Join(t.TempDir(), "backup")
	m := ok[backup.Manifest](t, n, "backup", dir)[0]
	data := filepath.Join(t.TempDir(), "data")
	refused := func(word string) {
		t.Helper()
		belfryRun(t, "restore", dir, "--data", data).oneLine(t, exitUsage, word)
		if _, err := os.Stat(data); err == nil {
			t.Errorf("a refused restore created %s, want nothing", data)
		}
	}
	for name := range m.Streams[1].Files {
		path := filepath.Join(dir, m.Streams[1].Name, name)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		refused("damaged")
		b[len(b)/2] ^= 1
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	manifest := filepath.Join(dir, "manifest.json")
	m.Streams = m.Streams[1:]
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(manifest, b, 0o600); err != nil {
		t.Fatal(err)
	}
	refused("does not list")
	if err := os.Remove(manifest); err != nil {
		t.Fatal(err)
	}
	refused("not a complete backup")
	n.client(t, "restore", dir, "--replicas", "2").oneLine(t, exitUsage, "--replicas")
	belfryRun(t, "restore", dir, "--data", data, "--nats-url", n.nats).oneLine(t, exitUsage, "give one")
}

// TestBackupDuringCallback: a callback ends while a backup is made, after the copy of its record and before that of its
// acknowledged event. After the restore the schedule's run is called back again and ends, and later runs fire.
func TestBackupDuringCallback(t *testing.T) {
	t.Parallel()
	var restored atomic.Bool
	begun, release, again, later := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	begin, repeat, next := sync.OnceFunc(func() { close(begun) }), sync.OnceFunc(func() { close(again) }), sync.OnceFunc(func() { close(later) })
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		first := r.Header.Get("ce-timerrun") == "1"
		switch {
		case first && restored.Load():
			repeat()
		case first:
			begin()
			<-release
		case restored.Load():
			next()
		}
	}))
	t.Cleanup(hook.Close)
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free)
	short := []string{"--retention", "4s", "--sweep-delay", "3s"} // and so a dedup window of 3 s
	n := serve(t, "", short...)
	js := connectJS(t, n)
	publishAdd(t, js, "sweep", fmt.Sprintf(`"timerevery":"1s","timersvc":"orders","timercallback":%q`, hook.URL))
	waittest.Receive(t, "the call of the first run", begun)
	stream, err := js.Stream(t.Context(), schemas.StreamFired)
	if err != nil {
		t.Fatal(err)
	}
	floor := func() uint64 {
		c, err := stream.Consumer(t.Context(), "belfry_orders")
		if err != nil {
			t.Fatal(err)
		}
		return c.CachedInfo().AckFloor.Stream
	}
	nc, err := nats.Connect(n.nats)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	dir := filepath.Join(t.TempDir(), "backup")
	if _, err := backup.Write(t.Context(), backup.Options{Conn: nc, Progress: func(s backup.Stream) {
		if s.Name == "KV_timers_1" {
			free()
			waittest.Until(t, "the event of the first run is acknowledged", func() bool { return floor() > 0 })
		}
	}}, dir); err != nil {
		t.Fatal(err)
	}
	if err := n.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-n.done
	restored.Store(true)
	data := filepath.Join(t.TempDir(), "data")
	if r := belfryRun(t, "restore", dir, "--data", data); r.code != exitOK {
		t.Fatalf("belfry restore: got %v, want exit code 0", r)
	}
	serve(t, data, short...)
	waittest.Receive(t, "the call of the first run after the restore", again)
	waittest.Receive(t, "the call of a later run", later)
}

func connectJS(t *testing.T, n *node) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(n.nats)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return natstest.JetStream(t, nc)
}

func drillEvent(id, more string) []byte {
	return fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":"/drill","type":"t",%s}`, id, more)
}

// publishAdd publishes an add and waits for the acknowledgement.
func publishAdd(t *testing.T, js jetstream.JetStream, id, more string) {
	t.Helper()
	if _, err := js.Publish(t.Context(), schemas.SubjectAdd, drillEvent(id, more)); err != nil {
		t.Fatal(err)
	}
}

// state returns a timer's state; 0 while it is not stored.
func state(t *testing.T, n *node, id string) schemas.State {
	t.Helper()
	r := n.client(t, "get", id, "--source", "/drill", "-o", "json")
	if r.code != exitOK {
		return 0
	}
	return parseLines[schemas.TimerInfo](t, r.out)[0].State
}

// calls counts callbacks by the event's ID. It answers 410 to /gone.
type calls struct {
	mu sync.Mutex
	n  map[string]int
}

func newCalls() *calls { return &calls{n: map[string]int{}} }

func (c *calls) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.n[r.Header.Get("ce-id")]++
	c.mu.Unlock()
	if r.URL.Path == "/gone" {
		w.WriteHeader(http.StatusGone)
	}
}

func (c *calls) of(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[id]
}
