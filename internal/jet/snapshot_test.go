package jet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/testsize"
)

func newClient(t *testing.T, nc *nats.Conn, timeout time.Duration) *Client {
	t.Helper()
	c, err := New(nc, Options{Timeout: timeout, Window: 100})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// makeStream makes a stream S with a consumer c and n messages of 100 kB that cannot be
// compressed.
func makeStream(t *testing.T, c *Client, n int) {
	t.Helper()
	if err := c.CreateStream(t.Context(), StreamConfig{Name: "S", Subjects: []string{"s.>"}, Storage: FileStorage, AllowDirect: true}); err != nil {
		t.Fatal(err)
	}
	if err := c.EnsureDurable(t.Context(), Durable{Stream: "S", Name: "c", AckWait: time.Minute, MaxAckPending: 7, AfterSeq: 1}); err != nil {
		t.Fatal(err)
	}
	random := rand.NewChaCha8([32]byte{})
	for i := range n {
		data := make([]byte, 100_000)
		_, _ = random.Read(data) // never fails
		if _, err := c.Publish(t.Context(), "publish", fmt.Sprintf("s.%d", i), Header{"N": {fmt.Sprint(i)}}, data); err != nil {
			t.Fatal(err)
		}
	}
}

// snapshot returns a copy of stream S.
func snapshot(t *testing.T, c *Client) (Copy, []byte) {
	t.Helper()
	var archive bytes.Buffer
	meta, err := c.Snapshot(t.Context(), "S", &archive)
	if err != nil {
		t.Fatal(err)
	}
	return meta, archive.Bytes()
}

// copied returns a client of a new server with a stream S of n messages, and a copy of S.
func copied(t *testing.T, n int) (*Client, Copy, []byte) {
	t.Helper()
	c := newClient(t, natstest.Run(t).Connect(), 30*time.Second)
	makeStream(t, c, n)
	meta, archive := snapshot(t, c)
	return c, meta, archive
}

// deleteStream deletes stream S.
func deleteStream(t *testing.T, c *Client) {
	t.Helper()
	if err := c.DeleteStream(t.Context(), "S"); err != nil {
		t.Fatal(err)
	}
}

// manyMessages are more bytes than the window of a snapshot, so that the server has to
// wait for acknowledgements.
const manyMessages = 3 * snapshotWindowBytes / 100_000

func TestSnapshotRestore(t *testing.T) {
	t.Parallel()
	from, meta, archive := copied(t, manyMessages)
	if msgs, size, err := meta.Totals(); err != nil || msgs != manyMessages || size < manyMessages*100_000 {
		t.Errorf("got a copy of %d messages, %d bytes (%v), want %d messages", msgs, size, err, manyMessages)
	}
	if err := meta.SetReplicas(1); err != nil {
		t.Fatal(err)
	}
	to := newClient(t, natstest.Run(t).Connect(), 30*time.Second)
	if err := to.Restore(t.Context(), "S", meta, bytes.NewReader(archive)); err != nil {
		t.Fatal(err)
	}
	for _, seq := range []uint64{1, manyMessages / 2, manyMessages} {
		want, err := from.At(t.Context(), "S", seq)
		if err != nil {
			t.Fatal(err)
		}
		got, err := to.At(t.Context(), "S", seq)
		if err != nil || got.Subject != want.Subject || !bytes.Equal(got.Data, want.Data) || !got.Time.Equal(want.Time) || got.Header.Get("N") != want.Header.Get("N") {
			t.Errorf("message %d differs after the restore, want subject %s, time %s and the same data (%v)", seq, want.Subject, want.Time, err)
		}
	}
	if info, err := to.Consumer(t.Context(), "consumer", "S", "c"); err != nil || info.Config.MaxAckPending != 7 || info.NumPending != manyMessages-1 {
		t.Errorf("after the restore: got consumer %+v (%v), want its settings and %d pending messages", info, err, manyMessages-1)
	}
	if err := to.Restore(t.Context(), "S", meta, bytes.NewReader(archive)); !errors.Is(err, ErrExists) {
		t.Errorf("restore over an existing stream: got error %v, want ErrExists", err)
	}
	if _, err := to.Snapshot(t.Context(), "X", io.Discard); !errors.Is(err, ErrNoStream) {
		t.Errorf("copy of a missing stream: got error %v, want ErrNoStream", err)
	}
	if err := meta.SetReplicas(3); err != nil {
		t.Fatal(err)
	}
	deleteStream(t, to)
	if err := to.Restore(t.Context(), "S", meta, bytes.NewReader(archive)); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "replicas") {
		t.Errorf("restore with three replicas on one server: got error %v, want ErrRefused with the reason", err)
	}
}

// TestRestoreDamaged checks that a copy that is damaged or cut off creates no stream, and
// that the error has the server's reason.
func TestRestoreDamaged(t *testing.T) {
	t.Parallel()
	c, meta, archive := copied(t, 10)
	deleteStream(t, c)
	flipped := bytes.Clone(archive)
	flipped[len(flipped)/2] ^= 1
	for name, data := range map[string][]byte{"flipped": flipped, "cut off": archive[:len(archive)/2], "no archive": []byte("no archive"), "empty": nil} {
		err := c.Restore(t.Context(), "S", meta, bytes.NewReader(data))
		if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "restore stream S: ") {
			t.Errorf("restore of the copy %q: got error %v, want ErrRefused with the stream", name, err)
		}
		if _, err := c.Stream(t.Context(), "S"); !errors.Is(err, ErrNoStream) {
			t.Errorf("after the refused restore of the copy %q: got error %v for the stream, want ErrNoStream", name, err)
		}
	}
	if err := c.Restore(t.Context(), "S", meta, bytes.NewReader(archive)); err != nil {
		t.Errorf("restore of the intact copy: got error %v, want none", err)
	}
}

// TestCopyDenied checks that a user without permission gets an error at once, with the
// subject, instead of waiting for an answer.
func TestCopyDenied(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "it waits for time-outs")
	deny := func(subject string) *server.Permissions {
		return &server.Permissions{Publish: &server.SubjectPermission{Deny: []string{subject}}}
	}
	s := natstest.Run(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "p"},
			{Username: "copy", Password: "p", Permissions: deny("$JS.API.STREAM.SNAPSHOT.>")},
			{Username: "restore", Password: "p", Permissions: deny("$JS.API.STREAM.RESTORE.>")},
			{Username: "chunks", Password: "p", Permissions: deny("$JS.SNAPSHOT.RESTORE.>")},
			{Username: "acks", Password: "p", Permissions: deny("$JS.SNAPSHOT.ACK.>")},
		}
	})
	// The handler replaces nats.go's, which prints.
	user := func(name string) *Client {
		return newClient(t, s.Connect(nats.UserInfo(name, "p"), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})), time.Minute)
	}
	all := user("all")
	makeStream(t, all, manyMessages)
	meta, archive := snapshot(t, all)
	for _, name := range []string{"copy", "acks"} {
		if _, err := user(name).Snapshot(t.Context(), "S", io.Discard); !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), "$JS.") {
			t.Errorf("copy as user %s: got error %v, want ErrDenied with the subject", name, err)
		}
	}
	deleteStream(t, all)
	for _, name := range []string{"restore", "chunks"} {
		if err := user(name).Restore(t.Context(), "S", meta, bytes.NewReader(archive)); !errors.Is(err, ErrDenied) || !strings.Contains(err.Error(), "$JS.") {
			t.Errorf("restore as user %s: got error %v, want ErrDenied with the subject", name, err)
		}
	}
}

// cutter calls cut in the middle of a copy.
type cutter struct {
	io.Writer
	io.Reader
	left int
	cut  func()
}

func (c *cutter) count(n int) {
	if c.left > 0 {
		if c.left -= n; c.left <= 0 {
			c.cut()
		}
	}
}

func (c *cutter) Write(p []byte) (int, error) { c.count(len(p)); return c.Writer.Write(p) }
func (c *cutter) Read(p []byte) (int, error)  { c.count(len(p)); return c.Reader.Read(p) }

// TestCopyCutOff ends the server's process, and stops it, in the middle of a copy and of a
// restore: the errors say so, and the restore can be repeated.
func TestCopyCutOff(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		cut        func(*natstest.Process)
		timeout    time.Duration
	}{
		{"killed", "connection to NATS was lost", (*natstest.Process).Kill, time.Minute},
		{"stopped", "", func(p *natstest.Process) { p.Signal(syscall.SIGSTOP) }, 2 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := natstest.RunProcess(t, false)
			patient := newClient(t, p.Connect(), 30*time.Second)
			makeStream(t, patient, manyMessages)
			meta, archive := snapshot(t, patient)
			restart := func() *Client {
				p.Kill()
				p.Start()
				c := newClient(t, p.Connect(), tt.timeout)
				for deadline := time.Now().Add(time.Minute); ; {
					if _, err := c.Server(t.Context()); err == nil {
						return c
					} else if time.Now().After(deadline) {
						t.Fatal(err)
					}
				}
			}
			c := newClient(t, p.Connect(), tt.timeout)
			_, err := c.Snapshot(t.Context(), "S", &cutter{Writer: io.Discard, left: snapshotWindowBytes, cut: func() { tt.cut(p) }})
			if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), tt.text) || !strings.Contains(err.Error(), "copy stream S: ") {
				t.Errorf("copy: got error %v, want ErrUnavailable with the stream and %q", err, tt.text)
			}
			c = restart()
			if _, err := c.Stream(t.Context(), "S"); err != nil {
				t.Fatal(err)
			}
			deleteStream(t, c)
			half := &cutter{Reader: bytes.NewReader(archive), left: len(archive) / 2, cut: func() { tt.cut(p) }}
			err = c.Restore(t.Context(), "S", meta, half)
			if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), tt.text) || !strings.Contains(err.Error(), "restore stream S: ") {
				t.Errorf("restore: got error %v, want ErrUnavailable with the stream and %q", err, tt.text)
			}
			c = restart()
			// The server keeps the restored part. A second restore must be possible.
			deleteStream(t, c)
			if err := newClient(t, p.Connect(), time.Minute).Restore(t.Context(), "S", meta, bytes.NewReader(archive)); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCopyEnds checks that a copy ends with its context and with an error of its writer or
// reader.
func TestCopyEnds(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "it waits for time-outs")
	c := newClient(t, natstest.Run(t).Connect(), 30*time.Second)
	makeStream(t, c, manyMessages)
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := c.Snapshot(ctx, "S", &cutter{Writer: io.Discard, left: 1, cut: cancel}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled copy: got error %v, want context.Canceled", err)
	}
	full := errors.New("disk full")
	r, w := io.Pipe()
	_ = r.CloseWithError(full)
	if _, err := c.Snapshot(t.Context(), "S", w); !errors.Is(err, full) {
		t.Errorf("copy to a full disk: got error %v, want the writer's", err)
	}
	meta, archive := snapshot(t, c)
	deleteStream(t, c)
	ctx, cancel = context.WithCancel(t.Context())
	if err := c.Restore(ctx, "S", meta, &cutter{Reader: bytes.NewReader(archive), left: len(archive) / 2, cut: cancel}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled restore: got error %v, want context.Canceled", err)
	}
	deleteStream(t, c)
	if err := c.Restore(t.Context(), "S", meta, r); !errors.Is(err, full) && !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("restore from a broken disk: got error %v, want the reader's", err)
	}
}
