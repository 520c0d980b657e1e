package app

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/visibility"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestSearchState: status names a search index that cannot be written, or that only counts, and none
// that is well.
func TestSearchState(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		progress visibility.Progress
		want     string
	}{
		{visibility.Progress{AsOf: time.UnixMilli(5), Behind: 3}, ""},
		{visibility.Progress{CatchingUp: true}, ""},
		{visibility.Progress{CountsOnly: true}, "counts only"},
		{visibility.Progress{Problem: "disk full"}, "cannot be written"},
	} {
		text := searchState(tt.progress).Problem("n1")
		if (tt.want == "") != (text == "") || !strings.Contains(text, tt.want) {
			t.Errorf("%+v: got %q, want %q in it", tt.progress, text, tt.want)
		}
	}
}

// TestIndexInLinkedFolder: history-folder may be a symbolic link to the data folder, which the node has locked already.
func TestIndexInLinkedFolder(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.HistoryFolder = filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(o.Data, o.HistoryFolder); err != nil {
		t.Fatal(err)
	}
	a, err := New(o)
	if err != nil {
		t.Fatalf("history-folder is a link to data: %v", err)
	}
	stop(t, a)
}

// TestExpiredTimer: get and why answer from the history once the record has expired, and the presence
// has the state of the index.
func TestExpiredTimer(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Retention = time.Second
	a := start(t, o)
	reply, err := a.Router().Add(t.Context(), nil, event("gone", `"timerafter":"PT0.1S"`))
	if err != nil {
		t.Fatal(err)
	}
	ref := schemas.TimerRef{Timer: reply.Timer.String()}
	waittest.Until(t, "an expired record", func() bool {
		_, err := a.Store().Get(t.Context(), reply.Timer)
		return errors.Is(err, schemas.ErrNotFound)
	})
	var info schemas.TimerInfo
	waittest.Until(t, "an answer from the history", func() bool {
		var err error
		info, err = a.Router().Describe(t.Context(), ref)
		return err == nil
	})
	if info.From != schemas.FromHistory || info.State != schemas.StateSuccess {
		t.Errorf("got %+v, want a success from the history", info)
	}
	why, err := a.Router().Why(t.Context(), schemas.WhyRequest{TimerRef: ref})
	if err != nil || len(why.Answers) != 1 || !strings.Contains(strings.Join(why.Answers[0].Notes, " "), "record has expired") {
		t.Errorf("got %+v and error %v, want an answer from the history", why, err)
	}
	waittest.Until(t, "a presence with the index", func() bool {
		cluster, err := a.Store().ReadCluster(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(cluster.Nodes) == 1 && cluster.Nodes[0].Presence.Search != nil && cluster.Nodes[0].Presence.Search.Entries == 1
	})
}
