package conf

import (
	"context"
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// TestHeadersOfAdds publishes adds with each header that JetStream interprets, to the
// streams of a node and without a router that removes adds. JetStream refuses the add or
// stores it unchanged; no header removes, hides or redirects the add of another team.
func TestHeadersOfAdds(t *testing.T) {
	t.Parallel()
	s := natstest.RunProduction(t, file, nil)
	st, err := store.Open(t.Context(), s.ConnectAs("belfry"), store.Config{Node: "n1"}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	admin := natstest.JetStream(t, s.ConnectAs("admin"))
	adds, err := admin.Stream(t.Context(), schemas.StreamAdd)
	if err != nil {
		t.Fatal(err)
	}
	stored := func() map[string]uint64 {
		n := map[string]uint64{}
		for info := range admin.ListStreams(t.Context()).Info() {
			n[info.Config.Name] = info.State.Msgs
		}
		return n
	}
	victim, err := admin.Publish(t.Context(), schemas.SubjectAdd, []byte("victim"))
	if err != nil {
		t.Fatal(err)
	}
	before := stored()
	nc := s.ConnectAs("orders", nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	orders := natstest.JetStream(t, nc)
	for name, tt := range map[string]struct {
		header nats.Header
		kept   bool // stored, as an add like any other
	}{
		"rollup all":               {header: nats.Header{"Nats-Rollup": {"all"}}},
		"rollup of the subject":    {header: nats.Header{"Nats-Rollup": {"sub"}}},
		"TTL":                      {header: nats.Header{"Nats-TTL": {"1s"}}},
		"counter":                  {header: nats.Header{"Nats-Incr": {"1"}}},
		"another stream":           {header: nats.Header{"Nats-Expected-Stream": {"KV_clock"}}},
		"another last sequence":    {header: nats.Header{"Nats-Expected-Last-Sequence": {"77"}}},
		"schedule":                 {header: nats.Header{"Nats-Schedule": {"@every 1s"}, "Nats-Schedule-Target": {"$KV.clock.clock.0"}}},
		"schedule, once":           {header: nats.Header{"Nats-Schedule": {"@at 2020-01-01T00:00:00Z"}, "Nats-Schedule-Target": {"timers.fired.billing"}}},
		"schedule with a source":   {header: nats.Header{"Nats-Schedule": {"@every 1s"}, "Nats-Schedule-Target": {"timers.add"}, "Nats-Schedule-Source": {"timers.add"}}},
		"a batch that goes amiss":  {header: nats.Header{"Nats-Batch-Id": {"other"}, "Nats-Batch-Sequence": {"2"}, "Nats-Batch-Commit": {"1"}}},
		"API level of the future":  {header: nats.Header{"Nats-Required-Api-Level": {"9999"}}, kept: true},
		"trace":                    {header: nats.Header{"Nats-Trace-Dest": {"$KV.clock.clock.0"}}, kept: true},
		"target without schedule":  {header: nats.Header{"Nats-Schedule-Target": {"$KV.clock.clock.0"}}, kept: true},
		"operation of a bucket":    {header: nats.Header{"KV-Operation": {"PURGE"}}, kept: true},
		"somebody else's identity": {header: nats.Header{"Nats-Request-Info": {`{"acc":"BELFRY","user":"admin"}`}}, kept: true},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		_, err := orders.PublishMsg(ctx, &nats.Msg{Subject: schemas.SubjectAdd, Header: tt.header, Data: []byte(name)}, jetstream.WithRetryAttempts(0))
		cancel()
		var refused *jetstream.APIError
		if tt.kept != (err == nil) || !tt.kept && !errors.As(err, &refused) {
			t.Errorf("%s: unexpected result: %v", name, err)
		}
		if tt.kept {
			before[schemas.StreamAdd]++
		}
	}
	if m, err := adds.GetMsg(t.Context(), victim.Sequence); err != nil || string(m.Data) != "victim" {
		t.Errorf("the add of the other team is gone: %+v, %v", m, err)
	}
	for name, n := range stored() {
		if n != before[name] {
			t.Errorf("%s has %d messages, had %d", name, n, before[name])
		}
	}
	// The router sees only the sender's identity that the server adds, not an identity that the
	// message claims.
	for seq := victim.Sequence + 1; seq <= victim.Sequence+5; seq++ {
		if m, err := adds.GetMsg(t.Context(), seq); err != nil || m.Header.Get("Nats-Request-Info") != "" {
			t.Errorf("got %+v, %v", m, err)
		}
	}
	// A message ID that orders has used hides an add of another team only for the
	// duplicate window.
	if _, err := orders.Publish(t.Context(), schemas.SubjectAdd, []byte("first"), jetstream.WithMsgID("guessed")); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "an add with the message id of another team's add is stored", func() bool {
		ack, err := admin.Publish(t.Context(), schemas.SubjectAdd, []byte("second"), jetstream.WithMsgID("guessed"))
		if err != nil {
			t.Fatal(err)
		}
		return !ack.Duplicate
	})
}
