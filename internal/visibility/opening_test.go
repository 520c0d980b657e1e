package visibility

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// emptyStore is a Store without entries.
type emptyStore struct{ Store }

func (emptyStore) Search(context.Context, Query) (Page, error) { return Page{}, nil }
func (emptyStore) Close() error                                { return nil }

// TestWaitsForOpening: a question waits until the file is open for the first time, within bounds.
func TestWaitsForOpening(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		// first happens after half a second.
		first func(*Visibility)
		// patience bounds the context of the question.
		patience time.Duration
		// after is the time of the answer, and refused a part of its error; empty for an answer.
		after   time.Duration
		refused string
	}{
		{"opened", func(v *Visibility) { v.replace(emptyStore{}); v.firstTried() }, time.Minute, time.Second / 2, ""},
		{"not opened", func(v *Visibility) {
			v.report(func(p *Progress) { p.Problem = "disk full" })
			v.firstTried()
		}, time.Minute, time.Second / 2, "disk full"},
		{"too slow", func(*Visibility) {}, time.Minute, openWait, "try again"},
		{"impatient", func(*Visibility) {}, openWait / 2, openWait / 2, "try again"},
		{"stopped", func(v *Visibility) { v.Stop() }, time.Minute, time.Second / 2, "try again"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				v, err := New(Options{Buckets: newBuckets()})
				if err != nil {
					t.Fatal(err)
				}
				time.AfterFunc(time.Second/2, func() { c.first(v) })
				ctx, cancel := context.WithTimeout(t.Context(), c.patience)
				defer cancel()
				begun := time.Now()
				_, err = v.Search(ctx, Query{})
				if d := time.Since(begun); d != c.after {
					t.Errorf("answered after %s, want %s", d, c.after)
				}
				if (err == nil) != (c.refused == "") {
					t.Fatalf("got error %v, want %q", err, c.refused)
				}
				if err != nil && (!strings.Contains(err.Error(), c.refused) || schemas.CodeOf(err) != schemas.CodeUnavailable) {
					t.Errorf("got %v, want unavailable with %q", err, c.refused)
				}
				v.Stop()
				v.replace(nil)
			})
		})
	}
}

// TestOpens: the first attempt to open the file ends the wait, whether it succeeds or fails.
func TestOpens(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, folder, refused string
	}{
		{"a folder", t.TempDir(), ""},
		{"a file instead of a folder", file, "not a directory"},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, err := New(Options{Buckets: newBuckets(), Folder: c.folder, NowMs: func() int64 { return base }, Log: zerolog.Nop()})
			if err != nil {
				t.Fatal(err)
			}
			v.Start()
			defer v.Stop()
			waittest.Receive(t, "the end of the first attempt", v.tried)
			switch _, err = v.Search(t.Context(), Query{}); {
			case c.refused == "" && err != nil, c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
				t.Errorf("got error %v, want %q", err, c.refused)
			}
		})
	}
}
