package schemas_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

const (
	outer = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	inner = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
)

// TestTraceOf: a valid header comes first, then the attribute, in every mode; the stored and the
// fired event carry the same.
func TestTraceOf(t *testing.T) {
	t.Parallel()
	binary := func(more ...string) nats.Header {
		h := nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/s"}, "ce-type": {"t"}, "ce-timerafter": {"1s"}}
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = []string{more[i+1]}
		}
		return h
	}
	structured := func(more string) []byte {
		return []byte(`{"specversion":"1.0","id":"1","source":"/s","type":"t","timerafter":"1s"` + more + `}`)
	}
	for name, c := range map[string]struct {
		header nats.Header
		data   []byte
		want   schemas.TraceContext
	}{
		"none":                         {binary(), nil, schemas.TraceContext{}},
		"binary attribute":             {binary("ce-traceparent", outer, "ce-tracestate", "a=b%20c"), nil, schemas.TraceContext{Parent: outer, State: "a=b c"}},
		"header before attribute":      {binary("Traceparent", inner, "ce-traceparent", outer, "ce-tracestate", "a=b"), nil, schemas.TraceContext{Parent: inner}},
		"invalid header":               {binary("traceparent", "00-x", "ce-traceparent", outer), nil, schemas.TraceContext{Parent: outer}},
		"structured attribute":         {nil, structured(`,"traceparent":"` + outer + `","tracestate":"a=b"`), schemas.TraceContext{Parent: outer, State: "a=b"}},
		"structured, escaped":          {nil, structured(`,"tracestate":"a=\u0062","traceparent":"` + outer + `"`), schemas.TraceContext{Parent: outer, State: "a=b"}},
		"only in the data":             {nil, structured(`,"data":{"traceparent":"` + outer + `"}`), schemas.TraceContext{}},
		"structured header":            {nats.Header{"traceparent": {inner}, "tracestate": {"c=d"}}, structured(`,"traceparent":"` + outer + `"`), schemas.TraceContext{Parent: inner, State: "c=d"}},
		"tracestate that is too long":  {nats.Header{"traceparent": {inner}, "tracestate": {strings.Repeat("a", 600)}}, structured(""), schemas.TraceContext{Parent: inner}},
		"attribute that is no context": {nil, structured(`,"traceparent":"00-x"`), schemas.TraceContext{}},
	} {
		if got := schemas.TraceOf(c.header, c.data); got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
		body, _, err := schemas.ParseAdd(c.header, c.data, time.Now().UnixMilli(), schemas.Limits{})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := body.Trace(); got != c.want {
			t.Errorf("%s: the stored event has %+v, want %+v", name, got, c.want)
		}
		if got := schemas.TraceOf(body.Message(schemas.Fired{Run: 1, Attempt: 1})); got != c.want {
			t.Errorf("%s: the fired event has %+v, want %+v", name, got, c.want)
		}
	}
}

func TestValidTraceParent(t *testing.T) {
	t.Parallel()
	for _, s := range []string{outer, "01" + outer[2:], "01" + outer[2:] + "-more"} {
		if !schemas.ValidTraceParent(s) {
			t.Errorf("%s is refused", s)
		}
	}
	for _, s := range []string{"", "00-x", outer[1:], outer + "-more", "ff" + outer[2:], "01" + outer[2:] + "more", strings.ToUpper(outer),
		"00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-" + strings.Repeat("0", 16) + "-01"} {
		if schemas.ValidTraceParent(s) {
			t.Errorf("%s is accepted", s)
		}
	}
}

// TestWithTrace: the header does not change the hash of the event, replaces an invalid one, and is
// left out where it does not fit.
func TestWithTrace(t *testing.T) {
	t.Parallel()
	event := []byte(`{"specversion":"1.0","id":"1","source":"/s","type":"t","timerafter":"1s"}`)
	parse := func(h nats.Header) (schemas.Body, schemas.Spec) {
		body, spec, err := schemas.ParseAdd(h, event, 1, schemas.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		return body, spec
	}
	body, spec := parse(nats.Header{"Traceparent": {"00-x"}, "mine": {"1"}})
	with := body.WithTrace(outer, 1<<20)
	if got := with.Trace().Parent; got != outer || len(with.Headers) != 2 {
		t.Errorf("got %+v", with.Headers)
	}
	header, _ := with.Message(schemas.Fired{Run: 1, Attempt: 1})
	if _, again := parse(nats.Header{"traceparent": header["traceparent"], "mine": {"1"}}); again.Hash != spec.Hash {
		t.Error("the event with the header has another hash")
	}
	if same := body.WithTrace(outer, body.Size()+schemas.PayloadReserve); len(same.Headers) != 2 || same.Trace().Parent != "" {
		t.Errorf("got %+v, want the body without the header, which does not fit", same.Headers)
	}
}
