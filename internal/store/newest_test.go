package store_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

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
	nc := srv.InProcess()
	sub, err := nc.SubscribeSync("$JS.API.STREAM.MSG.GET.*")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	id := schemas.NewTimerID("/test", "newest")
	shard := s.Geometry().Shard(id)
	newest := func(after uint64) (n store.Newest, more bool) {
		t.Helper()
		n, err := s.Newest(t.Context(), shard)
		if err != nil {
			t.Fatal(err)
		}
		if more, err = s.HasNext(t.Context(), shard, after); err != nil {
			t.Fatal(err)
		}
		return n, more
	}
	if n, more := newest(0); more || n.Stream == "" || n.AtMs == 0 {
		t.Errorf("without records: %+v", n)
	}
	rev := storetest.CreateAll(t, s, []store.Write{{ID: id, Record: storetest.Pending(storetest.NowMs(t, s) + 3_600_000)}})[0]
	if n, more := newest(rev - 1); !more || n.LastSeq != rev {
		t.Errorf("before the record: %+v", n)
	}
	if n, more := newest(rev); more {
		t.Errorf("after the record: %+v", n)
	}
	if err := s.PutIndex(t.Context(), id, 5000); err != nil {
		t.Fatal(err)
	}
	if n, more := newest(rev); more || n.LastSeq <= rev {
		t.Errorf("an index entry counts as a record: %+v", n)
	}
	// The server has forwarded all requests when it answers the flush.
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	var requests []string
	for n, _, _ := sub.Pending(); n > 0; n-- {
		m, err := sub.NextMsg(time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(m.Subject, "KV_timers_") {
			requests = append(requests, string(m.Data))
		}
	}
	if len(requests) == 0 || slices.ContainsFunc(requests, func(r string) bool {
		var q struct {
			Last string `json:"last_by_subj"`
		}
		return json.Unmarshal([]byte(r), &q) != nil || strings.ContainsAny(q.Last, "*>")
	}) {
		t.Errorf("requests: %q", requests)
	}
}
