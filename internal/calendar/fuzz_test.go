package calendar

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// FuzzSchedule: New never panics and explains each refusal. An accepted schedule only moves
// forward, with bounded work, and Prev, DueMs and the texts agree with Next.
func FuzzSchedule(f *testing.F) {
	for _, cron := range []string{
		"30 2 * * *", "*/15 * * * *", "* * * * * *", "H H(0-3) LW,15W,L-3 JAN-MAR ?", "0 22-2/2 ? * MON#1,FRIL,7", "@weekly", "0 0 29 2 *", "59 59 23 31 12 ?",
		"0 0 13 * FRI", "*/90 * * * *", "CRON_TZ=UTC * * * * *", "@every 5m", "0 0 30 2 *", "0 0 1 1 * 2027",
	} {
		f.Add(cron, "", uint16(320), "", "", "", int64(1_806_192_000_000), int64(0), uint32(0))
	}
	for _, every := range []string{"90m", "PT336H", "P1D", "P2W", "P1M", "P1Y6M", "1.5s", "P1DT1H"} {
		f.Add("", every, uint16(300), "overlap=both", "", "next", int64(1_806_192_000_000), int64(1_822_000_000_000), uint32(0xf0f0))
	}
	f.Add("0 0 * * *", "", uint16(150), "gap=skip,overlap=last", "or", "previous", int64(1_325_000_000_000), int64(-5), uint32(7))
	f.Add("0", "", uint16(320), "0", "%!", "", int64(1_806_191_999_893), int64(-14), uint32(0)) // the refusal quotes it
	names := ZoneNames()
	f.Fuzz(func(t *testing.T, cron, every string, zone uint16, dst, days, shift string, start, after int64, excluded uint32) {
		spec := Spec{ID: cron + every, Cron: cron, Every: every, Zone: names[int(zone)%len(names)], StartMs: start, DST: dst, Days: days, ExcludeShift: shift, Jitter: time.Duration(excluded) * time.Millisecond}
		spec.Jitter = min(spec.Jitter, MaxJitter)
		base := dayOf(max(after, MinMs))
		var dates []string
		for i := range 32 { // each bit is a date in the weeks after the instant
			if excluded>>i&1 == 1 && base < dayOf(MaxMs)-40 {
				dates = append(dates, date((base+int64(i))*dayMs))
			}
		}
		x, err := NewDates("fuzz", dates...)
		if err != nil {
			t.Fatal(err)
		}
		spec.Exclude = Join(x)
		// A wrong verb of fmt leaves "%!" in a text; so does an input that the text quotes.
		garbled := func(text string) bool {
			return strings.Contains(text, "%!") && !strings.Contains(cron+every+dst+days+shift, "%!")
		}
		s, err := New(spec)
		if err != nil {
			e := (*Error)(nil)
			if !errors.As(err, &e) || e.Reason == "" || e.Instead == "" || e.Attribute == "" || e.Offset > len(e.Value) || garbled(e.Error()) {
				t.Fatalf("%+v: %v", spec, err)
			}
			return
		}
		if s.Describe() == "" || garbled(s.Describe()+strings.Join(s.Warnings(), "")) {
			t.Fatalf("%+v: described as %q, %q", spec, s.Describe(), s.Warnings())
		}
		if r := s.Resolved(); r != "" { // the expression without H is the same schedule
			spec.Cron = r
			if _, err := New(spec); err != nil {
				t.Fatalf("%q resolves to %q: %v", cron, r, err)
			}
		}
		checkForward(t, s, after)
	})
}

func checkForward(t *testing.T, s *Schedule, after int64) {
	t.Helper()
	var list []int64
	for range 6 {
		q := search{Schedule: s}
		f, ok := q.after(after)
		if q.steps > maxSteps {
			t.Fatalf("%+v: %d steps after %d", s.spec, q.steps, after)
		}
		next, same := s.Next(after)
		if ok != same || ok && next != f.atMs {
			t.Fatalf("%+v: Next(%d) is %d, %t", s.spec, after, next, same)
		}
		if !ok {
			break
		}
		if next <= after || next < s.startMs || next >= MaxMs {
			t.Fatalf("%+v: Next(%d) is %d", s.spec, after, next)
		}
		if s.exclude.shift == shiftSkip && s.exclude.excluded(dayOf(f.wantedMs)) {
			t.Fatalf("%+v: runs at %d, on an excluded date", s.spec, next)
		}
		list, after = append(list, next), next
	}
	for i, at := range list {
		if i > 0 {
			if prev, ok := s.Prev(at); !ok || prev != list[i-1] {
				t.Fatalf("%+v: Prev(%d) is %d, %t, want %d", s.spec, at, prev, ok, list[i-1])
			}
			if due := s.DueMs(list[i-1]); due < list[i-1] || due >= at {
				t.Fatalf("%+v: %d is due at %d", s.spec, list[i-1], due)
			}
		}
	}
	if len(list) > 0 {
		var explained []int64
		for _, o := range s.Explain(list[0], list[len(list)-1], len(list)) {
			if !o.Skipped {
				explained = append(explained, o.NominalMs)
			}
			if o.Skipped != (len(o.Reasons) == 1 && (o.Reasons[0].Code == GapSkipped || o.Reasons[0].Code == Excluded && strings.Contains(o.Reasons[0].Text, "is excluded"))) {
				t.Fatalf("%+v: %+v", s.spec, o)
			}
		}
		if !slices.Equal(explained, list) {
			t.Fatalf("%+v: Explain has %v, Next has %v", s.spec, explained, list)
		}
	}
}

// TestWorkIsBounded: no Next exceeds maxSteps, with as many excluded dates as New accepts, in
// a zone with four changes a year, for rules that run rarely or never.
func TestWorkIsBounded(t *testing.T) {
	t.Parallel()
	var calendars []Dates
	for c := range MaxCalendars { // 16 stretches of 4,000 days, with one date between two
		d := Dates{name: "x"}
		for i := range MaxDates {
			d.days = append(d.days, int32(c*(MaxDates+1)+i))
		}
		calendars = append(calendars, d)
	}
	greatest := 0
	for _, rule := range []Spec{{Cron: "* * * * * *"}, {Cron: "0 0 29 2 *"}, {Cron: "0 0 29 2 MON", Days: "and"}, {Cron: "* * * * *", DST: "gap=shift,overlap=last"}, {Every: "PT1S"}, {Every: "P1D"}, {Every: "P36500D"}, {Every: "P7M"}} {
		for _, by := range []string{"skip", "next", "previous"} {
			for _, zone := range []string{"Africa/Casablanca", "UTC"} {
				spec := rule
				spec.Zone, spec.Exclude, spec.ExcludeShift, spec.StartMs = zone, Join(calendars...), by, 1
				s, err := New(spec)
				if err != nil && by == "skip" {
					t.Fatal(err)
				} else if err != nil {
					continue // an elapsed period does not move
				}
				for _, after := range []int64{0, 2500 * dayMs, 30_000 * dayMs, (10*(MaxDates+1) + MaxDates - 1) * dayMs} {
					q := search{Schedule: s}
					q.after(after)
					greatest = max(greatest, q.steps)
				}
			}
		}
	}
	t.Logf("at most %d steps", greatest)
	if greatest > maxSteps {
		t.Errorf("%d steps, more than %d", greatest, maxSteps)
	}
}
