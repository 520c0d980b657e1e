package calendar_test

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/testsize"
)

// The oracle steps through real time minute by minute with Go's time package and applies the
// rule for daylight saving as the package comment states it. It shares no code with the
// package: it reads the zone archive itself and matches times by lists of numbers.

// everything makes the tests compare all zones in all years. .ci/run sets BELFRY_CALENDAR=all;
// it takes about 40 s of one core, instead of 3 s.
var everything = os.Getenv("BELFRY_CALENDAR") == "all"

// named are zones that tests ask for by name.
var named = map[string]bool{"Europe/Berlin": true}

// location is a zone of the archive. Zones with equal data are tested once.
type location struct {
	name string
	*time.Location
}

var locations = sync.OnceValue(func() []location {
	compressed, err := os.Open("zoneinfo/zoneinfo.zip.gz")
	if err != nil {
		panic(err)
	}
	defer compressed.Close()
	plain, err := gzip.NewReader(compressed)
	if err != nil {
		panic(err)
	}
	archive, err := io.ReadAll(plain)
	if err != nil {
		panic(err)
	}
	r, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		panic(err)
	}
	var list []location
	seen := map[[32]byte]bool{}
	for _, f := range r.File {
		data, err := readFile(f)
		if err != nil {
			panic(err)
		}
		loc, err := time.LoadLocationFromTZData(f.Name, data)
		if sum := sha256.Sum256(data); err == nil && accepted(f.Name) && (!seen[sum] || named[f.Name]) {
			seen[sum] = true
			list = append(list, location{f.Name, loc})
		}
	}
	return list
})

func readFile(f *zip.File) ([]byte, error) {
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func accepted(zone string) bool {
	_, err := calendar.New(calendar.Spec{Cron: "@daily", Zone: zone})
	return err == nil
}

func locate(t testing.TB, name string) *time.Location {
	t.Helper()
	for _, l := range locations() {
		if l.name == name {
			return l.Location
		}
	}
	t.Fatalf("no zone %s", name)
	return nil
}

// pattern is a schedule as lists of numbers; nil lists match everything.
type pattern struct {
	minuteText, hourText string
	minutes, hours       []int
	wildcard             bool
	gap, overlap         string // overrides
}

func (p pattern) matches(minute int64) bool {
	hour, m := int(minute/60%24), int(minute%60)
	return (p.minutes == nil || slices.Contains(p.minutes, m)) && (p.hours == nil || slices.Contains(p.hours, hour))
}

func (p pattern) shifts() bool { return p.gap == "shift" || p.gap == "" && !p.wildcard }

func (p pattern) passes() string {
	switch {
	case p.overlap != "":
		return p.overlap
	case p.wildcard:
		return "both"
	}
	return "first"
}

func (p pattern) dst() string {
	var parts []string
	if p.gap != "" {
		parts = append(parts, "gap="+p.gap)
	}
	if p.overlap != "" {
		parts = append(parts, "overlap="+p.overlap)
	}
	return strings.Join(parts, ",")
}

// window is a stretch of minutes around a change of the offset. local[i] is the wall clock at
// minute start+i, in minutes since 1970.
type window struct {
	start int64
	local []int64
}

const (
	warmUp       = 5 * 60 // minutes in which the oracle learns which local times occurred
	windowLength = 14 * 60
)

func newWindow(loc *time.Location, change int64) window {
	w := window{start: change - 8*60}
	for m := w.start; m < w.start+windowLength; m++ {
		t := time.Unix(m*60, 0).In(loc)
		w.local = append(w.local, time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), 0, 0, time.UTC).Unix()/60)
	}
	return w
}

// runs returns the minutes after the warm-up, and before the last five hours, at which the
// pattern runs.
func (w window) runs(p pattern) []int64 {
	var list []int64
	for i := warmUp; i < len(w.local)-warmUp; i++ {
		local, before := w.local[i], w.local[i-1]
		run := false
		if p.matches(local) {
			switch p.passes() {
			case "both":
				run = true
			case "first":
				run = !slices.Contains(w.local[max(0, i-200):i], local)
			case "last":
				run = !slices.Contains(w.local[i+1:i+200], local)
			}
		}
		if missing := local - before - 1; missing > 0 && missing <= 180 && p.shifts() {
			for m := before + 1; m < local; m++ {
				run = run || p.matches(m) && !slices.Contains(w.local[i-200:i], m)
			}
		}
		if run {
			list = append(list, w.start+int64(i))
		}
	}
	return list
}

// check compares a schedule with the oracle. It returns the number of runs compared.
func (w window) check(t *testing.T, zone string, p pattern, spec calendar.Spec) int {
	t.Helper()
	spec.Zone, spec.DST = zone, p.dst()
	s, err := calendar.New(spec)
	if err != nil {
		t.Errorf("%s: %+v: %v", zone, spec, err)
		return 0
	}
	want := w.runs(p)
	from, to := (w.start+warmUp)*60_000, (w.start+int64(len(w.local))-warmUp)*60_000-1
	var got []int64
	for ms := range s.Between(from, to) {
		got = append(got, ms/60_000)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s around %s: cron %q every %q dst %q: got %v, want %v", zone, text(w.start*60_000+8*3_600_000), spec.Cron, spec.Every, spec.DST, minutesText(got), minutesText(want))
	}
	return len(want)
}

func text(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

func minutesText(list []int64) (texts []string) {
	for _, m := range list {
		texts = append(texts, text(m*60_000))
	}
	return texts
}

// changes returns the minutes at which a location changes its offset. It looks every six
// hours and then halves the interval.
func changes(loc *time.Location, fromYear, toYear int) (list []int64) {
	offset := func(minute int64) int {
		_, o := time.Unix(minute*60, 0).In(loc).Zone()
		return o
	}
	const step = 6 * 60
	end := time.Date(toYear, 1, 1, 0, 0, 0, 0, time.UTC).Unix() / 60
	for m := time.Date(fromYear, 1, 1, 0, 0, 0, 0, time.UTC).Unix() / 60; m < end; m += step {
		low, high := m, m+step
		if offset(low) == offset(high) {
			continue
		}
		for high-low > 1 {
			if mid := (low + high) / 2; offset(mid) == offset(low) {
				low = mid
			} else {
				high = mid
			}
		}
		list = append(list, high)
	}
	return list
}

// patternsAround returns schedules at and near the local times that a change affects.
func patternsAround(w window, change int64) []pattern {
	i := change - w.start
	first, last := min(w.local[i], w.local[i-1]+1), max(w.local[i], w.local[i-1]+1) // the gap or the overlap
	middle := (first + last) / 2
	at := func(m int64) pattern {
		minute, hour := int(m%60), int(m/60%24)
		return pattern{minuteText: fmt.Sprint(minute), hourText: fmt.Sprint(hour), minutes: []int{minute}, hours: []int{hour}}
	}
	quarters := []int{0, 15, 30, 45}
	hour, next := int(middle/60%24), int((middle/60+1)%24)
	list := []pattern{
		at(first - 1), at(first), at(middle), at(last - 1), at(last),
		{minuteText: "0,15,30,45", hourText: fmt.Sprint(hour), minutes: quarters, hours: []int{hour}},
		{minuteText: "0,30", hourText: fmt.Sprintf("%d,%d", hour, next), minutes: []int{0, 30}, hours: []int{hour, next}},
		{minuteText: "*/15", hourText: "*", minutes: quarters, wildcard: true},
		{minuteText: "*/15", hourText: fmt.Sprint(hour), minutes: quarters, hours: []int{hour}, wildcard: true},
		{minuteText: "20", hourText: "*", minutes: []int{20}, wildcard: true},
		{minuteText: "*", hourText: "*", wildcard: true},
	}
	for _, override := range []struct{ gap, overlap string }{{"skip", "last"}, {"shift", "both"}, {"", "last"}, {"shift", "first"}} {
		for _, p := range []pattern{list[2], list[5], list[8], list[9]} {
			p.gap, p.overlap = override.gap, override.overlap
			list = append(list, p)
		}
	}
	return list
}

// TestEveryChangeOfEveryZone compares cron expressions and daily periods with the oracle
// around changes of the offset.
func TestEveryChangeOfEveryZone(t *testing.T) {
	t.Parallel()
	windows, runs := 0, 0
	for i, loc := range locations() {
		var list []int64
		switch {
		case everything:
			list = changes(loc.Location, 2005, 2047)
		case (testing.Short() || testsize.Race) && i%8 != 0: // the race detector makes this ten times slower
		default: // one year in the future, and a year that differs from zone to zone
			year := 2005 + i*5%42
			list = append(changes(loc.Location, 2028, 2029), changes(loc.Location, year, year+1)...)
		}
		for _, change := range list {
			windows++
			w := newWindow(loc.Location, change)
			patterns := patternsAround(w, change)
			for _, p := range patterns {
				runs += w.check(t, loc.name, p, calendar.Spec{Cron: p.minuteText + " " + p.hourText + " * * *"})
			}
			for _, p := range patterns[:5] { // a period of a day that began three days before
				start := time.Unix(change*60, 0).In(loc.Location).AddDate(0, 0, -3)
				start = time.Date(start.Year(), start.Month(), start.Day(), p.hours[0], p.minutes[0], 0, 0, loc.Location)
				if start.Hour() == p.hours[0] && start.Minute() == p.minutes[0] {
					runs += w.check(t, loc.name, p, calendar.Spec{Every: "P1D", StartMs: start.UnixMilli()})
				}
			}
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	t.Logf("%d runs in %d windows", runs, windows)
	if least := 50; windows < least {
		t.Errorf("compared %d windows, fewer than %d", windows, least)
	}
}

// TestTablesAgreeWithGo compares the offset of every zone with Go's at noon and midnight of
// each day of some years. 2028 and 2048 are leap years, in which ZoneBounds is wrong on 31
// December (golang/go#81583).
func TestTablesAgreeWithGo(t *testing.T) {
	t.Parallel()
	years := []int{2011, 2028, 2096}
	if everything {
		years = years[:0]
		for y := 2005; y < 2050; y++ {
			years = append(years, y)
		}
	}
	for i, loc := range locations() {
		if (testing.Short() || testsize.Race) && i%8 != 0 {
			continue
		}
		s := mustNew(t, calendar.Spec{Cron: "0 */12 * * *", Zone: loc.name, DST: "gap=skip,overlap=both"})
		for _, year := range years {
			from := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
			for _, o := range s.Explain(from.UnixMilli(), from.AddDate(1, 0, 0).UnixMilli()-1, calendar.MaxExplained) {
				if o.Skipped {
					continue
				}
				local := time.UnixMilli(o.NominalMs).In(loc.Location)
				if _, offset := local.Zone(); offset != o.OffsetSeconds || local.Hour()%12 != 0 || local.Minute() != 0 {
					t.Fatalf("%s: %s is local %s, and the table says %s", loc.name, text(o.NominalMs), local.Format(time.RFC3339), o.Local())
				}
			}
		}
	}
}

func mustNew(t testing.TB, spec calendar.Spec) *calendar.Schedule {
	t.Helper()
	s, err := calendar.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	return s
}
