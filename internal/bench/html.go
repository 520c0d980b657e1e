package bench

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
)

//go:embed report.html
var reportText string

var report = template.Must(template.New("report").Funcs(template.FuncMap{
	"number": number, "percentile": percentileName,
	"at":      func(l *Latency, q float64) string { return fmt.Sprintf("%.3f", l.At(q)) },
	"reasons": func(v Verified) string { return v.reasons() },
	"sound":   func(v Verified) bool { return v.err() == nil },
}).Parse(reportText))

// section is one workload of a report, with its runs.
type section struct {
	Name     string
	Settings []string
	Runs     []*Result
	Spreads  []Spread
	Plot     template.HTML
}

// HTML writes the results as one page that needs nothing from elsewhere.
func HTML(w io.Writer, results []*Result) error { return writeReport(w, results, nil) }

func writeReport(w io.Writer, results []*Result, table *TableResult) error {
	var sections []*section
	for from := 0; from < len(results); {
		to := from + 1
		for to < len(results) && results[to].name() == results[from].name() && results[to].Settings["profile"] == results[from].Settings["profile"] {
			to++
		}
		s, err := newSection(results[from:to])
		if err != nil {
			return err
		}
		sections = append(sections, s)
		from = to
	}
	data := map[string]any{"Sections": sections, "Percentiles": percentiles, "Table": table}
	if len(results) > 0 {
		data["Machine"], data["At"] = results[0].Machine, results[0].At.Format("2006-01-02 15:04 MST")
	}
	return report.Execute(w, data)
}

func newSection(runs []*Result) (*section, error) {
	s := &section{Name: runs[0].name(), Runs: runs}
	for k, v := range runs[0].Settings {
		s.Settings = append(s.Settings, fmt.Sprintf("%s=%v", k, v))
	}
	slices.Sort(s.Settings)
	if len(runs) > 1 {
		s.Spreads = spreads(runs)
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

// inline is a picture as a part of a page: the XML declaration before it has no
// place there. What is in it is our own text, escaped by who drew it.
func inline(svg []byte) template.HTML {
	if i := bytes.Index(svg, []byte("<svg")); i >= 0 {
		return template.HTML(svg[i:])
	}
	return ""
}
