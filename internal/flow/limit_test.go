package flow

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/belfryio/belfry/schemas"
)

func TestParseRate(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Rate{
		"100/1m": {100, time.Minute}, "20/1s": {20, time.Second}, "5000/24h": {5000, 24 * time.Hour}, "1/PT1H": {1, time.Hour}, "3/1h30m": {3, 90 * time.Minute},
		"5/s": {5, time.Second}, "100/m": {100, time.Minute}, "1000/h": {1000, time.Hour}, "1000/d": {1000, 24 * time.Hour},
		"1/168h": {1, MaxRatePer}, "7/P7D": {7, MaxRatePer}, "10/1.5s": {10, 1500 * time.Millisecond},
	} {
		got, err := ParseRate(text)
		if err != nil || got != want {
			t.Errorf("ParseRate(%q): got %v (%v), want %v", text, got, err, want)
		}
		if again, err := ParseRate(got.String()); err != nil || again != got {
			t.Errorf("%q is written as %q, which is read as %v (%v)", text, got, again, err)
		}
	}
	for _, text := range []string{"", "/", "100", "100/", "/1m", "100/minute", "100/1", "100/S", "100/M", "100/w", "100/ d", "100/1d", "0/s", "0/1s", "-1/1s", "1/0s", "1/-1s", "1/999ms", "1/169h", "1.5/1s", "1e3/1s", "99999999999999999999/1s", "1/1s/1s", " 1/1s", "1/P1M", strings.Repeat("9", 500) + "/1s"} {
		if r, err := ParseRate(text); err == nil || !strings.Contains(err.Error(), "rate ") || len(err.Error()) > 300 {
			t.Errorf("ParseRate(%.50q): got %v (%v), want a short error about the rate", text, r, err)
		}
	}
	for text, want := range map[string]int{"1/1s": 1, "10/1s": 2, "30/1s": 3, "20/1s": 2, "500/1s": 50, "100/1m": 2, "30/1m": 1, "1/168h": 1, "100000/1s": 10_000} {
		r, err := ParseRate(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := (Limit{Rate: r, Burst: r.DefaultBurst()}).Check(); err != nil {
			t.Errorf("the default burst of %s: %v", text, err)
		}
		if got := r.DefaultBurst(); got != want {
			t.Errorf("the default burst of %s is %d, want %d", text, got, want)
		}
	}
	if (Rate{}).String() != "" || (Rate{}).DefaultBurst() != 0 {
		t.Error("no rate has a text or a burst")
	}
}

func TestCheckLimit(t *testing.T) {
	t.Parallel()
	rate := Rate{100, time.Minute}
	for _, l := range []Limit{{Rate: rate, Burst: 1}, {Parallel: 1}, {Paused: true}, {Rate: rate, Burst: 50_000, Parallel: MaxParallel, Paused: true}, {Rate: Rate{100_000, time.Second}, Burst: 2001}, {Rate: Rate{2, time.Second}, Burst: 1}, {Rate: Rate{1, MaxRatePer}, Burst: 52}} {
		if err := l.Check(); err != nil {
			t.Errorf("%+v: %v", l, err)
		}
	}
	for word, all := range map[string][]Limit{
		"limits nothing": {{}},
		"rate":           {{Rate: Rate{0, time.Second}}, {Rate: Rate{1, 0}, Burst: 1}, {Rate: Rate{-1, time.Second}, Burst: 1}, {Rate: Rate{1, -time.Second}, Burst: 1}, {Rate: Rate{1, time.Millisecond}, Burst: 1}, {Rate: Rate{1, MaxRatePer + 1}, Burst: 1}, {Rate: Rate{100_001, time.Second}, Burst: 1}},
		"burst":          {{Rate: rate}, {Rate: rate, Burst: -1}, {Rate: rate, Burst: MaxBurst + 1}, {Parallel: 1, Burst: 1}, {Rate: Rate{500, time.Second}, Burst: 10}, {Rate: Rate{3, time.Second}, Burst: 1}, {Rate: Rate{1, MaxRatePer}, Burst: 53}, {Rate: Rate{1, MaxRatePer}, Burst: 20_000}},
		"parallel":       {{Parallel: -1}, {Parallel: MaxParallel + 1}},
	} {
		for _, l := range all {
			if err := l.Check(); err == nil || !strings.Contains(err.Error(), word) {
				t.Errorf("%+v: got error %v, want %q in it", l, err, word)
			}
		}
	}
}

func TestMatch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, key string
		want         bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"a", "ab", false}, {"*", "", true}, {"*", "abc", true}, {"a*", "a", true}, {"a*", "ab", true}, {"a*", "ba", false}, {"*a", "ba", true}, {"*a", "ab", false},
		{"a*a", "a", false}, {"a*a", "aa", true}, {"a*b*c", "aXbYc", true}, {"a*b*c", "acb", false}, {"*ab*ab", "ab", false}, {"*ab*ab", "abab", true}, {"a**b", "ab", true}, {"customer:*", "customer:42", true}, {"customer:*", "customer", false},
		{"*.example.com", "api.example.com", true}, {"*.example.com", "example.com", false}, {"ab*bc", "abc", false},
	} {
		if got := Match(c.pattern, c.key); got != c.want {
			t.Errorf("Match(%q, %q): got %v, want %v", c.pattern, c.key, got, c.want)
		}
	}
}

// FuzzMatch compares Match with a regular expression.
func FuzzMatch(f *testing.F) {
	f.Add("a*b", "aab")
	f.Add("*a*b*", "ba")
	f.Fuzz(func(t *testing.T, pattern, key string) {
		if schemas.CheckFlowPattern(pattern) != nil || schemas.CheckFlowKey(key) != nil {
			return
		}
		re := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + "$")
		if got := Match(pattern, key); got != re.MatchString(key) {
			t.Errorf("Match(%q, %q) is %v", pattern, key, got)
		}
	})
}

func TestSummary(t *testing.T) {
	t.Parallel()
	const now, sec = int64(1_000_000_000_000), int64(time.Second)
	rate := Limit{Rate: Rate{10, time.Second}, Burst: 3}
	for _, c := range []struct {
		name  string
		limit Limit
		state State
		want  Summary
	}{
		{"a new key", rate, State{}, Summary{NextNs: now}},
		{"an old gate", rate, State{Generation: 7, GateNs: now - sec}, Summary{NextNs: now}},
		{"part of the burst is left", rate, State{Generation: 7, GateNs: now + sec/10}, Summary{NextNs: now}},
		{"the burst is used", rate, State{Generation: 7, GateNs: now + 3*sec/10}, Summary{NextNs: now + 2*sec/10}},
		{"ten have reserved", rate, State{Generation: 7, GateNs: now + 3*sec/10, PlanNs: now + sec}, Summary{Waiting: 10, NextNs: now + sec, DrainedNs: now + 9*sec/10}},
		{"an old generation", rate, State{Generation: 6, GateNs: now, PlanNs: now + sec}, Summary{NextNs: now}},
		{"paused", Limit{Rate: rate.Rate, Burst: 3, Paused: true}, State{Generation: 7, PlanNs: now + sec, Leases: []Lease{{"a", 1, now + 1}}}, Summary{InFlight: 1}},
		{"leases", Limit{Parallel: 4}, State{Leases: []Lease{{"a", 2, now + sec}, {"b", 1, now + 1}, {"c", 9, now}}}, Summary{InFlight: 3, NextNs: now}},
		{"all permits in use", Limit{Parallel: 2}, State{TookNs: sec, Leases: []Lease{{"a", 2, now + sec}}}, Summary{InFlight: 2, NextNs: now + sec/2}},
		{"all permits in use, four wait", Limit{Parallel: 2}, State{Generation: 7, TookNs: sec, PlanNs: now + 2*sec, Leases: []Lease{{"a", 2, now + sec}}}, Summary{InFlight: 2, Waiting: 4, NextNs: now + 2*sec, DrainedNs: now + 3*sec/2}},
	} {
		if got := c.state.Summary(c.limit, 7, now); got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		}
	}
}
