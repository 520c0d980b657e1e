package backup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

func TestMain(m *testing.M) {
	natstest.MaybeServe()
	goleak.VerifyTestMain(m, natstest.ServerLeaks()...)
}

// oldBackup was made with jsm.go and nats-server 2.15.2. It has one pending timer.
const (
	oldBackup = "testdata/format1"
	oldRecord = "$KV.timers_0.timer.jn4kai3gvujoicsna6j8n9kg58"
)

func client(t *testing.T, nc *nats.Conn) *jet.Client {
	t.Helper()
	c, err := jet.New(nc, jet.Options{Timeout: 10 * time.Second, Window: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// TestRestoreOldBackup restores a backup that an earlier build made, makes a backup of the
// result, and restores that.
func TestRestoreOldBackup(t *testing.T) {
	t.Parallel()
	from := oldBackup
	for range 2 {
		nc := natstest.Run(t, natstest.MaxStore(64<<30)).Connect()
		c := client(t, nc)
		m, err := Restore(t.Context(), Options{Conn: nc}, from)
		if err != nil {
			t.Fatalf("restore %s: %v", from, err)
		}
		if _, err := c.Last(t.Context(), "KV_timers_0", oldRecord); err != nil {
			t.Errorf("the timer of %s: %v", from, err)
		}
		from = filepath.Join(t.TempDir(), "backup")
		again, err := Write(t.Context(), Options{Conn: nc}, from)
		if err != nil {
			t.Fatal(err)
		}
		if len(again.Streams) != len(m.Streams) {
			t.Fatalf("%d streams, want %d", len(again.Streams), len(m.Streams))
		}
		for i, s := range again.Streams {
			// The presence of a node in KV_clock has expired.
			if want := m.Streams[i]; s.Name != want.Name || s.Messages != want.Messages && s.Name != "KV_clock" {
				t.Errorf("%s has %d messages, want %s with %d", s.Name, s.Messages, want.Name, want.Messages)
			}
		}
	}
}

// TestRestoreUndone checks that a restore that is cancelled, or that the server refuses,
// leaves no stream.
func TestRestoreUndone(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t, natstest.MaxStore(64<<30)).Connect()
	c := client(t, nc)
	none := func(what string) {
		t.Helper()
		if err := c.Streams(t.Context(), func(s *jet.StreamInfo) { t.Errorf("%s: stream %s is left", what, s.Config.Name) }); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Restore(ctx, Options{Conn: nc, Progress: func(s Stream) {
		if s.Name == "KV_timers_0" {
			cancel()
		}
	}}, oldBackup)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "has removed the streams") {
		t.Errorf("cancelled: %v", err)
	}
	none("cancelled")
	_, err = Restore(t.Context(), Options{Conn: nc, Replicas: 3}, oldBackup)
	if err == nil || schemas.CodeOf(err) != "" {
		t.Errorf("three replicas on one server: %v, code %q", err, schemas.CodeOf(err))
	}
	none("refused")
}

// TestRestoreWithoutConnection: a restore that loses its connection for good names the streams that it leaves.
func TestRestoreWithoutConnection(t *testing.T) {
	t.Parallel()
	s := natstest.Run(t, natstest.MaxStore(64<<30))
	nc := s.Connect()
	_, err := Restore(t.Context(), Options{Conn: nc, Progress: func(s Stream) {
		if s.Name == "KV_timers_0" {
			nc.Close()
		}
	}}, oldBackup)
	left := streamNames(t, client(t, s.Connect()))
	if err == nil || len(left) < 3 {
		t.Fatalf("error %v, streams %q are left", err, left)
	}
	for _, name := range left {
		if name != "BELFRY_RESTORING" && !strings.Contains(err.Error(), name) {
			t.Errorf("the error does not name stream %s: %v", name, err)
		}
	}
}

// TestInterruptedRestoreIsNotCopied checks that a backup refuses an account with the mark of a restore that was killed:
// an optional stream may be missing.
func TestInterruptedRestoreIsNotCopied(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t, natstest.MaxStore(64<<30)).Connect()
	if _, err := Restore(t.Context(), Options{Conn: nc}, oldBackup); err != nil {
		t.Fatal(err)
	}
	if err := store.BeginRestore(t.Context(), client(t, nc), "another", 1); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "backup")
	if _, err := Write(t.Context(), Options{Conn: nc}, dir); schemas.CodeOf(err) != schemas.CodeConfig || !strings.Contains(err.Error(), "a restore was interrupted") {
		t.Errorf("backup of an account that is restored in part: got %v, want a refusal with the reason", err)
	}
	if _, err := os.Stat(filepath.Join(dir, manifestName)); err == nil {
		t.Error("a backup of an account that is restored in part is complete")
	}
}

// TestRestoreTogether: of several restores that begin at the same moment one restores every stream. The others fail,
// and remove nothing.
func TestRestoreTogether(t *testing.T) {
	t.Parallel()
	s := natstest.Run(t, natstest.MaxStore(64<<30))
	m, err := Read(oldBackup)
	if err != nil {
		t.Fatal(err)
	}
	begin, errs := make(chan struct{}), make(chan error)
	const restores = 8
	for range restores {
		nc := s.Connect()
		go func() {
			<-begin
			_, err := Restore(t.Context(), Options{Conn: nc}, oldBackup)
			errs <- err
		}()
	}
	close(begin)
	done := 0
	for range restores {
		switch err := <-errs; {
		case err == nil:
			done++
		case schemas.CodeOf(err) != schemas.CodeConflict:
			t.Errorf("a restore at the same time as others: %v, code %q, want conflict", err, schemas.CodeOf(err))
		}
	}
	have := len(streamNames(t, client(t, s.Connect())))
	if done != 1 || have != len(m.Streams) {
		t.Errorf("%d restores succeeded, and there are %d streams; want 1 and %d", done, have, len(m.Streams))
	}
}

// TestRestoreDisturbed: a restore whose mark is removed fails, and removes nothing. A restore that finds a stream which another
// client has made meanwhile fails, and removes its own streams, and not that one.
func TestRestoreDisturbed(t *testing.T) {
	t.Parallel()
	m, err := Read(oldBackup)
	if err != nil {
		t.Fatal(err)
	}
	for name, d := range map[string]struct {
		disturb func(*jet.Client) error
		message string
		left    int
	}{
		"no mark": {func(c *jet.Client) error { return c.DeleteStream(t.Context(), "BELFRY_RESTORING") }, "no stream was removed", len(m.Streams)},
		"another stream": {func(c *jet.Client) error {
			return c.CreateStream(t.Context(), jet.StreamConfig{Name: schemas.StreamDead, Subjects: []string{"other"}})
		}, "has removed the streams", 1},
	} {
		nc := natstest.Run(t, natstest.MaxStore(64<<30)).Connect()
		c := client(t, nc)
		_, err := Restore(t.Context(), Options{Conn: nc, Progress: func(s Stream) {
			if s.Name == "KV_timers_0" {
				if err := d.disturb(c); err != nil {
					t.Error(err)
				}
			}
		}}, oldBackup)
		if schemas.CodeOf(err) != schemas.CodeConflict || !strings.Contains(err.Error(), d.message) {
			t.Errorf("%s: %v, code %q, want conflict", name, err, schemas.CodeOf(err))
		}
		if left := streamNames(t, c); len(left) != d.left || !slices.Contains(left, schemas.StreamDead) {
			t.Errorf("%s: streams %q are left, want %d", name, left, d.left)
		}
	}
}

// TestRestoreOfAnother: the streams of a restore are removed by hand, and another restore makes them again while the first one
// runs. The first one fails, and removes nothing of the other, whether that still runs or has ended.
func TestRestoreOfAnother(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		another func(t *testing.T, nc *nats.Conn, c *jet.Client, names []string)
	}{
		{"which runs", func(t *testing.T, _ *nats.Conn, c *jet.Client, names []string) {
			if err := store.BeginRestore(t.Context(), c, "another", 1); err != nil {
				t.Error(err)
			}
			for _, name := range slices.Compact(append(names, schemas.StreamDead)) {
				if name == "BELFRY_RESTORING" {
					continue
				}
				if err := c.CreateStream(t.Context(), jet.StreamConfig{Name: name, Subjects: []string{"other." + name}}); err != nil {
					t.Error(err)
				}
			}
		}},
		{"which has ended", func(t *testing.T, nc *nats.Conn, _ *jet.Client, _ []string) {
			if _, err := Restore(t.Context(), Options{Conn: nc}, oldBackup); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := natstest.Run(t, natstest.MaxStore(64<<30))
			nc := s.Connect()
			own := client(t, nc)
			var made []string
			_, err := Restore(t.Context(), Options{Conn: nc, Progress: func(stream Stream) {
				if stream.Name != "KV_timers_0" {
					return
				}
				names := streamNames(t, own)
				for _, name := range names {
					if err := own.DeleteStream(t.Context(), name); err != nil {
						t.Error(err)
					}
				}
				c.another(t, s.Connect(), own, names)
				made = streamNames(t, own)
			}}, oldBackup)
			if schemas.CodeOf(err) != schemas.CodeConflict || !strings.Contains(err.Error(), "no stream was removed") {
				t.Errorf("%v, code %q, want conflict", err, schemas.CodeOf(err))
			}
			if len(made) < 3 {
				t.Fatalf("the other restore has made %q", made)
			}
			left := streamNames(t, own)
			for _, name := range made {
				if !slices.Contains(left, name) {
					t.Errorf("stream %s of the other restore is gone", name)
				}
			}
		})
	}
}

// streamNames returns the names of all streams of an account, in order.
func streamNames(t *testing.T, c *jet.Client) (names []string) {
	t.Helper()
	if err := c.Streams(t.Context(), func(s *jet.StreamInfo) { names = append(names, s.Config.Name) }); err != nil {
		t.Error(err)
	}
	slices.Sort(names)
	return names
}

// TestDenied checks that a user without permission to copy or restore streams gets an error
// that says so, and that nothing is left.
func TestDenied(t *testing.T) {
	t.Parallel()
	deny := func(subject string) *server.Permissions {
		return &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{subject}}}
	}
	s := natstest.Run(t, natstest.MaxStore(64<<30), func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "p"},
			{Username: "copy", Password: "p", Permissions: deny("$JS.API.STREAM.SNAPSHOT.>")},
			{Username: "restore", Password: "p", Permissions: deny("$JS.API.STREAM.RESTORE.>")},
		}
	})
	quiet := nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})
	if _, err := Restore(t.Context(), Options{Conn: s.Connect(nats.UserInfo("restore", "p"), quiet)}, oldBackup); schemas.CodeOf(err) != schemas.CodeConfig || !errors.Is(err, jet.ErrDenied) {
		t.Errorf("restore: %v", err)
	}
	all := s.Connect(nats.UserInfo("all", "p"))
	if _, err := Restore(t.Context(), Options{Conn: all}, oldBackup); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "backup")
	if _, err := Write(t.Context(), Options{Conn: s.Connect(nats.UserInfo("copy", "p"), quiet)}, dir); schemas.CodeOf(err) != schemas.CodeConfig || !errors.Is(err, jet.ErrDenied) {
		t.Errorf("copy: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, manifestName)); err == nil {
		t.Error("a backup that failed is complete")
	}
}
