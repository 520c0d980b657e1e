package router

import (
	"testing"

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
	s := &Service{o: Options{Log: zerolog.Nop(), Store: sizeOnly{}}, m: m}
	s.parse = func(map[string][]string, []byte, int64, schemas.Limits) (schemas.Body, schemas.Spec, error) {
		panic("planted")
	}
	if err := s.validate(&Add{}); schemas.CodeOf(err) != schemas.CodeInvalidEvent {
		t.Errorf("%v", err)
	}
	if _, err := contain(s, func() (int, error) { panic("planted") }); schemas.CodeOf(err) != schemas.CodeUnavailable {
		t.Errorf("%v", err)
	}
}

// sizeOnly is a store that tells the size of a message.
type sizeOnly struct{ Store }

func (sizeOnly) MaxMessage() int { return schemas.DefaultLimitMessage }
