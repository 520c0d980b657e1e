package jet

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestWritesWaitForRestore: after a reconnect no write goes to a stream with journals, alone or in a batch, until
// SetRestored is called. Other streams take writes at once.
func TestWritesWaitForRestore(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t, natstest.SyncAlways)
	c, err := New(srv.Connect(nats.ReconnectWait(time.Millisecond), nats.MaxReconnects(-1)), Options{Timeout: 5 * time.Second, Window: 100})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	for _, name := range []string{"journaled", "plain"} {
		cfg := StreamConfig{Name: name, Subjects: []string{name + ".>"}, Storage: FileStorage, AllowAtomicPublish: true}
		if err := c.CreateStream(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	c.CommitInBatches(Journals{MaxBytes: 1 << 20, Subject: func(stream string) string {
		if stream == "plain" {
			return ""
		}
		return stream + ".journal"
	}})
	// write makes n writes at once, and returns how many of them failed.
	write := func(stream string, n int) (failed int) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range n {
			wg.Add(1)
			c.WriteAsync(stream, "write", stream+".key", nil, nil, func(_ Ack, err error) {
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					failed++
				}
				if err != nil && !errors.Is(err, nats.ErrDisconnected) {
					t.Error(err)
				}
				wg.Done()
			})
		}
		wg.Wait()
		return failed
	}
	const most = 60 // some of them in a batch
	if n := write("journaled", most); n > 0 {
		t.Fatalf("%d writes failed before the connection was lost", n)
	}
	srv.Restart()
	waittest.Until(t, "the client reconnects", func() bool { return c.Reconnects() > 0 })
	waittest.Until(t, "a stream without journals takes writes", func() bool { return write("plain", 1) == 0 })
	for _, n := range []int{1, most} {
		if failed := write("journaled", n); failed != n {
			t.Errorf("%d of %d writes failed before the records were restored", failed, n)
		}
	}
	c.SetRestored("journaled", c.Reconnects())
	if n := write("journaled", most); n > 0 {
		t.Errorf("%d writes failed after the records were restored", n)
	}
}

// TestEmptyJournal: before the next write of a stream whose last batch has a journal and was not answered, an empty journal
// is stored, also if that write goes by itself.
func TestEmptyJournal(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t, natstest.SyncAlways)
	c, err := New(srv.Connect(), Options{Timeout: 5 * time.Second, Window: 100})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	cfg := StreamConfig{Name: "journaled", Subjects: []string{"journaled.>"}, Storage: FileStorage, AllowAtomicPublish: true}
	if err := c.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	c.CommitInBatches(Journals{MaxBytes: 1 << 20, Subject: func(stream string) string { return stream + ".journal" }})
	c.SetRestored("journaled", c.Reconnects())
	c.batches.mu.Lock()
	c.batches.of("journaled").unstored = "writer."
	c.batches.mu.Unlock()
	for range 2 {
		if _, err := c.Await(t.Context(), "write", func(done func(Ack, error)) {
			c.WriteAsync("journaled", "write", "journaled.key", nil, nil, done)
		}); err != nil {
			t.Fatal(err)
		}
	}
	var subjects []string
	for seq := range uint64(3) {
		m, err := c.At(t.Context(), "journaled", seq+1)
		if err != nil {
			t.Fatal(err)
		}
		if subjects = append(subjects, m.Subject); m.Subject != "journaled.journal" {
			continue
		}
		if j, err := ParseJournal(m.Data); err != nil || j.Writes != 0 || j.Writer() != "writer." {
			t.Errorf("the journal is %+v (%v)", j, err)
		}
	}
	if want := []string{"journaled.journal", "journaled.key", "journaled.key"}; !slices.Equal(subjects, want) {
		t.Errorf("the stream has %v, want %v", subjects, want)
	}
}
