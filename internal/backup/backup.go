// Package backup copies all streams and buckets of a Belfry store into a folder,
// while the store is in use, and restores them into an empty JetStream account.
//
// # Guarantees
//
// Every timer whose add was acknowledged before Write began is in the backup, in
// its state at some moment during Write. After a restore it fires when it is due,
// or at once if it is overdue. A timer that was cancelled before Write began stays
// cancelled.
//
// JetStream copies one stream at a time, so the copies differ in age. Write copies the
// streams in the order in which a timer passes through them. A timer that moves during
// Write is therefore in two copies, never in none:
//
//  1. KV_clock         an older low watermark only makes the new owner look at more
//  2. TIMERS_ADD       an add that is stored meanwhile is also a record: a duplicate
//  3. KV_timers_<n>    the records
//  4. TIMERS_FIRED, TIMERS_RETRY
//     an event whose record is still pending in its copy: the timer
//     fires again
//  5. KV_services, TIMERS_DEAD, TIMERS_REJECTED
//
// Changes after Write began may be missing in the backup. Timers that fired since then
// fire again after a restore, under the same idempotency key.
//
// # How it fails
//
// A backup is complete if its folder has manifest.json, which is written last. The
// manifest has the SHA-256 of every file; Read checks them before anything is
// restored. The server checks every message of a stream before it sends the copy,
// so that a damaged block fails the backup. A restore that fails removes the
// streams that it made.
package backup

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/jsm.go"
	"github.com/nats-io/jsm.go/api"
	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

const (
	manifestName = "manifest.json"
	// format is the version of the manifest.
	format = 1
)

// Manifest describes a complete backup.
type Manifest struct {
	Format int `json:"format"`
	// Begun is the JetStream leader's time when the backup began. The backup has
	// everything that was acknowledged before.
	Begun time.Time `json:"begun"`
	// NATS is the version of nats-server that made the copies.
	NATS    string   `json:"nats"`
	Shards  int      `json:"shards"`
	Streams []Stream `json:"streams"`
}

// Stream is one copied stream.
type Stream struct {
	Name     string `json:"name"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
	// Files maps the names of the stream's files to their SHA-256 in hexadecimal.
	Files map[string]string `json:"files"`
}

// Options configure Write and Restore.
type Options struct {
	// Conn is a connection of the account that Belfry's streams live in; required.
	Conn *nats.Conn
	// Timeout bounds each request; default store.DefaultTimeout. A whole stream may
	// take longer.
	Timeout time.Duration
	// Replicas of the restored streams; 0 keeps those of the backup.
	Replicas int
	// Progress is called when a stream is done; nil for none.
	Progress func(Stream)
}

func (o *Options) fill() {
	if o.Timeout == 0 {
		o.Timeout = store.DefaultTimeout
	}
	if o.Progress == nil {
		o.Progress = func(Stream) {}
	}
}

// Write copies the store into dir, which must not exist or must be empty. Errors:
// schemas.ErrUnavailable, fs.ErrExist for a folder with files, and those of the file
// system.
func Write(ctx context.Context, o Options, dir string) (Manifest, error) {
	o.fill()
	if err := makeEmpty(dir); err != nil {
		return Manifest{}, err
	}
	ctx, stop := whileConnected(ctx, o.Conn)
	defer stop()
	look, err := store.Look(o.Conn, o.Timeout)
	if err != nil {
		return Manifest{}, err
	}
	defer look.Close()
	m := Manifest{Format: format, NATS: o.Conn.ConnectedServerVersion()}
	names, err := m.plan(ctx, look)
	if err != nil {
		return Manifest{}, err
	}
	mgr, err := jsm.New(o.Conn, jsm.WithTimeout(o.Timeout))
	if err != nil {
		return Manifest{}, fmt.Errorf("backup: %w", err)
	}
	for _, name := range names {
		s, err := copyStream(ctx, mgr, name, filepath.Join(dir, name))
		if err != nil {
			return Manifest{}, fmt.Errorf("backup: copy stream %s: %w", name, cause(ctx, err))
		}
		m.Streams = append(m.Streams, s)
		o.Progress(s)
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return Manifest{}, fmt.Errorf("backup: %w", err)
	}
	return m, writeSynced(filepath.Join(dir, manifestName), append(b, '\n'))
}

// plan finds the streams to copy, in their order, and checks that none is missing.
func (m *Manifest) plan(ctx context.Context, look *store.Store) ([]string, error) {
	now, err := look.LeaderNow(ctx)
	if err != nil {
		return nil, err
	}
	streams, err := look.Streams(ctx)
	if err != nil {
		return nil, err
	}
	m.Begun = now.UTC()
	have := map[string]bool{}
	for _, s := range streams {
		have[s.Name] = true
		if strings.HasPrefix(s.Name, "KV_"+schemas.BucketTimersPrefix) {
			m.Shards++
		}
	}
	names := order(m.Shards)
	for _, name := range names {
		if !have[name] {
			return nil, schemas.Errorf(schemas.CodeConfig, "there is no stream %s: either no Belfry of this version has run in this account, or the stream was removed", name)
		}
	}
	return names, nil
}

// order is that of the package comment.
func order(shards int) []string {
	names := []string{"KV_" + schemas.BucketClock, schemas.StreamAdd}
	for n := range shards {
		names = append(names, "KV_"+schemas.BucketTimers(n))
	}
	return append(names, schemas.StreamFired, schemas.StreamRetry, "KV_"+schemas.BucketServices, schemas.StreamDead, schemas.StreamRejected)
}

func copyStream(ctx context.Context, mgr *jsm.Manager, name, dir string) (Stream, error) {
	stream, err := mgr.LoadStream(name)
	if err != nil {
		return Stream{}, err
	}
	if _, err := stream.SnapshotToDirectory(ctx, dir, jsm.SnapshotConsumers(), jsm.SnapshotHealthCheck()); err != nil {
		return Stream{}, err
	}
	state, err := readState(dir)
	if err != nil {
		return Stream{}, err
	}
	s := Stream{Name: name, Messages: state.Msgs, Bytes: state.Bytes, Files: map[string]string{}}
	files, err := os.ReadDir(dir)
	if err != nil {
		return Stream{}, err
	}
	for _, f := range files {
		path := filepath.Join(dir, f.Name())
		if s.Files[f.Name()], err = sum(path); err != nil {
			return Stream{}, err
		}
		if err := syncFile(path); err != nil {
			return Stream{}, err
		}
	}
	return s, nil
}

// readState returns the stream's state that the server sent with the copy.
func readState(dir string) (api.StreamState, error) {
	var meta struct{ State api.StreamState }
	b, err := os.ReadFile(filepath.Join(dir, jsm.SnapshotMetaFile))
	if err != nil {
		return meta.State, err
	}
	if err := json.Unmarshal(b, &meta); err != nil {
		return meta.State, fmt.Errorf("%s: %w", jsm.SnapshotMetaFile, err)
	}
	return meta.State, nil
}

// Read reads a backup's manifest and checks every file against it. Errors:
// schemas.CodeConfig for an incomplete or damaged backup.
func Read(dir string) (Manifest, error) {
	var m Manifest
	b, err := os.ReadFile(filepath.Join(dir, manifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return m, schemas.Errorf(schemas.CodeConfig, "folder %s has no %s: it is not a complete backup", dir, manifestName)
	}
	if err != nil {
		return m, fmt.Errorf("backup: %w", err)
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, schemas.Errorf(schemas.CodeConfig, "%s of %s cannot be read: %w", manifestName, dir, err)
	}
	if m.Format != format {
		return m, schemas.Errorf(schemas.CodeConfig, "the backup in %s has format %d; this version of belfry reads %d: use the belfry that made it", dir, m.Format, format)
	}
	if names := order(m.Shards); !slices.EqualFunc(m.Streams, names, func(s Stream, name string) bool { return s.Name == name }) {
		return m, schemas.Errorf(schemas.CodeConfig, "%s of %s does not list the streams of %d shards", manifestName, dir, m.Shards)
	}
	for _, s := range m.Streams {
		for name, want := range s.Files {
			got, err := sum(filepath.Join(dir, s.Name, filepath.Base(name)))
			if err != nil {
				return m, schemas.Errorf(schemas.CodeConfig, "the backup in %s is damaged: %w", dir, err)
			}
			if got != want {
				return m, schemas.Errorf(schemas.CodeConfig, "the backup in %s is damaged: file %s of stream %s has changed since it was written", dir, name, s.Name)
			}
		}
	}
	return m, nil
}

// Restore creates the streams of a backup in an account that has none of them. No Belfry
// node may run in the account. Errors: schemas.ErrConflict if one of the streams
// exists, schemas.CodeConfig for a damaged backup, schemas.ErrUnavailable.
func Restore(ctx context.Context, o Options, dir string) (Manifest, error) {
	o.fill()
	m, err := Read(dir)
	if err != nil {
		return m, err
	}
	ctx, stop := whileConnected(ctx, o.Conn)
	defer stop()
	mgr, err := jsm.New(o.Conn, jsm.WithTimeout(o.Timeout))
	if err != nil {
		return m, fmt.Errorf("backup: %w", err)
	}
	for _, s := range m.Streams {
		known, err := mgr.IsKnownStream(s.Name)
		if err != nil {
			return m, schemas.Errorf(schemas.CodeUnavailable, "look up stream %s: %w", s.Name, err)
		}
		if known {
			return m, schemas.Errorf(schemas.CodeConflict, "stream %s exists already: restore into an account or data folder without Belfry's streams; nothing was changed", s.Name)
		}
	}
	var made []string
	for _, s := range m.Streams {
		made = append(made, s.Name)
		if err := restoreStream(ctx, mgr, o, s, filepath.Join(dir, s.Name)); err != nil {
			return m, errors.Join(fmt.Errorf("restore stream %s: %w", s.Name, cause(ctx, err)), undo(mgr, made))
		}
		o.Progress(s)
	}
	return m, nil
}

func restoreStream(ctx context.Context, mgr *jsm.Manager, o Options, s Stream, dir string) error {
	var opts []jsm.SnapshotOption
	if o.Replicas > 0 {
		var meta struct{ Config api.StreamConfig }
		b, err := os.ReadFile(filepath.Join(dir, jsm.SnapshotMetaFile))
		if err != nil {
			return err
		}
		if err := json.Unmarshal(b, &meta); err != nil {
			return err
		}
		meta.Config.Replicas = o.Replicas
		opts = append(opts, jsm.RestoreConfiguration(meta.Config))
	}
	_, _, err := mgr.RestoreSnapshotFromDirectory(ctx, s.Name, dir, opts...)
	return err
}

// undo removes the streams of a restore that failed.
func undo(mgr *jsm.Manager, names []string) error {
	var errs []error
	for _, name := range names {
		known, err := mgr.IsKnownStream(name)
		if err == nil && known {
			err = mgr.DeleteStream(name)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("stream %s is partly restored and could not be removed: remove it: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// errDisconnected ends a copy whose connection broke: the server does not go on
// with it on another one.
var errDisconnected = errors.New("the connection to NATS was lost; run the command again")

// whileConnected is ctx until the connection breaks.
func whileConnected(ctx context.Context, nc *nats.Conn) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	changed := nc.StatusChanged(nats.DISCONNECTED, nats.RECONNECTING, nats.CLOSED)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-changed:
			cancel(errDisconnected)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
		nc.RemoveStatusListener(changed)
	}
}

// cause returns the cause of the end of ctx if there is one, else err.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func makeEmpty(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	if len(files) > 0 {
		return fmt.Errorf("backup: folder %s has files: name an empty or new folder: %w", dir, fs.ErrExist)
	}
	return nil
}

// sum is the SHA-256 of a file.
func sum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // only read
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func writeSynced(path string, b []byte) error {
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	if err := syncFile(path); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	return nil
}

// syncFile has the file, and its name, survive a power loss.
func syncFile(path string) error {
	for _, p := range []string{path, filepath.Dir(path)} {
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}
