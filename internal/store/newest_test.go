package store_test

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/schemas"
)

// TestNewest: a reader of a shard learns whether a record follows its position, and index entries do not
// count. No request makes the server look at all keys of the stream, as one for the last message of a
// subject with a wildcard does.
func TestNewest(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	s := open(t, srv.InProcess())
	var mu sync.Mutex
	var requests []string
	nc := srv.InProcess()
	if _, err := nc.Subscribe("$JS.API.STREAM.MSG.GET.*", func(m *nats.Msg) {
		mu.Lock()
		defer mu.Unlock()
		if strings.Contains(m.Subject, "KV_timers_") {
			requests = append(requests, string(m.Data))
		}
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	id := schemas.NewTimerID("/test", "newest")
	shard := s.Geometry().Shard(id)
	newest := func(after uint64) store.Newest {
		t.Helper()
		n, err := s.Newest(t.Context(), shard, after)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := newest(0); n.More || n.Stream == "" || n.AtMs == 0 {
		t.Errorf("without records: %+v", n)
	}
	rev := storetest.CreateAll(t, s, []store.Write{{ID: id, Record: storetest.Pending(storetest.NowMs(t, s) + 3_600_000)}})[0]
	if n := newest(rev - 1); !n.More || n.LastSeq != rev {
		t.Errorf("before the record: %+v", n)
	}
	if n := newest(rev); n.More {
		t.Errorf("after the record: %+v", n)
	}
	if err := s.PutIndex(t.Context(), id, 5000); err != nil {
		t.Fatal(err)
	}
	if n := newest(rev); n.More || n.LastSeq <= rev {
		t.Errorf("an index entry counts as a record: %+v", n)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(requests) == 0 || slices.ContainsFunc(requests, func(r string) bool {
		var q struct {
			Last string `json:"last_by_subj"`
		}
		return json.Unmarshal([]byte(r), &q) != nil || strings.ContainsAny(q.Last, "*>")
	}) {
		t.Errorf("requests: %q", requests)
	}
}
