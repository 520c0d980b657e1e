package router_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// TestRejectionsOfAnySize: an add that JetStream takes and Belfry refuses is kept
// with all its bytes, however few of them are left for the reason.
func TestRejectionsOfAnySize(t *testing.T) {
	t.Parallel()
	f := setup(t, store.Config{})
	headers := func(bytes int) nats.Header {
		return nats.Header{"X-Mine": {strings.Repeat("h", bytes-len("NATS/1.0\r\nX-Mine: \r\n\r\n"))}}
	}
	adds := []*nats.Msg{
		{Header: headers(65_300), Data: add("headers", `"timerafter":"1s"`)},
		{Header: headers(65_535), Data: add("most-headers", `"timerafter":"1s"`)},
		{Header: nats.Header{}, Data: bytes.Repeat([]byte("x"), 1<<20)},
		{Header: headers(65_535), Data: bytes.Repeat([]byte("y"), 1<<20-65_535)},
	}
	for _, m := range adds {
		m.Subject = schemas.SubjectAdd
		if _, err := f.js.PublishMsg(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	var page store.RejectedPage
	f.eventually("all are rejected", func() bool {
		var err error
		if page, err = f.store.RejectedList(t.Context(), store.RejectedQuery{}); err != nil {
			t.Fatal(err)
		}
		return len(page.Adds) == len(adds)
	})
	for _, m := range adds {
		found := false
		for _, got := range page.Adds {
			if bytes.Equal(got.Data, m.Data) && got.Header.Get("X-Mine") == m.Header.Get("X-Mine") && got.Header.Get(schemas.HeaderErrorCode) != "" && got.Header.Get(schemas.HeaderError) != "" {
				found = true
			}
		}
		if !found {
			t.Errorf("the add of %d bytes of headers and %d of data is not kept as it was", schemas.HeaderBytes(m.Header), len(m.Data))
		}
	}
	f.eventually("timers.add is empty", func() bool {
		info, err := f.js.Stream(t.Context(), schemas.StreamAdd)
		if err != nil {
			t.Fatal(err)
		}
		return info.CachedInfo().State.Msgs == 0
	})
}
