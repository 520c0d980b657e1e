package sim

import (
	"bufio"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/belfryio/belfry/internal/testsize"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// defaultSeeds is the number of seeds without BELFRY_SIM_SEEDS, allSeeds that with BELFRY_TESTS=all.
const defaultSeeds, allSeeds = 60, 300

// newerSeeds is the number of seeds of TestNewerRecords with BELFRY_TESTS=all, damageSeeds of TestDamagedRecords,
// returnedSeeds of TestReturnedTimers, nearSeeds of TestNearTimers, flowSeeds of TestFlow, quotaSeeds of TestQuotas. The default is a fifth of it.
const (
	newerSeeds    = 120
	damageSeeds   = 150
	returnedSeeds = 150
	nearSeeds     = 150
	flowSeeds     = 150
	quotaSeeds    = 60
)

// shortSeeds is the number of seeds of each test with -short and under the race detector, which makes
// a run many times slower, while only one goroutine of a simulation runs at a time.
const shortSeeds = 10

// ofOtherTests lists the Stats that stay 0 in TestSeeds.
var ofOtherTests = map[string]bool{"Newer": true, "Held": true, "DamagedRecords": true, "Repaired": true, "Returned": true, "Removed": true, "AddedAgain": true, "Deferred": true, "Near": true, "CountedQuotas": true}

// withSchedules reports whether seeds have schedules: unless BELFRY_SIM_SCHEDULES is off.
func withSchedules() bool { return os.Getenv("BELFRY_SIM_SCHEDULES") != "off" }

// TestSeeds runs the kept seeds and then many others: BELFRY_SIM_SEEDS of them, starting at
// BELFRY_SIM_FIRST. With BELFRY_SIM_SEED it runs this one seed, and logs every action.
// BELFRY_SIM_SCHEDULES=off leaves the schedules out.
func TestSeeds(t *testing.T) {
	t.Parallel()
	if one := os.Getenv("BELFRY_SIM_SEED"); one != "" {
		runOne(t, Config{Seed: number(t, one), Schedules: withSchedules()})
		return
	}
	// One by one counts the seeds until the first failure, so it leaves out the kept seeds.
	oneByOne := os.Getenv("BELFRY_SIM_ONE_BY_ONE") != ""
	var seeds []Config
	if !oneByOne && !testing.Short() && !testsize.Race {
		// A seed was kept with the history that it had, which schedules change.
		for _, s := range kept(t) {
			seeds = append(seeds, Config{Seed: s}, Config{Seed: s, Schedules: true})
		}
	}
	first, n := uint64(1), uint64(0)
	switch s := os.Getenv("BELFRY_SIM_SEEDS"); s {
	case "later":
		t.Skip("BELFRY_SIM_SEEDS=later: a later step runs this test with more seeds")
	case "":
		n = uint64(testsize.Choose(t, "seeds", shortSeeds, defaultSeeds, allSeeds))
	default:
		n = number(t, s)
	}
	if s := os.Getenv("BELFRY_SIM_FIRST"); s != "" {
		first = number(t, s)
	}
	for s := first; s < first+n; s++ {
		seeds = append(seeds, Config{Seed: s, Schedules: withSchedules()})
	}
	start := time.Now()
	var next atomic.Int64
	var mu sync.Mutex
	var sum Stats
	failed := 0
	var wg sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	if oneByOne {
		workers = 1
	}
	for range workers {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(seeds) || oneByOne && failed > 0 {
					return
				}
				r := Run(seeds[i])
				mu.Lock()
				sum.add(r.Stats)
				if len(r.Violations) > 0 {
					failed++
					if failed <= 20 {
						report(t, r)
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if failed > 0 {
		t.Errorf("%d of %d seeds failed", failed, len(seeds))
	}
	t.Logf("%d seeds in %s: %+v", len(seeds), time.Since(start).Round(time.Millisecond), sum)
	if n < allSeeds || oneByOne {
		return
	}
	// A fault or an operation that never happens is not tested.
	all := reflect.ValueOf(sum)
	for i := range all.NumField() {
		if name := all.Type().Field(i).Name; all.Field(i).Int() == 0 && !ofOtherTests[name] {
			t.Errorf("%s never happened", all.Type().Field(i).Name)
		}
	}
}

func report(t *testing.T, r Report) {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d (%s)\n", r.Seed, r.Shape)
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "\t%s\n", v)
	}
	off := ""
	if t.Name() == "TestSeeds" && !r.Schedules {
		off = "BELFRY_SIM_SCHEDULES=off "
	}
	fmt.Fprintf(&b, "\trepeat with: %sBELFRY_SIM_SEED=%d go test -v -run %s ./internal/sim", off, r.Seed, t.Name())
	if t.Name() == "TestSeeds" {
		fmt.Fprintf(&b, "\n\tkeep with:   echo '%d # why' >> internal/sim/testdata/seeds", r.Seed)
	}
	t.Error(b.String())
}

// TestNewerRecords runs seeds with records of a newer format, half of them with node
// crashes and other faults. BELFRY_SIM_SEEDS says how many.
func TestNewerRecords(t *testing.T) {
	t.Parallel()
	sum, all := runSeeds(t, newerSeeds, Config{Newer: true})
	if all && (sum.Newer == 0 || sum.Held == 0) {
		t.Errorf("records of a newer format: %d written, %d without a node that reads them; both must happen", sum.Newer, sum.Held)
	}
}

// TestDamagedRecords runs seeds in which records are damaged in the store.
// BELFRY_SIM_SEEDS says how many.
func TestDamagedRecords(t *testing.T) {
	t.Parallel()
	sum, all := runSeeds(t, damageSeeds, Config{Damage: true})
	if all && (sum.DamagedRecords == 0 || sum.Repaired == 0) {
		t.Errorf("%d records were damaged and %d repaired; both must happen", sum.DamagedRecords, sum.Repaired)
	}
}

// TestReturnedTimers runs seeds in which killed servers bring revisions of ended timers back. BELFRY_SIM_SEEDS says how many.
func TestReturnedTimers(t *testing.T) {
	t.Parallel()
	sum, all := runSeeds(t, returnedSeeds, Config{Returned: true})
	if all && (sum.Returned == 0 || sum.Removed == 0 || sum.AddedAgain == 0) {
		t.Errorf("%d revisions returned, %d were removed, and %d timers were added again; all must happen", sum.Returned, sum.Removed, sum.AddedAgain)
	}
}

// TestNearTimers runs seeds in which owners keep timers that are due soon in memory. BELFRY_SIM_SEEDS says how many.
func TestNearTimers(t *testing.T) {
	t.Parallel()
	sum, all := runSeeds(t, nearSeeds, Config{Near: true, Schedules: withSchedules()})
	if all && sum.Near == 0 {
		t.Error("no timer was loaded from memory")
	}
}

// TestFlow runs seeds in which each service has a limit. BELFRY_SIM_SEEDS says how many.
func TestFlow(t *testing.T) {
	t.Parallel()
	sum, all := runSeeds(t, flowSeeds, Config{Flow: true, Schedules: withSchedules()})
	if all && sum.Deferred == 0 {
		t.Error("no event was deferred")
	}
}

// TestQuotas runs seeds in which pending timers of services are limited, with limits that change.
// BELFRY_SIM_SEEDS says how many.
func TestQuotas(t *testing.T) {
	t.Parallel()
	sum, all := runSeeds(t, quotaSeeds, Config{Quotas: true, Schedules: withSchedules()})
	if all && sum.CountedQuotas == 0 {
		t.Error("the numbers of no shard were checked")
	}
}

// runSeeds runs n seeds with a configuration, or as many as BELFRY_SIM_SEEDS says, one after
// the other. It returns false if those were fewer than n, or BELFRY_SIM_SEED names one.
func runSeeds(t *testing.T, n uint64, cfg Config) (sum Stats, all bool) {
	t.Helper()
	if one := os.Getenv("BELFRY_SIM_SEED"); one != "" {
		cfg.Seed = number(t, one)
		runOne(t, cfg)
		return sum, false
	}
	want := n
	if s := os.Getenv("BELFRY_SIM_SEEDS"); s != "" && s != "later" {
		n = number(t, s)
	} else {
		n = uint64(testsize.Choose(t, "seeds", min(shortSeeds, int(n)), int(n+4)/5, int(n)))
	}
	failed := 0
	for cfg.Seed = 1; cfg.Seed <= n; cfg.Seed++ {
		r := Run(cfg)
		sum.add(r.Stats)
		if len(r.Violations) == 0 {
			continue
		}
		report(t, r)
		if failed++; failed == 20 || os.Getenv("BELFRY_SIM_ONE_BY_ONE") != "" {
			return sum, false
		}
	}
	t.Logf("%d seeds: %+v", n, sum)
	return sum, n >= want
}

func runOne(t *testing.T, cfg Config) {
	t.Helper()
	var b strings.Builder
	cfg.Plant = Plant(os.Getenv("BELFRY_SIM_PLANT"))
	if testing.Verbose() {
		cfg.Trace = &b
	}
	r := Run(cfg)
	t.Logf("%s%s\n%+v", b.String(), r.Shape, r.Stats)
	if len(r.Violations) > 0 {
		report(t, r)
	}
}

func number(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// kept reads testdata/seeds.
func kept(t *testing.T) (seeds []uint64) {
	t.Helper()
	f, err := os.Open("testdata/seeds")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if text = strings.TrimSpace(text); text != "" {
			seeds = append(seeds, number(t, text))
		}
	}
	return seeds
}

// TestRepeats: two runs of a seed are the same.
func TestRepeats(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed <= 5; seed++ {
		var a, b strings.Builder
		Run(Config{Seed: seed, Schedules: true, Trace: &a})
		Run(Config{Seed: seed, Schedules: true, Trace: &b})
		if a.String() != b.String() {
			x, y := strings.Split(a.String(), "\n"), strings.Split(b.String(), "\n")
			for i := range min(len(x), len(y)) {
				if x[i] != y[i] {
					t.Fatalf("seed %d differs at line %d:\n%s\n%s", seed, i, x[i], y[i])
				}
			}
			t.Fatalf("seed %d: %d lines, then %d", seed, len(x), len(y))
		}
	}
}

// TestEras: each era but the first has a change of its zone's offset.
func TestEras(t *testing.T) {
	t.Parallel()
	for _, e := range eras[1:] {
		zone, err := time.LoadLocation(e.zone)
		if err != nil {
			t.Fatal(err)
		}
		before, after := e.change.Add(-time.Millisecond).In(zone), e.change.In(zone)
		_, was := before.Zone()
		_, is := after.Zone()
		if was == is {
			t.Errorf("%s: offset %ds at %s and after it", e.zone, was, before)
		}
		if in := [...]int{before.Hour(), after.Hour(), before.Add(time.Hour).UTC().Add(time.Duration(was) * time.Second).Hour()}; in[0] != e.hour && in[1] != e.hour && in[2] != e.hour {
			t.Errorf("%s: the hour is %v around %s; want %d", e.zone, in, e.change, e.hour)
		}
	}
}
