package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/testsize"
)

// TestCurves measures two points of a curve at a tiny scale and writes the results.
func TestCurves(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "it starts eight nodes, one after another")
	c := config(t)
	c.Warmup, c.Seconds = 20, 1000 // multiplied by the scale
	g := &Growth{Config: c, Profiles: []app.Profile{app.ProfileFast}, Scale: 0.001, Only: []string{"pending"}, MaxPending: 100_000}
	r, err := g.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var md, doc bytes.Buffer
	if err := errors.Join(r.Markdown(&md), r.JSON(&doc)); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + md.String())
	if len(r.Curves) != 1 || len(r.Results) != 2 || len(r.Errors) != 0 {
		t.Fatalf("got %d curves of %d runs with errors %v, want 1 of 2 without errors", len(r.Curves), len(r.Results), r.Errors)
	}
	pending := r.Curves[0].Series[0]
	if len(pending.X) != 2 || pending.X[0] != 10 || pending.X[1] != 100 || len(pending.Costs) != 9 {
		t.Errorf("got series %+v, want the points 10 and 100 and 9 costs", pending)
	}
	for _, cost := range pending.Costs {
		if len(cost.Values) != 2 || len(cost.Exponents) != 1 {
			t.Errorf("got cost %+v, want 2 values and 1 exponent", cost)
			continue
		}
		// These few timers may use less CPU than the system can measure. Then there is no value.
		if few := strings.Contains(cost.Name, "CPU a timer"); !few && (cost.Values[0] == nil || cost.Values[1] == nil) {
			t.Errorf("got cost %+v, want a value at both points", cost)
		}
	}
	for _, want := range []string{"| fast: by timers pending | 10 | 100 | power", "| disk a pending timer, B |"} {
		if !strings.Contains(md.String(), want) {
			t.Errorf("got\n%s\nwant %q in it", md.String(), want)
		}
	}
	if !json.Valid(doc.Bytes()) {
		t.Errorf("got JSON %s, want it valid", doc.String())
	}
}

// TestServices: timers spread over several services, each of which fired a timer before.
func TestServices(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"steady", "callback", "burst"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name != "callback" { // which has the most
				testsize.Long(t, "three loads")
			}
			r := run(t, name, func(c *Config) {
				c.Services, c.Rate, c.Seconds, c.Count = 7, 100, 1, 100
				if name == "callback" {
					c.Idle, c.Callback = true, CallbackNATS
				}
			})
			if r.Verified.Found != 100 || r.Settings["services"] != 7 {
				t.Errorf("got %+v, want 100 timers of 7 services", r)
			}
			if name == "callback" && (figure(t, r, beginFigure) <= 0 || figure(t, r, "memory, "+idleAfter) <= 0 || figure(t, r, "heap of the node, "+idleAfter) <= 0) {
				t.Errorf("got figures %+v, want the cost of beginning a service, and the memory afterwards", r.Figures)
			}
		})
	}
}

func TestGrowthBadSettings(t *testing.T) {
	t.Parallel()
	profiles := []app.Profile{app.ProfileFast}
	for name, g := range map[string]*Growth{
		"scale 0": {Profiles: profiles}, "scale 2": {Profiles: profiles, Scale: 2}, "curve": {Profiles: profiles, Scale: 1, Only: []string{"nothing"}},
		"profile": {Profiles: []app.Profile{"slow"}, Scale: 1}, "pending": {Profiles: profiles, Scale: 1, MaxPending: 1 << 40},
		"services": {Profiles: profiles, Scale: 1, Config: Config{Services: -1}, Only: []string{"shards"}},
	} {
		if _, err := g.Run(t.Context()); err == nil {
			t.Errorf("Growth with an invalid value of %s: got no error, want one", name)
		}
	}
	for name, c := range map[string]Config{
		"services": {Services: maxServices + 1}, "beside": {Beside: -1}, "idle": {Idle: true, InProcess: true},
		"in-process and a URL": {InProcess: true, NATSURL: "nats://127.0.0.1:1"}, "profile of a node elsewhere": {CPUProfile: "cpu"},
		"system": {System: "moon"}, "peer on an embedded server": {System: NATSSchedules, On: OnEmbedded}, "peer with a callback": {System: NATSSchedules, Callback: CallbackNATS},
		"peer by the client": {System: NATSSchedules, Via: ViaClient}, "callers": {Callers: -1},
	} {
		if _, err := Run(t.Context(), steadyWorkload{}, c, 1); err == nil {
			t.Errorf("Run with an invalid value of %s: got no error, want one", name)
		}
	}
}

// TestGrowthInterrupted: an interrupted run returns every curve, without results.
func TestGrowthInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	g := &Growth{Config: config(t), Profiles: []app.Profile{app.ProfileSafe, app.ProfileFast}, Scale: 1}
	r, err := g.Run(ctx)
	if !errors.Is(err, context.Canceled) || len(r.Results) != 0 || len(r.Curves) != len(CurveNames()) {
		t.Fatalf("interrupted Run: got %+v (%v), want every curve, no results and context.Canceled", r, err)
	}
	var b bytes.Buffer
	if err := errors.Join(r.Markdown(&b), r.JSON(&b)); err != nil {
		t.Error(err)
	}
}

// TestGrowthFailed: a point that fails is an error and does not affect the others.
func TestGrowthFailed(t *testing.T) {
	t.Parallel()
	c := config(t)
	c.Child = nil // the node cannot be started
	g := &Growth{Config: c, Profiles: []app.Profile{app.ProfileFast}, Scale: 0.001, Only: []string{"payload"}}
	r, err := g.Run(t.Context())
	if err == nil || len(r.Errors) != 5 {
		t.Errorf("Run without a child process: got errors %v (%v), want one for each of 5 points", r.Errors, err)
	}
}

// TestGrowthPowers: only a cost that grows too steeply gets a remark.
func TestGrowthPowers(t *testing.T) {
	t.Parallel()
	values := func(v ...float64) []*float64 {
		var out []*float64
		for i := range v {
			out = append(out, &v[i])
			if v[i] < 0 {
				out[i] = nil
			}
		}
		return out
	}
	for _, tc := range []struct {
		name    string
		cost    GrowthCost
		remarks int
		overall float64
	}{
		{"flat", GrowthCost{Values: values(100, 140, 130)}, 0, 0.057},
		{"linear where it may", GrowthCost{Most: 1, Values: values(1, 10, 100)}, 0, 1},
		{"linear where it may not", GrowthCost{Values: values(1, 10, 100)}, 3, 1},
		{"square", GrowthCost{Most: 1, Values: values(1, 10, 1000)}, 2, 1.5},
		{"little by little", GrowthCost{Values: values(100, 130, 169)}, 1, 0.114},
		{"below what matters", GrowthCost{Values: values(0.001, 0.1, 1), floor: 2}, 0, 1.5},
		{"little above what matters", GrowthCost{Values: values(0.001, 0.1, 2.1), floor: 2}, 0, 1.661},
		{"a gap", GrowthCost{Values: values(1, -1, 100)}, 1, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := &GrowthResult{Curves: []GrowthCurve{{Series: []GrowthSeries{{X: []float64{10, 100, 1000}, Costs: []GrowthCost{tc.cost}}}}}}
			r.grow()
			c := r.Curves[0].Series[0].Costs[0]
			if len(r.Remarks) != tc.remarks {
				t.Errorf("got remarks %v, want %d", r.Remarks, tc.remarks)
			}
			if c.Overall == nil {
				t.Errorf("got no overall exponent, want %v", tc.overall)
			} else if got := *c.Overall; got < tc.overall-0.001 || got > tc.overall+0.001 {
				t.Errorf("got overall exponent %v, want %v", got, tc.overall)
			}
		})
	}
	r := &GrowthResult{Curves: []GrowthCurve{{Series: []GrowthSeries{{X: []float64{1, 2}, Costs: []GrowthCost{
		{Name: "none", Values: values(-1, -1)}, {Name: "some", Values: values(0, 5)},
	}}}}}}
	r.grow()
	if costs := r.Curves[0].Series[0].Costs; len(costs) != 1 || costs[0].Name != "some" || costs[0].Exponents[0] != nil || len(r.Remarks) != 0 {
		t.Errorf("got costs %+v and remarks %v, want only the cost \"some\", without exponents and remarks", costs, r.Remarks)
	}
}
