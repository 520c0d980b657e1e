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
//     fires again. An event that is acknowledged in its copy, and
//     whose record has no result in its own: the sweeper fires it again
//  5. KV_services, KV_calendars, KV_flows, TIMERS_DEAD, TIMERS_REJECTED, TIMERS_OVERDUE,
//     TIMERS_TENANT_FIRED
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
// streams that it made. A restore that is killed leaves a mark in the account, which makes
// nodes, backups and further restores refuse it; see store.BeginRestore.
package backup

import (
	"context"
	"crypto/rand"
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

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

const (
	manifestName = "manifest.json"
	// format is the version of the manifest.
	format = 1

	// The files of a stream's folder: its settings and state (jet.Copy), and its archive.
	// The archive has a name for each of nats-server's two formats, the older one of servers
	// before 2.15. The command-line tool of NATS uses the same names, so that it can restore
	// a single stream of a backup.
	copyName       = "backup.json"
	archiveName    = "stream.arc.s2"
	oldArchiveName = "stream.tar.s2"
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
	Conn *jet.Conn
	// Timeout bounds each request; default store.DefaultTimeout. A whole stream may
	// take longer.
	Timeout time.Duration
	// Replicas of the restored streams; 0 keeps those of the backup.
	Replicas int
	// Progress is called when a stream is done; nil for none.
	Progress func(Stream)
}

// open makes the client of a backup. A refusal of the server keeps its own error: it is
// neither a wrong setting nor a server that cannot be reached.
func (o *Options) open() (*jet.Client, error) {
	c, err := jet.New(o.Conn, jet.Options{Timeout: o.Timeout, Window: 1, MapError: func(err error) error {
		if errors.Is(err, jet.ErrRefused) {
			return err
		}
		return store.MapError(err)
	}})
	if err != nil {
		return nil, fmt.Errorf("backup: %w", err)
	}
	return c, nil
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
	c, err := o.open()
	if err != nil {
		return Manifest{}, err
	}
	defer c.Close()
	archive := archiveName
	server, err := c.Server(ctx)
	if err != nil {
		return Manifest{}, err
	}
	if server.Older(2, 15) {
		archive = oldArchiveName
	}
	for _, name := range names {
		s, err := copyStream(ctx, c, name, filepath.Join(dir, name), archive)
		if err != nil {
			return Manifest{}, fmt.Errorf("backup: %w", err)
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
func (m *Manifest) plan(ctx context.Context, look *store.View) ([]string, error) {
	if err := look.CheckRestored(ctx); err != nil { // optional streams may be missing
		return nil, err
	}
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
	names := order(m.Shards, func(name string) bool { return have[name] })
	for _, name := range names {
		if !have[name] {
			return nil, schemas.Errorf(schemas.CodeConfig, "there is no stream %s: either no Belfry of this version has run in this account, or the stream was removed", name)
		}
	}
	return names, nil
}

// optional are the streams that a store lacks until a node of a version that uses them has
// opened it.
var optional = []string{"KV_" + schemas.BucketCalendars, "KV_" + schemas.BucketFlows, schemas.StreamOverdue, schemas.StreamTenantFired}

// order returns the streams in the order of the package comment, without the optional ones for
// which has returns false.
func order(shards int, has func(name string) bool) []string {
	names := []string{"KV_" + schemas.BucketClock, schemas.StreamAdd}
	for n := range shards {
		names = append(names, "KV_"+schemas.BucketTimers(n))
	}
	names = append(names, schemas.StreamFired, schemas.StreamRetry,
		"KV_"+schemas.BucketServices, "KV_"+schemas.BucketCalendars, "KV_"+schemas.BucketFlows, schemas.StreamDead, schemas.StreamRejected, schemas.StreamOverdue, schemas.StreamTenantFired)
	return slices.DeleteFunc(names, func(name string) bool { return slices.Contains(optional, name) && !has(name) })
}

// copyStream copies a stream into a folder that does not exist yet.
func copyStream(ctx context.Context, c *jet.Client, name, dir, archive string) (Stream, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return Stream{}, err
	}
	f, err := os.OpenFile(filepath.Join(dir, archive), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return Stream{}, err
	}
	meta, err := c.Snapshot(ctx, name, f)
	if err = errors.Join(err, f.Close()); err != nil {
		return Stream{}, err
	}
	s := Stream{Name: name, Files: map[string]string{}}
	if s.Messages, s.Bytes, err = meta.Totals(); err != nil {
		return Stream{}, err
	}
	b, err := json.MarshalIndent(meta, "", "  ")
	if err != nil {
		return Stream{}, err
	}
	if err := os.WriteFile(filepath.Join(dir, copyName), b, 0o600); err != nil {
		return Stream{}, err
	}
	for _, file := range []string{archive, copyName} {
		path := filepath.Join(dir, file)
		if s.Files[file], err = sum(path); err != nil {
			return Stream{}, err
		}
		if err := syncFile(path); err != nil {
			return Stream{}, err
		}
	}
	return s, nil
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
	names := order(m.Shards, func(name string) bool {
		return slices.ContainsFunc(m.Streams, func(s Stream) bool { return s.Name == name })
	})
	if !slices.EqualFunc(m.Streams, names, func(s Stream, name string) bool { return s.Name == name }) {
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
// exists, or another restore has begun and not ended; schemas.CodeConfig for a damaged backup, schemas.ErrUnavailable.
func Restore(ctx context.Context, o Options, dir string) (Manifest, error) {
	o.fill()
	m, err := Read(dir)
	if err != nil {
		return m, err
	}
	c, err := o.open()
	if err != nil {
		return m, err
	}
	defer c.Close()
	if err := store.CheckRestored(ctx, c, schemas.CodeConflict); err != nil {
		return m, err
	}
	for _, s := range m.Streams {
		switch _, err := c.Stream(ctx, s.Name); {
		case err == nil:
			return m, schemas.Errorf(schemas.CodeConflict, "stream %s exists already: restore into an account or data folder without Belfry's streams; nothing was changed", s.Name)
		case !errors.Is(err, jet.ErrNoStream):
			return m, err
		}
	}
	var made []string
	id := rand.Text()
	failed := func(err error) error {
		if left := undo(ctx, c, o, id, made); left != nil {
			return errors.Join(err, left)
		}
		return fmt.Errorf("%w; the restore has removed the streams that it made", err)
	}
	if err := store.BeginRestore(ctx, c, id, o.Replicas); err != nil {
		if errors.Is(err, schemas.ErrConflict) {
			return m, err // nothing was made
		}
		return m, failed(err)
	}
	for _, s := range m.Streams {
		err := restoreStream(ctx, c, o, s, filepath.Join(dir, s.Name))
		if errors.Is(err, jet.ErrExists) { // another client created it, so it stays
			return m, failed(schemas.Errorf(schemas.CodeConflict, "another client created stream %s during the restore: %w", s.Name, err))
		}
		made = append(made, s.Name)
		if err != nil {
			return m, failed(err)
		}
		o.Progress(s)
	}
	if err := store.EndRestore(ctx, c, id); err != nil {
		if errors.Is(err, schemas.ErrConflict) {
			return m, err // the streams may be those of another restore
		}
		return m, failed(err)
	}
	return m, nil
}

func restoreStream(ctx context.Context, c *jet.Client, o Options, s Stream, dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, copyName))
	if err != nil {
		return err
	}
	var meta jet.Copy
	if err := json.Unmarshal(b, &meta); err != nil {
		return fmt.Errorf("%s of stream %s: %w", copyName, s.Name, err)
	}
	if o.Replicas > 0 {
		if err := meta.SetReplicas(o.Replicas); err != nil {
			return err
		}
	}
	f, err := openArchive(dir)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // only read
	return c.Restore(ctx, s.Name, meta, f)
}

// openArchive opens the archive of either format.
func openArchive(dir string) (*os.File, error) {
	f, err := os.Open(filepath.Join(dir, archiveName))
	if errors.Is(err, fs.ErrNotExist) {
		return os.Open(filepath.Join(dir, oldArchiveName))
	}
	return f, err
}

// undo removes the streams of a failed restore, also if ctx has ended. Then it removes the mark, if that is still its own.
// If the account does not have its mark any more, it removes nothing: another restore may have made streams of the same
// names. Errors: schemas.ErrConflict in that case.
func undo(ctx context.Context, c *jet.Client, o Options, id string, names []string) error {
	bounded := func(do func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.Timeout)
		defer cancel()
		return do(ctx)
	}
	if len(names) > 0 {
		err := bounded(func(ctx context.Context) error { return store.CheckOwnRestore(ctx, c, id) })
		switch {
		case errors.Is(err, schemas.ErrConflict):
			return err
		case err != nil:
			return fmt.Errorf("the streams %s are restored in part and could not be removed: remove them, and the mark of the restore: %w", strings.Join(names, ", "), err)
		}
	}
	var errs []error
	for _, name := range names {
		if err := bounded(func(ctx context.Context) error { return c.DeleteStream(ctx, name) }); err != nil {
			errs = append(errs, fmt.Errorf("stream %s is partly restored and could not be removed: remove it: %w", name, err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	err := bounded(func(ctx context.Context) error { return store.EndRestore(ctx, c, id) })
	if errors.Is(err, schemas.ErrConflict) {
		return nil
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
