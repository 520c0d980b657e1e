package belfry_test

import (
	"errors"
	"testing"
	"time"

	"github.com/belfryio/belfry"
)

// TestWhen: an add uses the last due time, also over that of the event, and rescheduling takes
// the same values. A When that was not set is an error.
func TestWhen(t *testing.T) {
	t.Parallel()
	c := connect(t)
	at := time.Date(2030, time.January, 2, 3, 4, 5, 6_000_000, time.FixedZone("", 3600))
	e := newEvent("1")
	e.SetExtension("timerafter", "1h")
	r, err := c.Add(t.Context(), e, belfry.After(time.Minute), belfry.At(at))
	if err != nil || !r.Due.Equal(at) || e.Extensions()["timerafter"] != "1h" {
		t.Fatalf("got %+v, %v", r, err)
	}
	if r, err := c.Add(t.Context(), newEvent("2"), belfry.At(at), belfry.After(0)); err != nil || r.Due.Equal(at) {
		t.Errorf("got %+v, %v", r, err)
	}
	later := at.Add(time.Hour)
	if moved, err := c.Reschedule(t.Context(), r.Timer, belfry.At(later)); err != nil || !moved.Due.Equal(later) {
		t.Errorf("got %+v, %v", moved, err)
	}
	if moved, err := c.Reschedule(t.Context(), r.Timer, belfry.After(time.Hour)); err != nil || !moved.Due.Before(at) {
		t.Errorf("got %+v, %v", moved, err)
	}
	if _, err := c.Reschedule(t.Context(), r.Timer, belfry.When{}); !errors.Is(err, belfry.ErrBadRequest) {
		t.Errorf("without a due time: %v", err)
	}
	if _, err := c.Reschedule(t.Context(), r.Timer, belfry.After(-time.Second)); err == nil {
		t.Error("a negative duration is accepted")
	}
	if _, err := c.Add(t.Context(), newEvent("3"), belfry.When{}); !errors.Is(err, belfry.ErrInvalidAttribute) {
		t.Errorf("without a due time: %v", err)
	}
}
