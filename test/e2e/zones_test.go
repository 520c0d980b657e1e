//go:build unix

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/internal/zonetest"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/proc"
)

// upgrade is a program whose zone data can be replaced, and the environments of the older and
// the newer version. In the newer one Lagos is two hours ahead of the older one's time, and
// Bogota two hours behind. None of these zones has daylight saving.
type upgrade struct {
	bin        string
	older, new []string
}

const newerZones = "2099a"

func newUpgrade(t *testing.T) upgrade {
	path := filepath.Join(t.TempDir(), "zoneinfo.zip")
	archive := zonetest.Archive(t, map[string]string{"Africa/Lagos": "Africa/Nairobi", "America/Bogota": "America/Phoenix"})
	if err := os.WriteFile(path, archive, 0o600); err != nil {
		t.Fatal(err)
	}
	return upgrade{bin: proc.Build(t, "-tags", "belfryzones"), new: []string{"BELFRY_TEST_ZONES=" + newerZones + "=" + path}}
}

// zoneLine is a line of belfry tz diff -o json: a schedule or the summary.
type zoneLine struct {
	ID, Source, TZ, Next, Local, Zones string
	NewNext                            string `json:"new_next"`
	NewLocal                           string `json:"new_local"`
	Why                                string
	Nodes                              map[string]string
	Schedules, Changed                 int
}

// diff runs belfry tz diff and returns its lines by the schedule's id, the summary by "", and
// the exit code.
func (u *upgrade) diff(t *testing.T, url string, env []string, args ...string) (map[string]zoneLine, int) {
	t.Helper()
	cmd := exec.Command(u.bin, append([]string{"tz", "diff", "--nats-url", url, "-o", "json"}, args...)...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	lines := map[string]zoneLine{}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var line zoneLine
		if err := d.Decode(&line); err != nil {
			t.Fatalf("%v in %s %s", err, out, stderr.String())
		}
		lines[line.ID] = line
	}
	if stderr.Len() > 0 {
		t.Fatalf("tz diff: %s", stderr.String())
	}
	return lines, cmd.ProcessState.ExitCode()
}

// daily is a schedule once a day at the local time of an instant, in a zone with this offset.
func daily(id, zone string, offset time.Duration, at time.Time) attrs {
	local := at.UTC().Add(offset)
	return attrs{"id": id, "timersvc": "zones", "timertz": zone, "timercron": fmt.Sprintf("%d %d %d * * *", local.Second(), local.Minute(), local.Hour())}
}

// TestUpgradeOfZoneData upgrades a cluster to other zone data, node by node, and back. Before
// that belfry tz diff of the newer version says which schedules change. Nothing fires twice
// and nothing is lost: not the run whose new instant has passed, nor those of each second.
func TestUpgradeOfZoneData(t *testing.T) {
	t.Parallel()
	u := newUpgrade(t)
	server := natstest.Run(t)
	node := func(env []string) *proc.Node {
		n := proc.New(t, proc.Options{Bin: u.bin, NATSURL: server.URL(), Config: "shards: 2\nprofile: fast\n", Env: env})
		n.Start()
		n.Ready(t.Context())
		return n
	}
	old := node(u.older)
	c := connect(t, server.URL())
	const day, shift, lagos, bogota = 24 * time.Hour, 2 * time.Hour, time.Hour, -5 * time.Hour
	soon := time.Now().Add(40 * time.Minute).Truncate(time.Second)
	first := time.Now().Add(15 * time.Second).Truncate(time.Second) // far enough ahead that the schedule is stored by then, even on a slow disk
	c.publish(structured(daily("earlier", "Africa/Lagos", lagos, soon), `{}`))
	c.publish(structured(daily("later", "America/Bogota", bogota, soon), `{}`))
	c.publish(structured(daily("fired", "America/Bogota", bogota, first), `{}`))
	c.publish(structured(attrs{"id": "each second", "timersvc": "seconds", "timertz": "Africa/Lagos", "timercron": "* * * * * *", "timermisfire": "all"}, `{}`))
	c.publish(structured(daily("unchanged", "Europe/Berlin", 0, soon.Add(12*time.Hour)), `{}`))
	// A schedule that excludes dates is planned with its calendar.
	dates := schemas.CalendarPutRequest{Name: "holidays", Dates: []string{soon.Add(day).UTC().Format(time.DateOnly)}}
	if err := c.call("calendar.put", dates, &schemas.CalendarPutReply{}); err != nil {
		t.Fatal(err)
	}
	excluded := daily("excluded", "UTC", 0, soon)
	excluded["timerexclude"] = "holidays"
	c.publish(structured(excluded, `{}`))
	next := func(id string) time.Time {
		i, err := c.info(id)
		if err != nil || i.Schedule == nil {
			return time.Time{}
		}
		return i.Schedule.Next
	}
	is := func(id string, want time.Time) {
		t.Helper()
		waittest.Until(t, id+" is planned for "+want.String(), func() bool { return next(id).Equal(want) }, func() string { return next(id).String() })
	}
	is("earlier", soon)
	is("later", soon)
	waittest.Until(t, "a run has fired", func() bool { return len(c.firedEvents("zones", 1)) == 1 })
	is("fired", first.Add(day))
	waittest.Until(t, "unchanged is added", func() bool { return !next("unchanged").IsZero() && !next("excluded").IsZero() })

	// Before the upgrade.
	if lines, code := u.diff(t, server.URL(), u.older, "-n", "3"); code != 0 || lines[""].Changed != 0 || lines[""].Schedules != 6 {
		t.Errorf("the older version: exit code %d, %+v", code, lines)
	}
	lines, code := u.diff(t, server.URL(), u.new, "-n", "3")
	if sum := lines[""]; code != 8 || sum.Zones != newerZones || sum.Changed != 3 || sum.Schedules != 6 || len(sum.Nodes) != 1 {
		t.Errorf("the newer version: exit code %d, %+v", code, sum)
	}
	for _, v := range lines[""].Nodes {
		if v != calendar.ZoneDataVersion {
			t.Errorf("a node has zone data %s", v)
		}
	}
	for id, want := range map[string][2]time.Time{"earlier": {soon, soon.Add(-shift)}, "later": {soon, soon.Add(shift)}, "fired": {first.Add(day), first.Add(day + shift)}} {
		l := lines[id]
		if l.Next != schemas.FormatTime(want[0].UnixMilli()) || l.NewNext != schemas.FormatTime(want[1].UnixMilli()) || l.Source != "/e2e" || l.Zones != calendar.ZoneDataVersion ||
			!strings.HasPrefix(l.NewLocal, l.Local) || !strings.Contains(l.Why, newerZones) {
			t.Errorf("%s: %+v", id, l)
		}
	}

	// The upgrade: a newer node joins, and the older one leaves.
	newer := node(u.new)
	old.Terminate()
	is("earlier", soon.Add(day-shift)) // its run was due, and has fired
	is("later", soon.Add(shift))
	is("fired", first.Add(day+shift))
	waittest.Until(t, "the moves are counted", func() bool { return replanned(t, newer) >= 3 }, newer.Metrics)
	if lines, code := u.diff(t, server.URL(), u.new); code != 0 || lines[""].Changed != 0 {
		t.Errorf("after the upgrade: exit code %d, %+v", code, lines)
	}

	// Back, and forward again: an older node moves nothing.
	old.Start()
	old.Ready(t.Context())
	newer.Terminate()
	c.publish(structured(attrs{"id": "marker", "timersvc": "marker", "timerafter": "3s"}, `{}`))
	c.firedEvents("marker", 1)
	again := node(u.new)
	old.Terminate()
	c.publish(structured(attrs{"id": "another marker", "timersvc": "marker", "timerafter": "3s"}, `{}`))
	c.firedEvents("marker", 2)
	is("earlier", soon.Add(day-shift))
	is("later", soon.Add(shift))
	is("fired", first.Add(day+shift))
	if n := replanned(t, again); n != 0 {
		t.Errorf("%d schedules moved again", n)
	}

	var times []time.Time
	for _, e := range c.firedEvents("zones", 0) {
		times = append(times, time.UnixMilli(e.scheduledMs).UTC())
	}
	if want := []time.Time{first.UTC(), soon.Add(-shift).UTC()}; !slices.Equal(times, want) {
		t.Errorf("fired for %v, want %v", times, want)
	}
	seconds := c.firedEvents("seconds", 0)
	for i, e := range seconds[1:] {
		if e.scheduledMs != seconds[i].scheduledMs+1000 {
			t.Errorf("event %d is for %s, after %s", i+1, schemas.FormatTime(e.scheduledMs), schemas.FormatTime(seconds[i].scheduledMs))
		}
	}
}

// replanned returns the number of schedules that a node has moved.
func replanned(t *testing.T, n *proc.Node) int {
	t.Helper()
	return int(metrictest.TextSum(t, n.Metrics(), "belfry_schedule_replanned_total"))
}
