package store

import (
	"bytes"
	"maps"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// TestMessageAgain: a reused message has nothing of the previous write, and takes no new
// allocations. It is not parallel, because it counts the allocations of the whole process.
func TestMessageAgain(t *testing.T) {
	large := &schemas.Record{
		Definition: schemas.Definition{Source: "/a", EventID: "1", Body: schemas.Body{Mode: schemas.ModeStructured, Data: bytes.Repeat([]byte("x"), 4<<10)}},
		RunState:   schemas.RunState{State: schemas.StatePending},
	}
	small := &schemas.Record{Definition: schemas.Definition{Source: "/b", EventID: "2"}, RunState: schemas.RunState{State: schemas.StateSuccess}}
	m := &message{WriteHeader: jet.WriteHeader{Header: nats.Header{}}}
	m.encode(&Write{Rev: 12345, TTL: 1500 * time.Millisecond, Record: large}, schemas.NewestRecordFormat)
	m.RollUp()
	want := nats.Header{jetstream.ExpectedLastSubjSeqHeader: {"12345"}, jetstream.MsgTTLHeader: {"2s"}, jetstream.MsgRollup: {jetstream.MsgRollupSubject}}
	if !maps.EqualFunc(m.Header, want, equal) || !bytes.Equal(m.data, large.Append(nil)) {
		t.Errorf("%v, %d bytes", m.Header, len(m.data))
	}
	m.encode(&Write{Record: small}, schemas.NewestRecordFormat)
	if !maps.EqualFunc(m.Header, nats.Header{jetstream.ExpectedLastSubjSeqHeader: {"0"}}, equal) || !bytes.Equal(m.data, small.Append(nil)) {
		t.Errorf("after another: %v, %q", m.Header, m.data)
	}
	w := &Write{Rev: 12345, TTL: time.Hour, Record: large}
	// The revision and the expiry are strings.
	if got := testing.AllocsPerRun(100, func() { m.encode(w, schemas.NewestRecordFormat); m.RollUp() }); got > 2 {
		t.Errorf("%.0f allocations, 2 are allowed", got)
	}
}

func equal(a, b []string) bool { return len(a) == 1 && len(b) == 1 && a[0] == b[0] }
