package calendar

import (
	"archive/zip"
	"bytes"
	"compress/gzip"
	_ "embed" // for zoneInfoGzip
	"fmt"
	"io"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"
)

// ZoneDataVersion is the release of the IANA time zone database in zoneinfo/zoneinfo.zip.gz.
// Later releases compare greater as strings. Only UseZoneData changes it.
var ZoneDataVersion = "2025c"

// zoneInfoGzip is Go's zoneinfo.zip, whose files are not compressed, in 95 kB instead of
// 408 kB.
//
//go:embed zoneinfo/zoneinfo.zip.gz
var zoneInfoGzip []byte

const (
	// MinMs is the first instant that a Schedule considers, in Unix milliseconds: 1970-01-01 in
	// UTC.
	MinMs int64 = 0
	// MaxMs ends the instants that a Schedule considers, in Unix milliseconds: 2200-01-01 in
	// UTC. Zone tables cover this range; a timer is due at most 10 years ahead.
	MaxMs int64 = 7_258_118_400_000
	// maxSegments bounds a zone's table, and the walk that makes it. The longest walk today
	// takes about 1,000 steps.
	maxSegments = 5000
	// maxGapMs is the longest gap that counts as daylight saving.
	maxGapMs = 3 * hourMs
)

// segment is a stretch of real time in which a zone has one offset.
type segment struct {
	startMs, endMs int64 // Unix milliseconds; the end is exclusive
	offsetMs       int64 // local time = Unix time + offsetMs
	// seenMs is the latest end of all earlier segments, in local time. Earlier local times
	// in this segment are repetitions; if the segment starts later, a gap precedes it.
	seenMs int64
	// laterMs is the earliest start of all later segments, in local time. Later local times
	// in this segment occur again.
	laterMs int64
}

// gap returns the local times that the clock skipped just before the segment.
func (g *segment) gap() (fromMs, toMs int64, ok bool) {
	return g.seenMs, g.startMs + g.offsetMs, g.startMs+g.offsetMs > g.seenMs
}

// zone is a time zone as a list of adjacent segments from MinMs to MaxMs. Two adjacent
// segments have different offsets.
type zone struct {
	name     string
	segments []segment
}

// at returns the index of the segment that contains the instant.
func (z *zone) at(ms int64) int {
	low, high := 0, len(z.segments)-1
	for low < high {
		if mid := (low + high) / 2; z.segments[mid].endMs > ms {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low
}

// localMs returns the local time of an instant.
func (z *zone) localMs(ms int64) int64 { return ms + z.segments[z.at(ms)].offsetMs }

// firstInstant returns the first instant at which the wall clock shows the local time or a
// later one.
func (z *zone) firstInstant(localMs int64) int64 {
	for i := z.at(localMs - maxOffsetMs); i < len(z.segments); i++ {
		if g := &z.segments[i]; g.endMs+g.offsetMs > localMs {
			return max(g.startMs, localMs-g.offsetMs)
		}
	}
	return MaxMs
}

// lastInstant returns the last instant at which the wall clock shows the local time or an
// earlier one.
func (z *zone) lastInstant(localMs int64) int64 {
	for i := z.at(localMs + maxOffsetMs); i >= 0; i-- {
		if g := &z.segments[i]; g.startMs+g.offsetMs <= localMs {
			return min(g.endMs-1, localMs-g.offsetMs)
		}
	}
	return MinMs
}

// maxOffsetMs is more than the offset of any zone.
const maxOffsetMs = 30 * hourMs

// ZoneData is one release of the zone data. It is immutable and safe for concurrent use.
type ZoneData struct {
	release string
	// files indexes the archive by zone name. The embedded archive is part of the binary and a
	// test reads every file in it, so damage is a build error.
	files func() map[string]*zip.File
	// other are the files of zones that are not those of the archive; see With.
	other map[string][]byte
	// zones caches tables by name. It never holds more than the zones of the archive.
	zones sync.Map // string → *zone
	// locations caches those of Location by name, as zones does tables.
	locations sync.Map // string → *time.Location
}

// NewZoneData returns zone data from a zip file whose files are not compressed, such as Go's
// zoneinfo.zip. With nil it returns the embedded data.
func NewZoneData(release string, zoneinfo []byte) *ZoneData {
	return &ZoneData{release: release, files: sync.OnceValue(func() map[string]*zip.File { return readArchive(zoneinfo) })}
}

// With returns a release in which some zones have other data: TZif files by zone name. The zones
// must exist.
func (d *ZoneData) With(release string, zones map[string][]byte) *ZoneData {
	return &ZoneData{release: release, files: d.files, other: zones}
}

// Release returns the release of the data. Later releases compare greater as strings.
func (d *ZoneData) Release() string { return d.release }

// processZones is the zone data of schedules whose Spec names no other.
var processZones = NewZoneData(ZoneDataVersion, nil)

// ProcessZones returns the zone data of this process: the embedded data, unless UseZoneData has
// replaced it.
func ProcessZones() *ZoneData { return processZones }

// UseZoneData replaces the zone data of the process, so that tests can run as a build with
// another release would; see NewZoneData. Call it before any schedule is compiled, or while no
// other goroutine uses this package. Schedules keep the data with which they were compiled.
func UseZoneData(release string, zoneinfo []byte) {
	ZoneDataVersion, processZones = release, NewZoneData(release, zoneinfo)
}

// readArchive indexes an archive; nil for the embedded one.
func readArchive(archive []byte) map[string]*zip.File {
	var err error
	if archive == nil {
		if archive, err = unzipZones(); err != nil {
			panic(fmt.Sprintf("calendar: embedded zoneinfo.zip.gz: %v", err))
		}
	}
	r, err := zip.NewReader(bytes.NewReader(archive), int64(len(archive)))
	if err != nil {
		panic(fmt.Sprintf("calendar: zoneinfo.zip: %v", err))
	}
	files := make(map[string]*zip.File, len(r.File))
	for _, f := range r.File {
		if !strings.HasSuffix(f.Name, "/") {
			files[f.Name] = f
		}
	}
	return files
}

// unzipZones returns the embedded archive, uncompressed.
func unzipZones() ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(zoneInfoGzip))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(r)
}

// ZoneNames returns the names of all zones in the zone data of the process, sorted.
func ZoneNames() []string { return slices.Sorted(maps.Keys(processZones.files())) }

// load returns the table of a zone of the archive, or nil if there is no such zone. An error
// means that this build cannot use the zone's data.
func (d *ZoneData) load(name string) (*zone, error) {
	if z, ok := d.zones.Load(name); ok {
		return z.(*zone), nil
	}
	f, ok := d.files()[name]
	if !ok {
		return nil, nil
	}
	loc, err := d.read(f)
	if err != nil {
		return nil, err
	}
	segments, err := segmentsOf(loc)
	if err != nil {
		return nil, err
	}
	z, _ := d.zones.LoadOrStore(name, &zone{name, segments})
	return z.(*zone), nil
}

// Location returns a zone by its IANA name, or UTC, for the times that people read. Schedules do not use
// it. It needs no zone data of the host. The error says that there is no such zone.
func (d *ZoneData) Location(name string) (*time.Location, error) {
	if name == "UTC" {
		return time.UTC, nil
	}
	if loc, ok := d.locations.Load(name); ok {
		return loc.(*time.Location), nil
	}
	f, ok := d.files()[name]
	if !ok {
		return nil, fmt.Errorf("no time zone %.80q", name)
	}
	loc, err := d.read(f)
	if err != nil {
		return nil, err
	}
	kept, _ := d.locations.LoadOrStore(name, loc)
	return kept.(*time.Location), nil
}

func (d *ZoneData) read(f *zip.File) (*time.Location, error) {
	if b, ok := d.other[f.Name]; ok {
		return time.LoadLocationFromTZData(f.Name, b)
	}
	return readZone(f)
}

func readZone(f *zip.File) (*time.Location, error) {
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	return time.LoadLocationFromTZData(f.Name, data)
}

// segmentsOf walks a location from MinMs to MaxMs.
func segmentsOf(loc *time.Location) ([]segment, error) {
	var list []segment
	t := MinMs / secondMs
	for range maxSegments {
		if t == MaxMs/secondMs {
			break
		}
		end, offset := stretch(loc, t)
		end = min(end, MaxMs/secondMs)
		if n := len(list); n > 0 && list[n-1].offsetMs == offset*secondMs {
			list[n-1].endMs = end * secondMs
		} else {
			list = append(list, segment{startMs: t * secondMs, endMs: end * secondMs, offsetMs: offset * secondMs})
		}
		t = end
	}
	if t < MaxMs/secondMs {
		return nil, fmt.Errorf("more than %d changes before %s", maxSegments, formatUTC(t*secondMs))
	}
	for i := range list {
		list[i].seenMs = list[i].startMs + list[i].offsetMs
		if i > 0 {
			list[i].seenMs = max(list[i-1].seenMs, list[i-1].endMs+list[i-1].offsetMs)
		}
	}
	for i := len(list) - 1; i >= 0; i-- {
		list[i].laterMs = list[i].endMs + list[i].offsetMs
		if i < len(list)-1 {
			list[i].laterMs = min(list[i+1].laterMs, list[i+1].startMs+list[i+1].offsetMs)
		}
	}
	return list, nil
}

// stretch returns the location's offset at t, and an end after t until which the offset is
// the same. Both times are Unix seconds.
//
// ZoneBounds of Go 1.26 may return an end that is not after t: on 31 December of every leap
// year after the zone's last recorded change, which for most zones in zoneinfo.zip is before
// 2010 (golang/go#81583). In that case stretch searches the rest of the day for a change.
// Without this guard a walk would not advance.
func stretch(loc *time.Location, t int64) (end, offsetSeconds int64) {
	_, bound := time.Unix(t, 0).In(loc).ZoneBounds()
	switch {
	case bound.IsZero():
		end = MaxMs / secondMs
	case bound.Unix() > t:
		end = bound.Unix()
	default:
		end = sameOffsetUntil(loc, t)
	}
	return end, offsetAt(loc, t)
}

// sameOffsetUntil returns the first change of the offset after t, or the next midnight in UTC
// if that is earlier.
func sameOffsetUntil(loc *time.Location, t int64) int64 {
	const day = dayMs / secondMs
	offset := offsetAt(loc, t)
	return t + int64(sort.Search(int(day-t%day), func(i int) bool { return offsetAt(loc, t+int64(i)) != offset }))
}

func offsetAt(loc *time.Location, t int64) int64 {
	_, offset := time.Unix(t, 0).In(loc).Zone()
	return int64(offset)
}
