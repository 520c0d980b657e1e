package sim

import (
	"os"
	"testing"

	"github.com/belfryio/belfry/internal/testsize"
)

// feedSeeds is the number of seeds without BELFRY_SIM_SEEDS, and shortFeedSeeds that with -short or the race
// detector; see shortSeeds.
const feedSeeds, shortFeedSeeds = 100, 10

// TestFeeds simulates a feed that rests and wakes. BELFRY_SIM_SEEDS is the number of seeds.
func TestFeeds(t *testing.T) {
	t.Parallel()
	var n uint64
	if s := os.Getenv("BELFRY_SIM_SEEDS"); s != "" && s != "later" {
		n = number(t, s)
	} else {
		n = uint64(testsize.Choose(t, "seeds", shortFeedSeeds, feedSeeds, feedSeeds))
	}
	var sum FeedStats
	for seed := uint64(1); seed <= n; seed++ {
		violation, st := RunFeed(seed)
		if violation != "" {
			t.Fatalf("seed %d (feeds): %s: %s", seed, PropResting, violation)
		}
		sum.Published, sum.Delivered, sum.Rests, sum.Wakes = sum.Published+st.Published, sum.Delivered+st.Delivered, sum.Rests+st.Rests, sum.Wakes+st.Wakes
		sum.Crashes, sum.Behind = sum.Crashes+st.Crashes, sum.Behind+st.Behind
	}
	t.Logf("%d seeds: %+v", n, sum)
	if sum.Rests == 0 || sum.Wakes == 0 || sum.Crashes == 0 || sum.Behind == 0 {
		t.Errorf("some cases never happened in the runs: %+v", sum)
	}
}

// TestFeedRunsRepeat: two runs of a seed are the same.
func TestFeedRunsRepeat(t *testing.T) {
	t.Parallel()
	for seed := uint64(1); seed < 20; seed++ {
		_, a := RunFeed(seed)
		if _, b := RunFeed(seed); a != b {
			t.Errorf("seed %d: %+v and %+v", seed, a, b)
		}
	}
}
