//go:build unix

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// badAdd is an invalid message on timers.add.
type badAdd struct {
	name string
	msg  *nats.Msg
	code schemas.Code // "" where it is to be accepted
}

func badAdds() []badAdd {
	raw := func(data string) *nats.Msg { return &nats.Msg{Subject: schemas.SubjectAdd, Data: []byte(data)} }
	n := 0
	good := func(change attrs) *nats.Msg {
		n++
		a := attrs{"id": fmt.Sprintf("bad-%d", n), "timersvc": "bad", "timerafter": "1ms"}
		for k, v := range change {
			if a[k] = v; v == "-" {
				delete(a, k)
			}
		}
		return structured(a, `{}`)
	}
	adds := []badAdd{
		{"empty", raw(""), schemas.CodeInvalidEvent},
		{"malformed JSON", raw(`{"specversion":"1.0",`), schemas.CodeInvalidEvent},
		{"not JSON at all", raw("\x00\x01\x02"), schemas.CodeInvalidEvent},
		{"an array", raw(`[1,2,3]`), schemas.CodeInvalidEvent},
		{"deep nesting", raw(strings.Repeat("[", 100_000)), schemas.CodeInvalidEvent},
		{"deeply nested data", raw(`{"specversion":"1.0","id":"deep","source":"/e2e","type":"t","timersvc":"bad","timerafter":"1ms","data":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`), schemas.CodeInvalidEvent},
		{"trailing rubbish", raw(`{"specversion":"1.0"} x`), schemas.CodeInvalidEvent},
		{"wrong types", raw(`{"specversion":1.0,"id":7,"source":{},"type":[],"timerat":true}`), schemas.CodeInvalidEvent},
		{"a number as id", raw(`{"specversion":"1.0","id":7,"source":"/e2e","type":"t","timerafter":"1s"}`), schemas.CodeInvalidEvent},
		{"no specversion", raw(`{"id":"a","source":"/e2e","type":"t","timerafter":"1s"}`), schemas.CodeInvalidEvent},
		{"an old specversion", good(attrs{"specversion": "0.3"}), schemas.CodeInvalidEvent},
		{"no id", good(attrs{"id": "-"}), schemas.CodeInvalidEvent},
		{"an empty id", good(attrs{"id": ""}), schemas.CodeInvalidEvent},
		{"an upper-case attribute", good(attrs{"MyExt": "1"}), schemas.CodeInvalidEvent},
		{"a batch", &nats.Msg{Subject: schemas.SubjectAdd, Header: nats.Header{"content-type": {"application/cloudevents-batch+json"}}, Data: []byte(`[]`)}, schemas.CodeInvalidEvent},
		{"neither at nor after", good(attrs{"timerafter": "-"}), schemas.CodeInvalidAttribute},
		{"both at and after", good(attrs{"timerat": at(time.Second)}), schemas.CodeInvalidAttribute},
		{"year 1", good(attrs{"timerafter": "-", "timerat": "0001-01-01T00:00:00Z"}), schemas.CodeInvalidAttribute},
		{"year 9999", good(attrs{"timerafter": "-", "timerat": "9999-12-31T23:59:59.999Z"}), schemas.CodeInvalidAttribute},
		{"year 10000", good(attrs{"timerafter": "-", "timerat": "10000-01-01T00:00:00Z"}), schemas.CodeInvalidAttribute},
		{"not a time", good(attrs{"timerafter": "-", "timerat": "tomorrow"}), schemas.CodeInvalidAttribute},
		{"a past time", good(attrs{"timerafter": "-", "timerat": at(-time.Hour)}), ""},
		{"zero", good(attrs{"timerafter": "0s"}), ""},
		{"negative", good(attrs{"timerafter": "-1s"}), schemas.CodeInvalidAttribute},
		{"a duration that overflows", good(attrs{"timerafter": "99999999999999999999h"}), schemas.CodeInvalidAttribute},
		{"months", good(attrs{"timerafter": "P1M"}), schemas.CodeInvalidAttribute},
		{"not a duration", good(attrs{"timerafter": "soon"}), schemas.CodeInvalidAttribute},
		{"a misspelt attribute", good(attrs{"timercalback": "http://example.com"}), schemas.CodeInvalidAttribute},
		{"an unknown attribute of the user's", good(attrs{"anything": "else"}), ""},
		{"an attribute that no version has", good(attrs{"timerflows": "orders"}), schemas.CodeInvalidAttribute},
		{"a schedule that is due once, too", good(attrs{"timerevery": "1s"}), schemas.CodeInvalidAttribute},
		{"a cron expression of four fields", good(attrs{"timerafter": "-", "timercron": "* * * *"}), schemas.CodeInvalidAttribute},
		{"a schedule in an unknown zone", good(attrs{"timerafter": "-", "timercron": "0 9 * * *", "timertz": "Mars/Olympus"}), schemas.CodeInvalidAttribute},
		{"a callback that is no URL", good(attrs{"timercallback": "gopher://x"}), schemas.CodeInvalidAttribute},
		{"a callback to a wildcard", good(attrs{"timercallback": "nats:>"}), schemas.CodeInvalidAttribute},
		{"a callback to JetStream's API", good(attrs{"timercallback": "nats:$JS.API.STREAM.DELETE.TIMERS_ADD"}), schemas.CodeInvalidAttribute},
		{"a callback to itself", good(attrs{"timercallback": "nats:timers.add"}), schemas.CodeInvalidAttribute},
		{"no attempts", good(attrs{"timermaxattempts": "0"}), schemas.CodeInvalidAttribute},
		{"negative attempts", good(attrs{"timermaxattempts": "-3"}), schemas.CodeInvalidAttribute},
		{"a backoff backwards", good(attrs{"timerbackoff": "10s..1s"}), schemas.CodeInvalidAttribute},
		{"no time-out", good(attrs{"timertimeout": "0s"}), schemas.CodeInvalidAttribute},
		{"a long group", good(attrs{"timergroup": strings.Repeat("g", 1000)}), schemas.CodeInvalidAttribute},
	}
	for _, svc := range []string{"a.b", "*", ">", "", "ünïcode", strings.Repeat("s", 300), "a b", "a\tb", "$JS", "a/b", "timers.fired.x", "\u0000"} {
		code := schemas.CodeInvalidAttribute
		if svc == "a\tb" || svc == "\u0000" {
			code = schemas.CodeInvalidEvent // a CloudEvents string must not have such a character
		}
		adds = append(adds, badAdd{fmt.Sprintf("service %.20q", svc), good(attrs{"timersvc": svc}), code})
	}
	// Every string that CloudEvents permits is a valid ID.
	for _, id := range []string{"a.b.>", "*", "../../etc", "id with spaces inside", "ünïcode 🎉", `"quoted" \ back`, strings.Repeat("i", 2000), "%20%", "$KV.x"} {
		adds = append(adds, badAdd{fmt.Sprintf("id %.20q", id), good(attrs{"id": id}), ""})
	}
	return adds
}

// TestBadInput sends invalid adds between valid ones, on the stream and through the API.
// The invalid ones are rejected with a reason and the original bytes, the valid ones
// fire, and nothing stops.
func TestBadInput(t *testing.T) {
	t.Parallel()
	a := node(t, nil)
	c := connect(t, a.NATSURL())
	adds := badAdds()
	rejected := map[string]badAdd{} // by their data
	wantBad := 1                    // good timers of service "bad"
	for n, x := range adds {
		c.publish(x.msg)
		if x.code == "" {
			wantBad++
		} else {
			rejected[string(x.msg.Data)] = x
		}
		c.publish(structured(attrs{"id": fmt.Sprintf("good-%d", n), "timersvc": "good", "timerafter": "10ms"}, `{}`))
	}
	// The server refuses 2 MB on every subject.
	big := structured(attrs{"id": "big", "timersvc": "bad", "timerafter": "1ms"}, `"`+strings.Repeat("x", 2<<20)+`"`)
	if _, err := c.js.PublishMsg(t.Context(), big); err == nil {
		t.Error("2 MB were accepted")
	}
	// Accepted by the server, but not by Belfry.
	large := structured(attrs{"id": "large", "timersvc": "bad", "timerafter": "1ms"}, `"`+strings.Repeat("x", 1<<20-2000)+`"`)
	c.publish(large)
	rejected[string(large.Data)] = badAdd{"almost the server's limit", large, schemas.CodeTooLarge}
	wide := structured(attrs{"id": "wide", "timersvc": "bad", "timerafter": "1ms"}, `"`+strings.Repeat("x", 900_000)+`"`)
	c.publish(wide)

	if late := lateness(t, c.firedEvents("good", len(adds))); percentile(late, 99) > lateBound {
		t.Errorf("valid timers were %s late (p99), want %s at most", percentile(late, 99), lateBound)
	}
	events := c.firedEvents("bad", wantBad)
	ids := map[string]bool{}
	for _, e := range events {
		ids[e.id] = true
	}
	if !ids["wide"] {
		t.Error("an event of 900 kB did not fire")
	}
	checkRejected(t, c, rejected)

	for _, x := range adds {
		req := *x.msg
		req.Subject = schemas.SubjectAPIPrefix + "add"
		var reply schemas.AddReply
		err := c.callMsg(&req, &reply)
		switch {
		case schemas.CodeOf(err) != x.code:
			t.Errorf("API: %s: %v, want code %q", x.name, err, x.code)
		case err == nil && !reply.Duplicate:
			t.Errorf("API: %s: not answered as a duplicate", x.name)
		}
	}
	for verb, body := range map[string]string{"get": "{", "cancel": `{"timer":"x"}`, "reschedule": `{"id":"a","source":"b"}`, "list": `{"cursor":"nonsense"}`, "dead.list": `{"limit":-5}`, "dead.replay": `{}`} {
		var v json.RawMessage
		if err := c.callMsg(&nats.Msg{Subject: schemas.SubjectAPIPrefix + verb, Data: []byte(body)}, &v); verb != "dead.list" && schemas.CodeOf(err) == "" {
			t.Errorf("API: %s %s: %v %s, want an error with a code", verb, body, err, v)
		}
	}
	if n := metrictest.Sum(t, a.Registry(), "belfry_adds_rejected_total"); int(n) < len(rejected) {
		t.Errorf("%v rejections were counted, want %d", n, len(rejected))
	}
}

// checkRejected compares the messages on timers.rejected with the invalid adds.
func checkRejected(t *testing.T, c *client, want map[string]badAdd) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	cons, err := c.js.OrderedConsumer(ctx, schemas.StreamRejected, jetstream.OrderedConsumerConfig{FilterSubjects: []string{schemas.SubjectRejected}})
	if err != nil {
		t.Fatal(err)
	}
	it, err := cons.Messages()
	if err != nil {
		t.Fatal(err)
	}
	defer it.Stop()
	unhook := context.AfterFunc(ctx, it.Stop)
	defer unhook()
	left := map[string]badAdd{}
	for k, v := range want {
		left[k] = v
	}
	for len(left) > 0 {
		m, err := it.Next()
		if err != nil {
			for _, x := range left {
				t.Errorf("%s was not rejected", x.name)
			}
			t.Fatal(err)
		}
		x, ok := left[string(m.Data())]
		if !ok {
			t.Errorf("a valid add was rejected: %.200q %v", m.Data(), m.Headers())
			continue
		}
		delete(left, string(m.Data()))
		h := m.Headers()
		if got := schemas.Code(h.Get(schemas.HeaderErrorCode)); got != x.code || h.Get(schemas.HeaderError) == "" {
			t.Errorf("%s: rejected with %s (%s), want %s", x.name, got, h.Get(schemas.HeaderError), x.code)
		}
		for name := range x.msg.Header {
			if h.Get(name) != x.msg.Header.Get(name) {
				t.Errorf("%s: header %s was not kept", x.name, name)
			}
		}
	}
}

// TestRandomInput publishes events with randomly changed bytes between valid ones, and
// checks that nothing stops. The seed is fixed, so that a failure is repeatable.
func TestRandomInput(t *testing.T) {
	t.Parallel()
	a := node(t, nil)
	c := connect(t, a.NATSURL())
	rng := rand.New(rand.NewPCG(20, 26))
	count := testsize.Choose(t, "events", 300, 1000, 3000)
	for n := range count {
		m := structured(attrs{"id": fmt.Sprintf("random-%d", n), "timersvc": "random", "timerafter": "5ms", "timercallback": "nats:random.callback", "timermaxattempts": "1", "subject": "s"}, `{"a":[1,2,{"b":"c"}]}`)
		if n%2 == 0 {
			m = binary(attrs{"id": fmt.Sprintf("random-%d", n), "timersvc": "random", "timerafter": "5ms", "timertimeout": "1s"}, "application/json", `{"a":1}`)
			m.Header[randomText(rng, "ce-timerat", 3)] = []string{randomText(rng, "2030-01-01T00:00:00Z", 2)}
			m.Header["ce-"+randomText(rng, "timersvc", 1)] = []string{randomText(rng, "random", 2)}
		}
		for range rng.IntN(4) {
			if len(m.Data) > 0 {
				m.Data[rng.IntN(len(m.Data))] = byte(rng.IntN(256))
			}
		}
		if rng.IntN(5) == 0 {
			m.Data = m.Data[:rng.IntN(len(m.Data))]
		}
		if _, err := c.js.PublishMsgAsync(m, jetstream.WithStallWait(bound)); err != nil && !errors.Is(err, nats.ErrBadHeaderMsg) { // the header is not a header
			t.Fatal(err)
		}
		if n%100 == 0 {
			c.publish(structured(attrs{"id": fmt.Sprintf("good-%d", n), "timersvc": "good", "timerafter": "10ms"}, `{}`))
		}
	}
	c.firedEvents("good", count/100)
	waittest.Until(t, "every add taken", func() bool { return c.left(schemas.StreamAdd) == 0 })
	events := c.firedEvents("random", 0)
	lateness(t, events)
	t.Logf("%d of %d changed events fired", len(events), count)
	if len(events) == 0 || len(events) == count {
		t.Errorf("%d of %d changed events fired: the test showed nothing", len(events), count)
	}
}

// randomText changes a few bytes of s to others that a header may have.
func randomText(rng *rand.Rand, s string, n int) string {
	b := []byte(s)
	for range rng.IntN(n + 1) {
		b[rng.IntN(len(b))] = byte(33 + rng.IntN(94))
	}
	return strings.ReplaceAll(string(b), ":", "-")
}
