package calendar

import (
	"crypto/sha256"
	"encoding/hex"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestZoneDataIsWhatItsNoteSays: the archive beside zoneinfo/README.md has the checksum and
// version in it.
func TestZoneDataIsWhatItsNoteSays(t *testing.T) {
	t.Parallel()
	note, err := os.ReadFile("zoneinfo/README.md")
	if err != nil {
		t.Fatal(err)
	}
	archive, err := unzipZones()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(archive)
	for _, want := range []string{hex.EncodeToString(sum[:]), "release " + ZoneDataVersion, "public domain"} {
		if !strings.Contains(string(note), want) {
			t.Errorf("zoneinfo/README.md does not contain %q", want)
		}
	}
}

// TestEveryZoneLoads: every zone of the archive has a table that covers MinMs to MaxMs without
// holes, and changes its offset at each border.
func TestEveryZoneLoads(t *testing.T) {
	t.Parallel()
	names := ZoneNames()
	if len(names) < 590 {
		t.Errorf("%d zones", len(names))
	}
	for _, name := range names {
		z, err := processZones.load(name)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		list := z.segments
		if list[0].startMs != MinMs || list[len(list)-1].endMs != MaxMs {
			t.Errorf("%s covers %d to %d", name, list[0].startMs, list[len(list)-1].endMs)
		}
		for i, g := range list {
			if g.endMs <= g.startMs || i > 0 && (g.startMs != list[i-1].endMs || g.offsetMs == list[i-1].offsetMs) || max(g.offsetMs, -g.offsetMs) >= maxOffsetMs {
				t.Errorf("%s: segment %d is %+v", name, i, g)
			}
		}
	}
	if z, err := processZones.load("Europe/Atlantis"); z != nil || err != nil {
		t.Errorf("a zone that does not exist: %v, %v", z, err)
	}
}

// TestProgressGuard: a walk advances on 31 December of leap years, when ZoneBounds of Go 1.26
// returns an end that is not after its time (golang/go#81583), and finds every change.
func TestProgressGuard(t *testing.T) {
	t.Parallel()
	affected := 0
	for _, name := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "UTC", "Asia/Tokyo"} {
		loc, err := readZone(processZones.files()[name])
		if err != nil {
			t.Fatal(err)
		}
		for _, year := range []int{2028, 2040, 2096} {
			for at := time.Date(year, 12, 31, 0, 0, 0, 0, time.UTC); at.Year() == year; at = at.Add(30 * time.Minute) {
				if _, end := at.In(loc).ZoneBounds(); !end.IsZero() && !end.After(at) {
					affected++
				}
				end, offset := stretch(loc, at.Unix())
				if end <= at.Unix() || offset != offsetAt(loc, at.Unix()) || offsetAt(loc, end-1) != offset {
					t.Fatalf("%s at %s: a stretch until %s with offset %d", name, at, time.Unix(end, 0).UTC(), offset)
				}
			}
		}
	}
	t.Logf("ZoneBounds is wrong at %d instants", affected)
}

// TestGuardFindsAChange: within the day that the guard searches, a change of the offset ends
// the stretch.
func TestGuardFindsAChange(t *testing.T) {
	t.Parallel()
	loc, err := readZone(processZones.files()["Europe/Berlin"])
	if err != nil {
		t.Fatal(err)
	}
	change := time.Date(2028, 3, 26, 1, 0, 0, 0, time.UTC).Unix()
	for _, from := range []int64{change - 3600, change - 1} {
		if end := sameOffsetUntil(loc, from); end != change {
			t.Errorf("from %s until %s", time.Unix(from, 0).UTC(), time.Unix(end, 0).UTC())
		}
	}
	if end, want := sameOffsetUntil(loc, change), time.Date(2028, 3, 27, 0, 0, 0, 0, time.UTC).Unix(); end != want {
		t.Errorf("after the change until %s", time.Unix(end, 0).UTC())
	}
}

// TestDates compares the date arithmetic with Go's for every day, and a little beyond.
func TestDates(t *testing.T) {
	t.Parallel()
	for day := int64(-1000); day < MaxMs/dayMs+1000; day++ {
		want := time.Unix(day*86_400, 0).UTC()
		y, m, d := civil(day)
		if y != want.Year() || m != int(want.Month()) || d != want.Day() || weekday(day) != int(want.Weekday()) || dayOfDate(y, m, d) != day {
			t.Fatalf("day %d is %d-%d-%d, weekday %d, want %s", day, y, m, d, weekday(day), want)
		}
		if next := want.AddDate(0, 1, -want.Day()); daysIn(y, m) != next.Day() {
			t.Fatalf("%d-%d has %d days, want %d", y, m, daysIn(y, m), next.Day())
		}
	}
}

// TestPackageIsPure: nothing here can read the host's clock, files or network.
func TestPackageIsPure(t *testing.T) {
	t.Parallel()
	allowed := []string{"archive/zip", "bytes", "cmp", "compress/gzip", "embed", "fmt", "io", "iter", "maps", "math/bits", "regexp", "slices", "sort", "strconv", "strings", "sync", "time", "unicode", "unicode/utf8"}
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, source, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			if !slices.Contains(allowed, strings.Trim(i.Path.Value, `"`)) {
				t.Errorf("%s imports %s", name, i.Path.Value)
			}
		}
		for _, impure := range []string{"time.Now", "time.Since", "time.Until", "time.LoadLocation(", "time.Local", "go func"} {
			if strings.Contains(string(source), impure) {
				t.Errorf("%s uses %s", name, impure)
			}
		}
	}
}
