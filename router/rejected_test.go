package router_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/router"
	"github.com/belfryio/belfry/schemas"
)

// TestRejectionsAreVisible: rejected adds are listed with their reasons, logged at a
// bounded rate, and counted.
func TestRejectionsAreVisible(t *testing.T) {
	t.Parallel()
	f := newFixture(t, store.Config{})
	log, reg := &logtest.Buffer{}, prometheus.NewRegistry()
	f.r = f.startWith(router.Options{Store: f.store, Time: f.clock, Log: zerolog.New(log), Registerer: reg})
	const n = 7
	for i := range n - 1 {
		if _, err := f.js.Publish(t.Context(), schemas.SubjectAdd, add(fmt.Sprint("bad", i), `"timersvc":"a b","timerafter":"1s"`)); err != nil {
			t.Fatal(err)
		}
	}
	long := strings.Repeat("z", 5000)
	hdr := nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"binary"}, "ce-source": {"/test"}, "ce-type": {"t"}}
	if _, err := f.js.PublishMsg(t.Context(), &nats.Msg{Subject: schemas.SubjectAdd, Header: hdr, Data: []byte(long)}); err != nil {
		t.Fatal(err)
	}
	f.rejected(n)

	var all []schemas.RejectedInfo
	for q := (schemas.RejectedListRequest{Limit: 3}); ; {
		req, err := json.Marshal(q)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		m, err := f.nc.RequestWithContext(ctx, schemas.SubjectAPIPrefix+"rejected.list", req)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		var page schemas.RejectedListReply
		if err := json.Unmarshal(m.Data, &page); err != nil {
			t.Fatal(err)
		}
		all = append(all, page.Rejected...)
		if q.Cursor = page.Cursor; q.Cursor == "" {
			break
		}
	}
	if len(all) != n {
		t.Fatalf("%d rejections are listed, want %d", len(all), n)
	}
	for _, r := range all {
		if r.Code == "" || r.Error == "" || r.Source != "/test" || r.ID == "" || r.AddSequence == 0 || r.Rejected.IsZero() {
			t.Errorf("an incomplete rejection is listed: %+v", r)
		}
		if r.ID == "binary" && (r.DataBytes != len(long) || r.Data != long[:schemas.MaxRejectedData]) {
			t.Errorf("data of %d bytes is listed as %d bytes and %d shown", len(long), r.DataBytes, len(r.Data))
		}
	}
	lines := strings.Count(log.String(), "add rejected")
	if lines == 0 || lines == n {
		t.Errorf("%d log lines for %d refused adds at once:\n%s", lines, n, log)
	}
}
