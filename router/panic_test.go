package router

import (
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/schemas"
)

// TestPanicIsContained: no event is known to make the parser panic, so one is made to.
func TestPanicIsContained(t *testing.T) {
	t.Parallel()
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &Router{o: Options{Log: zerolog.Nop()}, m: m}
	r.parse = func(nats.Header, []byte, int64, schemas.Limits) (schemas.Body, schemas.Spec, error) { panic("planted") }
	if err := r.validate(&add{}); schemas.CodeOf(err) != schemas.CodeInvalidEvent {
		t.Errorf("%v", err)
	}
	if _, err := r.contain(func() (any, error) { panic("planted") }); schemas.CodeOf(err) != schemas.CodeUnavailable {
		t.Errorf("%v", err)
	}
}
