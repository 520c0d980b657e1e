package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// smallMessage is the largest message of the stores that must refuse larger ones, in bytes.
const smallMessage = 128 << 10

// headers returns headers whose block has exactly n bytes.
func headers(n int) jet.Header {
	const name = "X-Mine"
	return jet.Header{name: {strings.Repeat("x", n-len("NATS/1.0\r\n"+name+": \r\n\r\n"))}}
}

// refusals: a message that is too large is refused with a permanent error and has no effect.
// Errors of calls that may succeed later are not permanent.
func refusals(t *testing.T, s Store) {
	if n := s.MaxMessage(); n != smallMessage {
		t.Fatalf("the largest message has %d bytes; want %d", n, smallMessage)
	}
	subject := schemas.SubjectFired("orders")
	for name, c := range map[string]struct {
		m  store.Msg
		ok bool
	}{
		"headers at the limit":           {store.Msg{Subject: subject, Header: headers(schemas.MaxHeaderBytes)}, true},
		"headers over the limit":         {store.Msg{Subject: subject, Header: headers(schemas.MaxHeaderBytes + 1)}, false},
		"a message at the limit":         {store.Msg{Subject: subject, Header: headers(1000), Data: make([]byte, smallMessage-1000)}, true},
		"a message over the limit":       {store.Msg{Subject: subject, Header: headers(1000), Data: make([]byte, smallMessage-999)}, false},
		"a dead letter, over the limit":  {store.Msg{Subject: schemas.SubjectDead("orders"), Header: headers(70_000)}, false},
		"an event that is retried, over": {store.Msg{Subject: schemas.SubjectRetry("orders"), Header: headers(70_000)}, false},
	} {
		if _, _, err := s.Publish(t.Context(), c.m); (err == nil) != c.ok || !c.ok && (!store.Permanent(err) || schemas.CodeOf(err) != schemas.CodeTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	now := NowMs(t, s)
	large := Pending(now + 60_000)
	large.Body.Data = make([]byte, smallMessage)
	if res := s.Create(t.Context(), []store.Write{{ID: ID(1), Record: large}, {ID: ID(2), Record: Pending(now + 60_000)}}); !store.Permanent(res[0].Err) || res[1].Err != nil {
		t.Errorf("created %v and %v; the first is too large", res[0].Err, res[1].Err)
	}
	if _, err := s.Get(t.Context(), ID(1)); !errors.Is(err, schemas.ErrNotFound) {
		t.Errorf("a refused record was stored: %v", err)
	}
	rev := CreateAll(t, s, []store.Write{{ID: ID(3), Record: Pending(now + 60_000)}})[0]
	if _, err := s.Update(t.Context(), store.Write{ID: ID(3), Rev: rev, Record: large}); !store.Permanent(err) {
		t.Errorf("updated: %v", err)
	}
	if tm := must[store.Timer](t)(s.Get(t.Context(), ID(3))); tm.Rev != rev {
		t.Errorf("a refused update changed the revision from %[2]d to %[1]d", tm.Rev, rev)
	}
	for _, err := range []error{nil, store.ErrRevision, schemas.ErrNotFound, schemas.ErrUnavailable, schemas.ErrStoreFull} {
		if store.Permanent(err) {
			t.Errorf("%v is permanent", err)
		}
	}
}

// letters: a dead letter of any size is stored once, listed unchanged, and deleted with all its
// parts.
func letters(t *testing.T, s Store) {
	before := time.UnixMilli(NowMs(t, s) - 1)
	data := func(n int) []byte { return bytes.Repeat([]byte("0123456789abcdef"), n/16+1)[:n] }
	hdr := func(n int) jet.Header {
		h := headers(n)
		h[schemas.HeaderClaim], h[schemas.HeaderError] = []string{"claim"}, []string{"why"}
		h["ce-x"] = []string{"one", "two"}
		return h
	}
	forms := []struct {
		name string
		hdr  jet.Header
		data []byte
	}{
		{"as it is", hdr(100), data(100)},
		{"enclosed", hdr(80_000), data(1000)},
		{"in parts, of its data", hdr(100), data(300_000)},
		{"in parts, of its headers", hdr(200_000), data(0)},
		{"in parts, of both", hdr(90_000), data(200_000)},
		{"as it is, over the limit with its data", hdr(100), data(smallMessage - 100)},
	}
	ids, parts := map[string]struct{}{}, map[string]struct{}{}
	for i, f := range forms {
		m := store.Msg{Subject: schemas.SubjectDead("mail"), MsgID: ID(i+1).MsgID(1) + ".dead", Header: f.hdr, Data: f.data}
		ids[m.MsgID] = struct{}{}
		for n := range 4 { // 16 KiB of each part are for headers
			parts[fmt.Sprintf("%s.part.%d.%d", m.MsgID, n+1, smallMessage-16<<10)] = struct{}{}
		}
		for again := range 2 {
			if dup, err := s.PublishLetter(t.Context(), m); err != nil || dup != (again == 1) {
				t.Fatalf("%s: duplicate %v, %v", f.name, dup, err)
			}
		}
	}
	stored := func(ids map[string]struct{}) int {
		t.Helper()
		return len(must[map[string]struct{}](t)(s.FiredSince(t.Context(), []string{schemas.SubjectDead("mail")}, before, ids)))
	}
	if n := stored(ids); n != len(ids) {
		t.Errorf("%d of %d letters are found by their ids", n, len(ids))
	}
	// The last four letters are in 3, 2, 3 and 2 parts.
	if n := stored(parts); n != 6 {
		t.Errorf("the letters have %d parts after the first; want 6", n)
	}
	var page store.DeadPage
	for range 100 { // replicas may be behind
		if page = must[store.DeadPage](t)(s.DeadList(t.Context(), store.DeadQuery{})); len(page.Letters) == len(forms) {
			break
		}
	}
	if len(page.Letters) != len(forms) {
		t.Fatalf("%d letters are listed; want %d", len(page.Letters), len(forms))
	}
	for i, f := range forms {
		m := page.Letters[i]
		h := maps.Clone(m.Header)
		natsOwn := func(name string, _ []string) bool { return strings.HasPrefix(name, "Nats-") }
		maps.DeleteFunc(h, natsOwn)
		maps.DeleteFunc(f.hdr, natsOwn)
		if fmt.Sprint(h) != fmt.Sprint(f.hdr) || !bytes.Equal(m.Data, f.data) {
			t.Errorf("%s: %d bytes of headers and %d of data; want %d and %d", f.name, schemas.HeaderBytes(h), len(m.Data), schemas.HeaderBytes(f.hdr), len(f.data))
		}
		if one := must[store.DeadPage](t)(s.DeadList(t.Context(), store.DeadQuery{TimerID: ID(i + 1)})); len(one.Letters) != 1 {
			t.Errorf("%s: its timer has %d letters", f.name, len(one.Letters))
		}
		if err := s.DeadDelete(t.Context(), m.Sequence); err != nil {
			t.Fatal(err)
		}
	}
	if n, parts := stored(ids), stored(parts); n != 0 || parts != 0 {
		t.Errorf("%d letters and %d parts are left after they were deleted", n, parts)
	}
}
