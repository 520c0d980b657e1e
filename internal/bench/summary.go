package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
)

// Spread is the median and the range of a figure over several runs.
type Spread struct {
	Name     string  `json:"name"`
	Unit     string  `json:"unit"`
	Median   float64 `json:"median"`
	Least    float64 `json:"least"`
	Greatest float64 `json:"greatest"`
}

// Spreads returns the spread of all figures and of all Percentiles in the results of several
// runs of one workload.
func Spreads(results []*Result) []Spread {
	values := map[[2]string][]float64{}
	var names [][2]string
	take := func(name, unit string, v float64) {
		key := [2]string{name, unit}
		if values[key] == nil {
			names = append(names, key)
		}
		values[key] = append(values[key], v)
	}
	for _, r := range results {
		for _, f := range r.Figures {
			take(f.Name, f.Unit, f.Value)
		}
		for _, l := range r.Latencies {
			for _, q := range Percentiles {
				take(l.Name+" "+PercentileName(q), "ms", l.At(q))
			}
		}
	}
	var out []Spread
	for _, key := range names {
		v := values[key]
		slices.Sort(v)
		out = append(out, Spread{Name: key[0], Unit: key[1], Median: median(v), Least: v[0], Greatest: v[len(v)-1]})
	}
	return out
}

// median returns the median of sorted values.
func median(v []float64) float64 {
	if n := len(v); n%2 == 0 {
		return (v[n/2-1] + v[n/2]) / 2
	}
	return v[len(v)/2]
}

// Summary writes the median, least and greatest of each figure of several runs.
func Summary(w io.Writer, results []*Result) error {
	if len(results) < 2 {
		return nil
	}
	p := &printer{w: w}
	p.f("%-62s %12s %12s %12s\n", fmt.Sprintf("of %d runs", len(results)), "median", "least", "greatest")
	for _, s := range Spreads(results) {
		name := s.Name
		if s.Unit != "" {
			name += " (" + s.Unit + ")"
		}
		p.f("  %-60s %12s %12s %12s\n", name, Number(s.Median), Number(s.Least), Number(s.Greatest))
	}
	return p.err
}

// JSON writes the results as one document, with a summary if there are several results of one
// workload.
func JSON(w io.Writer, results []*Result) error {
	doc := map[string]any{"results": results}
	if len(results) > 1 && results[0].Workload == results[len(results)-1].Workload {
		doc["summary"] = Spreads(results)
	}
	return writeJSON(w, doc)
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
