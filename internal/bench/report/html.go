// Package report writes the results of package bench as pictures (SVG, PNG) and as HTML
// pages that need no other file. It is a separate package because it contains a plot library and
// its fonts, which the program belfry must not contain.
package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"

	"github.com/belfryio/belfry/internal/bench"
)

//go:embed report.html
var reportText string

var reportPage = template.Must(template.New("report").Funcs(template.FuncMap{
	"number": bench.Number, "percentile": bench.PercentileName,
	"at":      func(l *bench.Latency, q float64) string { return fmt.Sprintf("%.3f", l.At(q)) },
	"reasons": func(v bench.Verified) string { return v.Reasons() },
	"sound":   func(v bench.Verified) bool { return v.Err() == nil },
}).Parse(reportText))

// section is the part of a page for one workload.
type section struct {
	Name     string
	Settings []string
	Runs     []*bench.Result
	Spreads  []bench.Spread
	Plot     template.HTML
}

// HTML writes the results as one page.
func HTML(w io.Writer, results []*bench.Result) error { return writeReport(w, results, nil) }

// Table writes a table and its runs as one page.
func Table(w io.Writer, t *bench.TableResult) error { return writeReport(w, t.Results, t) }

func writeReport(w io.Writer, results []*bench.Result, table *bench.TableResult) error {
	var sections []*section
	for from := 0; from < len(results); {
		to := from + 1
		for to < len(results) && results[to].Label() == results[from].Label() && results[to].Settings["profile"] == results[from].Settings["profile"] {
			to++
		}
		s, err := newSection(results[from:to])
		if err != nil {
			return err
		}
		sections = append(sections, s)
		from = to
	}
	data := map[string]any{"Sections": sections, "Percentiles": bench.Percentiles, "Table": table}
	if len(results) > 0 {
		data["Machine"], data["At"] = results[0].Machine, results[0].At.Format("2006-01-02 15:04 MST")
	}
	return reportPage.Execute(w, data)
}

func newSection(runs []*bench.Result) (*section, error) {
	s := &section{Name: runs[0].Label(), Runs: runs}
	for k, v := range runs[0].Settings {
		s.Settings = append(s.Settings, fmt.Sprintf("%s=%v", k, v))
	}
	slices.Sort(s.Settings)
	if len(runs) > 1 {
		s.Spreads = bench.Spreads(runs)
	}
	if len(runs[0].Curves.Lines) == 0 {
		return s, nil
	}
	p, err := draw(runs)
	if err != nil {
		return nil, err
	}
	to, err := p.WriterTo(plotWidth, plotHeight, "svg")
	if err != nil {
		return nil, fmt.Errorf("plot: %w", err)
	}
	var b bytes.Buffer
	if _, err := to.WriteTo(&b); err != nil {
		return nil, fmt.Errorf("plot: %w", err)
	}
	s.Plot = inline(b.Bytes())
	return s, nil
}

// inline removes the XML declaration of a picture, so that it can be part of a page.
// The plot library has escaped the texts in it.
func inline(svg []byte) template.HTML {
	if i := bytes.Index(svg, []byte("<svg")); i >= 0 {
		return template.HTML(svg[i:])
	}
	return ""
}
