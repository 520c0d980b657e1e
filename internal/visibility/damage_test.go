package visibility

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
)

// followed starts a Visibility that follows buckets into a folder.
func followed(t *testing.T, b *buckets, folder string) *Visibility {
	t.Helper()
	v, err := New(Options{
		Buckets: b, Folder: folder, NowMs: func() int64 { return base }, Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.ErrorLevel),
		most: 1000, check: 20 * time.Millisecond, count: 50 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	v.Start()
	t.Cleanup(v.Stop)
	return v
}

// hasAll waits until a search finds n entries.
func hasAll(t *testing.T, v *Visibility, n int) {
	t.Helper()
	found := 0
	var last error
	waittest.Until(t, fmt.Sprintf("%d entries", n), func() bool {
		found = 0
		for q := (Query{Limit: MaxLimit}); ; {
			page, err := v.Search(t.Context(), q)
			if last = err; err != nil {
				return false
			}
			found += len(page.Entries)
			if q.Cursor = page.Cursor; q.Cursor == "" {
				return found == n
			}
		}
	}, func() string { return fmt.Sprintf("%d entries, error %v, %+v", found, last, v.Progress()) })
}

// TestDamagedFile: a file that is cut off, and one with damaged pages, is deleted and built again from the
// records.
func TestDamagedFile(t *testing.T) {
	testsize.NotShort(t, "thousands of writes")
	testsize.NotRace(t, "thousands of writes")
	t.Parallel()
	const entries = 1500
	for name, damage := range map[string]func([]byte) []byte{
		"cut off":           func(b []byte) []byte { return b[:len(b)/2/4096*4096] },
		"cut within a page": func(b []byte) []byte { return b[:len(b)/2/4096*4096+100] },
		"emptied":           func([]byte) []byte { return nil },
		"second half overwritten": func(b []byte) []byte {
			half := len(b) / 2 / 4096 * 4096
			return append(b[:half], bytes.Repeat([]byte{0xA5}, len(b)-half)...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			b := newBuckets()
			b.put(0, entries)
			v := followed(t, b, folder)
			hasAll(t, v, entries)
			v.Stop()
			path := filepath.Join(folder, fileName)
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, damage(content), 0o600); err != nil {
				t.Fatal(err)
			}
			v = followed(t, b, folder)
			hasAll(t, v, entries)
			if p := v.Progress(); p.Rows != entries {
				t.Errorf("got %+v, want %d entries", p, entries)
			}
		})
	}
}

// TestUpgrade: a file of another schema is built again from the records.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	const entries = 50
	folder := t.TempDir()
	b := newBuckets()
	b.put(0, entries)
	v := followed(t, b, folder)
	hasAll(t, v, entries)
	execute(t, v, fmt.Sprintf("PRAGMA user_version = %d", schemaVersion-1))
	execute(t, v, "DELETE FROM timers WHERE n <= 10")
	v.Stop()
	v = followed(t, b, folder)
	hasAll(t, v, entries)
}

// TestReaderFindsDamage: the file is built again if only a search notices that it is damaged.
func TestReaderFindsDamage(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "it waits until the file is built again")
	b := newBuckets()
	b.put(0, 10)
	v := followed(t, b, t.TempDir())
	hasAll(t, v, 10)
	execute(t, v, "UPDATE timers SET record = x'FF' WHERE n = 5")
	if _, err := v.Search(t.Context(), Query{}); err == nil {
		t.Fatal("a search did not notice the damage")
	}
	hasAll(t, v, 10)
}

// execute runs a statement on the writer's connection.
func execute(t *testing.T, v *Visibility, statement string) {
	t.Helper()
	v.use.RLock()
	defer v.use.RUnlock()
	if _, err := v.store.(*sqlStore).conn.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// TestFullFile: while there is no room for the file, the index says so, answers from its entries and holds
// up nobody; when there is room again, it has everything.
func TestFullFile(t *testing.T) {
	testsize.NotShort(t, "thousands of writes")
	testsize.NotRace(t, "thousands of writes")
	t.Parallel()
	b := newBuckets()
	b.put(0, 10)
	v := followed(t, b, t.TempDir())
	hasAll(t, v, 10)
	limit := func(pages int) {
		// SQLite then answers as if the disk were full.
		execute(t, v, fmt.Sprintf("PRAGMA max_page_count = %d", pages))
	}
	limit(1) // the present size
	b.put(10, 6000)
	waittest.Until(t, "a problem", func() bool { return strings.Contains(v.Progress().Problem, "full") }, func() string { return fmt.Sprintf("%+v", v.Progress()) })
	hasAll(t, v, 10)
	limit(1 << 30)
	hasAll(t, v, 6000)
	waittest.Until(t, "no problem", func() bool { return v.Progress().Problem == "" }, func() string { return fmt.Sprintf("%+v", v.Progress()) })
}
