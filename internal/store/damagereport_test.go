package store

import (
	"errors"
	"testing"

	"github.com/belfryio/belfry/internal/natstest"
)

// TestReplaceDamageReport: an inspection that was paused does not replace the report that another
// process has written in the meantime. A change of the report keeps what the other process wrote.
func TestReplaceDamageReport(t *testing.T) {
	t.Parallel()
	s := openOneShard(t, natstest.Run(t).Connect(), Config{})
	r := s.DamageReports
	was, err := r.read(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	add := func(timer string) {
		t.Helper()
		if _, err := r.change(t.Context(), 0, func(d *ShardDamage) { d.Records = append(d.Records, DamagedRecord{Timer: timer, Revision: 1}) }); err != nil {
			t.Fatal(err)
		}
	}
	add("a")
	if err := r.replace(t.Context(), was, ShardDamage{Records: []DamagedRecord{{Timer: "b", Revision: 1}}}); !errors.Is(err, ErrRevision) {
		t.Errorf("a report from before another one was written: %v; want %v", err, ErrRevision)
	}
	calls := 0
	if _, err := r.change(t.Context(), 0, func(d *ShardDamage) {
		if calls++; calls == 1 {
			add("c") // between the read and the write
		}
		d.Records = append(d.Records, DamagedRecord{Timer: "d", Revision: 1})
	}); err != nil || calls != 2 {
		t.Errorf("a change after %d calls: %v", calls, err)
	}
	got, err := r.read(t.Context(), 0)
	if err != nil || len(got.Records) != 3 || got.Records[0].Timer != "a" || got.Records[1].Timer != "c" || got.Records[2].Timer != "d" {
		t.Errorf("the report has %+v, %v; want a, c and d", got.Records, err)
	}
}
