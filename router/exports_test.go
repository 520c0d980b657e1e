package router_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// exportAll reads all pages of an export, and returns the events by timer.
func exportAll(t *testing.T, s *router.Service, q schemas.ExportRequest) map[schemas.TimerID]schemas.ExportInfo {
	t.Helper()
	all := map[schemas.TimerID]schemas.ExportInfo{}
	for n := 0; ; n++ {
		page, err := s.Export(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range page.Timers {
			all[info.Timer] = info
		}
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return all
		}
		if n > 10_000 {
			t.Fatal("the export does not end")
		}
	}
}

// TestExportMissesNothing: while timers are added, paused, resumed, moved and cancelled, an export in
// small pages has every timer that exists all the time.
func TestExportMissesNothing(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	f.fill("kept", 60, `"timerafter":"1h","timergroup":"g"`)
	f.fill("gone", 20, `"timerafter":"1h","timergroup":"g"`)
	stop := make(chan struct{})
	var changes, gone atomic.Int64
	var changing sync.WaitGroup
	end := sync.OnceFunc(func() {
		close(stop)
		changing.Wait()
	})
	defer end()
	loop := func(change func(i int)) {
		changing.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					change(i)
					changes.Add(1)
				}
			}
		})
	}
	loop(func(i int) {
		id := fmt.Sprint("kept", i%60)
		f.op("schedule.pause", id, "")
		f.op("schedule.resume", id, "")
	})
	loop(func(i int) { f.op("reschedule", fmt.Sprint("kept", (i*7)%60), `,"after":"2h"`) })
	loop(func(i int) {
		if i < 200 {
			f.fill(fmt.Sprint("new", i, "-"), 1, `"timerafter":"1h","timergroup":"g"`)
		}
		if i < 20 {
			f.op("cancel", fmt.Sprint("gone", i), "")
			gone.Add(1)
		}
	})
	for round := 0; round < 5 || changes.Load() < 50; round++ {
		all := exportAll(t, f.r.Service, schemas.ExportRequest{Group: "g", Limit: 7})
		for i := range 60 {
			if _, ok := all[schemas.NewTimerID("/test", fmt.Sprint("kept", i))]; !ok {
				t.Errorf("round %d: kept%d is missing among %d", round, i, len(all))
			}
		}
	}
	end()
	all := exportAll(t, f.r.Service, schemas.ExportRequest{Group: "g", Limit: 7})
	for i := range int(gone.Load()) {
		if info, ok := all[schemas.NewTimerID("/test", fmt.Sprint("gone", i))]; ok {
			t.Errorf("gone%d is exported and cancelled: %s", i, info.Event)
		}
	}
}

// TestExportSelects: the filters of an export, its errors, and one timer by its event.
func TestExportSelects(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	f.fill("a", 2, `"timerafter":"1h","timersvc":"mail","timergroup":"g"`)
	f.fill("s", 1, `"timerevery":"1h","timersvc":"mail"`)
	f.op("schedule.pause", "a1", `,"note":"hot"`)
	yes := true
	for request, want := range map[string]struct {
		q schemas.ExportRequest
		n int
	}{
		"all":       {schemas.ExportRequest{}, 3},
		"group":     {schemas.ExportRequest{Group: "g"}, 2},
		"service":   {schemas.ExportRequest{Service: "mail", Schedule: &yes}, 1},
		"paused":    {schemas.ExportRequest{States: []schemas.State{schemas.StatePaused}}, 1},
		"retrying":  {schemas.ExportRequest{States: []schemas.State{schemas.StateRetrying}}, 0},
		"no tenant": {schemas.ExportRequest{Tenant: "acme"}, 0},
	} {
		if all := exportAll(t, f.r.Service, want.q); len(all) != want.n {
			t.Errorf("%s: got %d timers, want %d", request, len(all), want.n)
		}
	}
	var page schemas.ExportReply
	if code := f.request("export", []byte(`{"id":"a1","source":"/test"}`), &page); code != "" || len(page.Timers) != 1 {
		t.Fatalf("one timer: %s %+v", code, page)
	}
	if info := page.Timers[0]; info.State != schemas.StatePaused || info.Group != "g" || !strings.Contains(string(info.Event), `"belfrynote":"hot"`) {
		t.Errorf("one timer: %+v", info)
	}
	for body, want := range map[string]string{
		`{"id":"none","source":"/test"}`: "not_found", `{"state":["success"]}`: "bad_request", `{"tenant":"A"}`: "bad_request", `{"service":"a b"}`: "bad_request", `{"cursor":"x"}`: "bad_request",
		`{"limit":-1}`: "bad_request",
	} {
		if code := f.request("export", []byte(body), nil); code != want {
			t.Errorf("%s: got %q, want %s", body, code, want)
		}
	}
	acme := f.r.In(router.Scope{Tenant: "acme"})
	if all := exportAll(t, acme, schemas.ExportRequest{}); len(all) != 0 {
		t.Errorf("a tenant exports %d timers of the default tenant", len(all))
	}
	if _, err := acme.Export(t.Context(), schemas.ExportRequest{Tenant: "globex"}); schemas.CodeOf(err) != schemas.CodeBadRequest {
		t.Errorf("a tenant exports another one: %v", err)
	}
	if _, err := acme.Export(t.Context(), schemas.ExportRequest{TimerRef: schemas.TimerRef{Timer: page.Timers[0].Timer.String()}}); schemas.CodeOf(err) != schemas.CodeNotFound {
		t.Errorf("a tenant exports a timer of the default tenant by its id: %v", err)
	}
}

// TestExportFitsTheAnswer: pages are as small as one message needs, and an event that cannot be published
// again as JSON is named.
func TestExportFitsTheAnswer(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	big := strings.Repeat("x", 300_000)
	f.fill("big", 5, `"timerafter":"1h","data":"`+big+`"`)
	hdr := map[string][]string{"ce-specversion": {"1.0"}, "ce-id": {"bytes"}, "ce-source": {"/test"}, "ce-type": {"t"}, "ce-timerafter": {"1h"}, "content-type": {"image/png"}}
	f.publish(hdr, []byte(strings.Repeat("\xff", 1_000_000)))
	f.await("/test", "bytes")
	seen, skipped, cursor := map[schemas.TimerID]bool{}, 0, ""
	for {
		var page schemas.ExportReply
		if code := f.request("export", fmt.Appendf(nil, `{"cursor":%q,"limit":500}`, cursor), &page); code != "" {
			t.Fatal(code)
		}
		for _, info := range page.Timers {
			seen[info.Timer] = true
		}
		for _, skip := range page.Skipped {
			if skipped++; skip.ID != "bytes" || skip.Code != schemas.CodeTooLarge {
				t.Errorf("skipped: %+v", skip)
			}
		}
		if cursor = page.Cursor; cursor == "" {
			break
		}
	}
	if len(seen) != 5 || skipped != 1 {
		t.Errorf("got %d events and %d skipped, want 5 and 1", len(seen), skipped)
	}
}

// TestCancelAtRevision: a cancel that names a revision cancels that one alone.
func TestCancelAtRevision(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	f.fill("a", 1, `"timerafter":"1h"`)
	rev := f.op("get", "a0", "").Revision
	if code := f.request("cancel", fmt.Appendf(nil, `{"id":"a0","source":"/test","revision":%d}`, rev+1), nil); code != "conflict" {
		t.Errorf("another revision: %q, want conflict", code)
	}
	if got := f.states("a0"); got != "pending" {
		t.Errorf("after that: %s", got)
	}
	if info := f.op("cancel", "a0", fmt.Sprintf(`,"revision":%d`, rev)); info.State != schemas.StateCancelled {
		t.Errorf("its revision: %s", info.State)
	}
}
