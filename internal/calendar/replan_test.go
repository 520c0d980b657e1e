package calendar_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
)

// TestKeys: the keys of the runs of a schedule grow with time, and each leads to its run, from any time before it. Excluded dates
// drop or move runs.
func TestKeys(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		start := time.Date(2026, time.Month(1+r.IntN(12)), 1+r.IntN(31), 9, 0, 0, 0, time.UTC)
		spec := calendar.Spec{
			StartMs:      start.UnixMilli(),
			Zone:         []string{"UTC", "Europe/Berlin", "America/Santiago"}[r.IntN(3)],
			ExcludeShift: []string{"skip", "next", "previous"}[r.IntN(3)],
		}
		if rule := []string{"P1D", "P3D", "P1W", "P2W", "P1M", "P2M", "30 2 * * *", "0 9 L * *", "0 9 1,15 * *"}[r.IntN(9)]; rule[0] == 'P' {
			spec.Every = rule
		} else {
			spec.Cron = rule
		}
		var days []string
		for day := range 700 {
			if r.IntN(5) == 0 {
				days = append(days, start.AddDate(0, 0, day-5).Format(time.DateOnly))
			}
		}
		dates, err := calendar.NewDates("holidays", days...)
		if err != nil {
			t.Fatal(err)
		}
		spec.Exclude = calendar.Join(dates)
		s := mustNew(t, spec)
		name := fmt.Sprintf("%s%s from %s in %s, %s", spec.Cron, spec.Every, start, spec.Zone, spec.ExcludeShift)
		last, lastKey := int64(0), int64(0)
		for range 30 {
			at, ok := s.Next(last)
			if !ok {
				break
			}
			key := s.Key(at)
			if last != 0 && key <= lastKey {
				t.Errorf("%s: the run at %s has key %d, the one before it %d", name, time.UnixMilli(at).UTC(), key, lastKey)
			}
			for _, from := range []int64{0, last, at - 1} {
				if got, ok := s.NextKey(from, key); !ok || got != at {
					t.Errorf("%s: key %d leads from %s to %s, %v; want %s", name, key, time.UnixMilli(from).UTC(), time.UnixMilli(got).UTC(), ok, time.UnixMilli(at).UTC())
				}
			}
			if got, ok := s.NextKey(0, lastKey+1); last != 0 && (!ok || got != at) {
				t.Errorf("%s: after key %d comes %s, %v; want %s", name, lastKey, time.UnixMilli(got).UTC(), ok, time.UnixMilli(at).UTC())
			}
			if t.Failed() {
				break
			}
			last, lastKey = at, key
		}
	}
}
