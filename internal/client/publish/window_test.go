package publish

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

// silent returns a publisher whose adds reach a subscription that answers nothing.
func silent(t *testing.T, options ...natstest.Option) (*Publisher, *nats.Subscription) {
	t.Helper()
	nc := natstest.Run(t, options...).Connect()
	sub, err := nc.SubscribeSync(schemas.SubjectAdd)
	if err != nil {
		t.Fatal(err)
	}
	return New(nc, natstest.JetStream(t, nc)), sub
}

// TestWindowFull: while maxInFlight publishes have no answer, the next one waits for an answer.
// The bound of that wait is that of Add.
func TestWindowFull(t *testing.T) {
	t.Parallel()
	p, sub := silent(t)
	p.noBatches.Store(true) // no measurements
	var first *Result
	for i := range maxInFlight {
		r, err := p.Add(message(i))
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = r
		}
	}
	blocked := make(chan error, 1)
	go func() {
		_, err := p.Add(message(maxInFlight))
		blocked <- err
	}()
	for deadline := time.Now().Add(stallWait); ; { // until the publish waits
		p.window.mu.Lock()
		waits := p.window.room != nil
		p.window.mu.Unlock()
		if waits {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the publish does not wait")
		}
	}
	m, err := sub.NextMsg(stallWait)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Respond([]byte(`{"stream":"TIMERS_ADD","seq":1}`)); err != nil {
		t.Fatal(err)
	}
	if err := <-blocked; err != nil {
		t.Error(err)
	}
	if err := first.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	_, err = p.Add(message(maxInFlight + 1))
	if !errors.Is(err, schemas.ErrUnavailable) || !strings.Contains(err.Error(), "4000 adds have no answer") {
		t.Errorf("after %s: %v", stallWait, err)
	}
	if n := len(p.window.slots); n != maxInFlight {
		t.Errorf("%d slots", n)
	}
}

// TestWindowNoStream: without a stream a publish fails, after it was repeated.
func TestWindowNoStream(t *testing.T) {
	t.Parallel()
	nc := natstest.Run(t).Connect()
	p := New(nc, natstest.JetStream(t, nc))
	begin := time.Now()
	r, err := p.Add(message(1))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Wait(t.Context()); !errors.Is(err, schemas.ErrUnavailable) || !strings.Contains(err.Error(), "no stream takes") {
		t.Error(err)
	}
	if took := time.Since(begin); took < maxRepeats*repeatDelay {
		t.Errorf("failed after %s, without %d repetitions", took, maxRepeats)
	}
}

// TestWindowDeadline: a publish without an answer fails after AckTimeout, and a late answer
// changes neither it nor a later publish in the same slot.
func TestWindowDeadline(t *testing.T) {
	t.Parallel()
	p, sub := silent(t)
	r, err := p.Add(message(1))
	if err != nil {
		t.Fatal(err)
	}
	for range ackChecks {
		p.window.expire()
	}
	if r.done.Load() {
		t.Error("failed before its deadline")
	}
	p.window.expire()
	if err := r.Wait(t.Context()); !errors.Is(err, schemas.ErrUnavailable) {
		t.Error(err)
	}
	later, err := p.Add(message(2))
	if err != nil {
		t.Fatal(err)
	}
	for i, answer := range []string{`{"stream":"TIMERS_ADD","seq":1}`, `{"error":{"code":503,"err_code":10077,"description":"full"},"stream":"TIMERS_ADD","seq":0}`} {
		m, err := sub.NextMsg(stallWait)
		if err != nil || string(m.Data) != string(message(i+1)) {
			t.Fatal(m, err)
		}
		if err := m.Respond([]byte(answer)); err != nil {
			t.Fatal(err)
		}
	}
	if err := later.Wait(t.Context()); !errors.Is(err, schemas.ErrStoreFull) {
		t.Errorf("the second publish has the answer of the first: %v", err)
	}
	if n := len(p.window.slots); n != 1 {
		t.Errorf("%d slots", n)
	}
}

// TestMeasurementAfterFailedAdd: a measurement that starts after an add whose publish failed does not wait
// for an answer to that add.
func TestMeasurementAfterFailedAdd(t *testing.T) {
	t.Parallel()
	// Add number 192 starts a measurement, and the add before it fails.
	const adds = 3*checkEvery - 2
	p, sub := silent(t, func(o *server.Options) { o.MaxPayload = 64 << 10 })
	for i := range adds {
		if _, err := p.Add(message(i)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Add(make([]byte, 100<<10)); !errors.Is(err, schemas.ErrTooLarge) {
		t.Fatalf("an add over max_payload: %v", err)
	}
	r, err := p.Add(message(adds))
	if err != nil {
		t.Fatal(err)
	}
	if p.adaptive.adds != 3*checkEvery {
		t.Fatalf("add %d starts no measurement", p.adaptive.adds)
	}
	for range adds + 1 {
		m, err := sub.NextMsg(20 * time.Second)
		if err != nil {
			t.Fatalf("the last add is not published: %v", err)
		}
		if err := m.Respond([]byte(`{"stream":"TIMERS_ADD","seq":1}`)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestAckError(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]string{
		`{"stream":"TIMERS_ADD","seq":1}`:                  "<nil>",
		`{"stream":"TIMERS_ADD","seq":1,"duplicate":true}`: "<nil>",
		`{"stream":"error","seq":1}`:                       "<nil>",
		`{"stream":"","seq":1}`:                            jetstream.ErrInvalidJSAck.Error(),
		`{"stream":"TIMERS_ADD","seq":1`:                   jetstream.ErrInvalidJSAck.Error(),
		`{}`:                                               jetstream.ErrInvalidJSAck.Error(),
		``:                                                 jetstream.ErrInvalidJSAck.Error(),
		`{"error":{"code":400,"err_code":10054,"description":"message size"}}`:                       "nats: API error: code=400 err_code=10054 description=message size",
		`{"stream":"TIMERS_ADD","seq":0,"error":{"code":503,"err_code":10077,"description":"full"}}`: "nats: API error: code=503 err_code=10077 description=full",
	} {
		if got := fmt.Sprint(ackError([]byte(answer))); got != want {
			t.Errorf("%s: got %q, want %q", answer, got, want)
		}
	}
}

// TestAddAllWaits: AddAll returns the error of the first message that failed when all messages have an
// answer, so none is on its way then.
func TestAddAllWaits(t *testing.T) {
	t.Parallel()
	const messages = 10
	p, sub := silent(t)
	type outcome struct {
		index int
		err   error
	}
	returned := make(chan outcome, 1)
	go func() {
		all := make([][]byte, messages)
		for i := range all {
			all[i] = message(i)
		}
		index, err := p.AddAll(t.Context(), all)
		returned <- outcome{index, err}
	}()
	var published []*nats.Msg
	for range messages {
		m, err := sub.NextMsg(time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		published = append(published, m)
	}
	answer := func(i int, text string) {
		t.Helper()
		if err := published[i].Respond([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	answer(3, `{"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"}}`)
	for i := range 3 {
		answer(i, `{"stream":"TIMERS_ADD","seq":1}`)
	}
	select {
	case got := <-returned:
		t.Fatalf("AddAll returned %v while messages had no answer", got.err)
	case <-time.After(50 * time.Millisecond):
	}
	for i := 4; i < messages; i++ {
		answer(i, `{"stream":"TIMERS_ADD","seq":1}`)
	}
	if got := <-returned; got.index != 3 || !errors.Is(got.err, schemas.ErrTooLarge) {
		t.Errorf("AddAll returned %d, %v; want 3 and an error of code too_large", got.index, got.err)
	}
}
