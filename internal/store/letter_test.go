package store_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/store/storetest"
	"github.com/belfryio/belfry/schemas"
)

// headersOf returns headers whose block has exactly the given number of bytes.
func headersOf(bytes int) nats.Header {
	const name = "X-Mine"
	return nats.Header{name: {strings.Repeat("x", bytes-len("NATS/1.0\r\n"+name+": \r\n\r\n"))}}
}

// TestHeaderRule: schemas.MaxHeaderBytes is the server's limit of headers.
func TestHeaderRule(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).InProcess()
	s := open(t, nc)
	for n, ok := range map[int]bool{schemas.MaxHeaderBytes: true, schemas.MaxHeaderBytes + 1: false, 200_000: false} {
		hdr := headersOf(n)
		if got := schemas.HeaderBytes(hdr); got != n {
			t.Fatalf("HeaderBytes is %d, want %d", got, n)
		}
		_, _, err := s.Publish(t.Context(), store.Msg{Subject: schemas.SubjectFired("svc"), Header: hdr})
		if (err == nil) != ok || !ok && (!store.Permanent(err) || schemas.CodeOf(err) != schemas.CodeTooLarge) {
			t.Errorf("%d bytes of headers: %v", n, err)
		}
		if err != nil && !strings.Contains(err.Error(), fmt.Sprint(n)) {
			t.Errorf("the error does not contain the size %d: %v", n, err)
		}
	}
}

// TestPermanent: errors about the message itself are permanent, and no others.
func TestPermanent(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	nc := srv.InProcess()
	s := open(t, nc, func(c *store.Config) { c.MaxPayload = 256 << 10 })
	js := natstest.JetStream(t, nc)
	publish := func(subject string, hdr nats.Header, bytes int) error {
		_, _, err := s.Publish(t.Context(), store.Msg{Subject: subject, Header: hdr, Data: make([]byte, bytes)})
		return err
	}
	fired := schemas.SubjectFired("svc")
	for name, err := range map[string]error{
		"headers":                         publish(fired, headersOf(70_000), 1),
		"the stream's limit of a message": publish(fired, nil, 256<<10+1),
		"max_payload":                     publish(fired, nil, 2<<20),
		"a header name":                   publish(fired, nats.Header{"a/b": {"x"}}, 1),
	} {
		if !store.Permanent(err) {
			t.Errorf("%s is not permanent: %v", name, err)
		}
	}
	full, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "FULL", Subjects: []string{"full"}, MaxMsgs: 1, Discard: jetstream.DiscardNew})
	if err != nil {
		t.Fatal(err)
	}
	if err := publish("full", nil, 1); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"a stream that is missing": publish("nobody.captures.this", nil, 1),
		"a full stream":            publish("full", nil, 1),
		"none":                     nil,
		"a revision":               store.ErrRevision,
		"not found":                schemas.ErrNotFound,
		"unavailable":              schemas.ErrUnavailable,
	} {
		if store.Permanent(err) {
			t.Errorf("%s is permanent: %v", name, err)
		}
	}
	_ = full
	srv.Shutdown()
	if err := publish(fired, headersOf(70_000), 1); err == nil || store.Permanent(err) {
		t.Errorf("without a server: %v", err)
	}
}

// TestGroupFindsTheLarge: a write that the client or the server refuses permanently fails, and
// no other write of its batch does.
func TestGroupFindsTheLarge(t *testing.T) {
	t.Parallel()
	s := grouped(t)
	const n = 2000
	errs := make([]error, n)
	large := func(i int) bool { return i%400 == 17 }
	var wg sync.WaitGroup
	wg.Add(n)
	for i := range n {
		m := store.Msg{Subject: schemas.SubjectFired("svc"), MsgID: fmt.Sprint(i), Data: []byte("x")}
		switch {
		case large(i) && i%800 < 400:
			m.Data = make([]byte, 1<<20)
			m.Header = nats.Header{"X": {"y"}} // over max_payload: the client refuses it
		case large(i):
			m.Header = headersOf(70_000) // the server does
		}
		s.PublishAsync(m, func(_ uint64, _ bool, err error) {
			errs[i] = err
			wg.Done()
		})
	}
	wg.Wait()
	for i, err := range errs {
		if store.Permanent(err) != large(i) || !large(i) && err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// TestSmallServer: a server whose max_payload is too low for Belfry is refused.
func TestSmallServer(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t, func(o *server.Options) { o.MaxPayload = 32 << 10 })
	refused(t, srv.InProcess(), store.Config{Node: "n1", Geometry: storetest.Geometry}, schemas.CodeConfig, "32768", "max_payload")
}
