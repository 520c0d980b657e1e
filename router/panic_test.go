package router

import (
	"testing"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/schemas"
)

// TestPanicIsContained: a panic in the parser, which the test injects, does not stop the
// router.
func TestPanicIsContained(t *testing.T) {
	t.Parallel()
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{engine: &engine{o: Options{Log: zerolog.Nop(), Store: sizeOnly{}}, m: m}}
	s.parse = func(map[string][]string, []byte, int64, schemas.Limits, recurrence.Calendars) (schemas.Record, schemas.Spec, error) {
		panic("planted")
	}
	if err := s.validate(&Add{}, s.parse); schemas.CodeOf(err) != schemas.CodeInvalidEvent {
		t.Errorf("got error %v", err)
	}
	if _, err := contain(s, func() (int, error) { panic("planted") }); schemas.CodeOf(err) != schemas.CodeUnavailable {
		t.Errorf("got error %v", err)
	}
}

// sizeOnly is a store with only the size of a message.
type sizeOnly struct{ Store }

func (sizeOnly) MaxMessage() int { return schemas.DefaultLimitMessage }
