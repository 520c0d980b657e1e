package store_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/schemas"
)

// TestPages: each timer of a tick is on one page, and no request names more records than the limit. After a
// tick with more timers than the limit, the next tick is read in pages from the start.
func TestPages(t *testing.T) {
	t.Parallel()
	const timers, limit = 300, 16
	srv := natstest.Run(t)
	s := open(t, srv.InProcess())
	g, now := s.Geometry(), storetest.NowMs(t, s)
	first := g.Tick(now) + 600
	ids := storetest.IDsOf(g, 0, 3*timers)
	nc := srv.InProcess()
	requests, err := nc.SubscribeSync("$JS.API.DIRECT.GET.KV_timers_0")
	if err != nil {
		t.Fatal(err)
	}

	for i, tick := range []struct {
		name     string
		together int // timers that are created together and share index entries
		most     int // timers in a page
		whole    int // requests for its whole index
	}{{"that is read first", 1, 2 * limit, 1}, {"after a large tick", 1, 2 * limit, 0}, {"with shared index entries", timers, 64, 0}} {
		ours, at := ids[i*timers:][:timers], first+int64(i)
		for part := range slices.Chunk(ours, tick.together) {
			var writes []store.Write
			for _, id := range part {
				writes = append(writes, store.Write{ID: id, Record: storetest.Pending(g.TickStart(at))})
			}
			storetest.CreateAll(t, s, writes)
		}
		taken(t, nc, requests)
		seen := map[schemas.TimerID]int{}
		for after, page := uint64(0), 0; page == 0 || after != 0; page++ {
			load, err := s.LoadTicks(t.Context(), 0, []int64{at}, limit, after, 0, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(load.Timers) > tick.most {
				t.Errorf("a tick %s: a page of %d timers, want at most %d", tick.name, len(load.Timers), tick.most)
			}
			for _, timer := range load.Timers {
				seen[timer.ID]++
			}
			after = load.Next
		}
		for _, id := range ours {
			if seen[id] != 1 {
				t.Errorf("a tick %s: timer %s is in %d pages", tick.name, id, seen[id])
			}
		}
		whole, all := 0, 0
		for _, subjects := range taken(t, nc, requests) {
			records := 0
			for _, subject := range subjects {
				switch {
				case strings.Contains(subject, ".timer."):
					records++
				case strings.Contains(subject, ".slot.") && strings.Count(subject, ".") == 4:
					whole++
				}
			}
			if all += records; records > limit {
				t.Errorf("a tick %s: a request for %d records", tick.name, records)
			}
		}
		// A request without an answer is repeated, so there may be more.
		if all < timers || min(whole, 1) != tick.whole {
			t.Errorf("a tick %s: requests for %d records, and %d for its whole index; want %d, %d", tick.name, all, whole, timers, tick.whole)
		}
	}
}

// taken returns the subjects of the requests since the last call.
func taken(t *testing.T, nc *nats.Conn, requests *nats.Subscription) (all [][]string) {
	t.Helper()
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for {
		n, _, err := requests.Pending()
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return all
		}
		m, err := requests.NextMsg(0)
		if err != nil {
			t.Fatal(err)
		}
		var get struct {
			Subjects []string `json:"multi_last"`
		}
		if err := json.Unmarshal(m.Data, &get); err != nil {
			t.Fatal(err)
		}
		all = append(all, get.Subjects)
	}
}
