package report

import (
	"fmt"
	"image/color"
	"math"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/belfryio/belfry/internal/bench"
	"github.com/belfryio/belfry/schemas"
)

// lineColours can be distinguished with colour blindness, too (Okabe and Ito).
var lineColours = []color.Color{
	color.RGBA{R: 0, G: 114, B: 178, A: 255}, color.RGBA{R: 213, G: 94, B: 0, A: 255},
	color.RGBA{R: 0, G: 158, B: 115, A: 255}, color.RGBA{R: 204, G: 121, B: 167, A: 255},
}

// CheckPlot returns an error if Plot cannot write a file of that name.
func CheckPlot(path string) error {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".svg", ".png":
		return nil
	}
	return schemas.Errorf(schemas.CodeConfig, "plot file %q must end in .svg or .png", path)
}

// Plot draws the curves of the results into one file, .svg or .png.
func Plot(path string, results []*bench.Result) error {
	if err := CheckPlot(path); err != nil {
		return err
	}
	if len(results) == 0 {
		return nil
	}
	p, err := draw(results)
	if err != nil {
		return err
	}
	if err := p.Save(plotWidth, plotHeight, path); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}

const plotWidth, plotHeight = 22 * vg.Centimeter, 13 * vg.Centimeter

// draw puts the curves of runs of one workload into one plot.
func draw(results []*bench.Result) (*plot.Plot, error) {
	first := results[0].Curves
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = first.Title, first.X, first.Y
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	drawn := false
	for n, r := range results {
		for i, c := range r.Curves.Lines {
			xys := make(plotter.XYs, 0, len(c.X))
			for k := range c.X {
				if first.LogY && c.Y[k] <= 0 {
					continue
				}
				xys = append(xys, plotter.XY{X: c.X[k], Y: c.Y[k]})
			}
			if len(xys) < 2 {
				continue
			}
			line, err := plotter.NewLine(xys)
			if err != nil {
				return nil, fmt.Errorf("plot %s: %w", c.Name, err)
			}
			line.Color, line.Width = lineColours[i%len(lineColours)], vg.Points(1.5)
			line.Dashes = []vg.Length{vg.Points(float64(4 * n)), vg.Points(float64(2 * n))}
			if n == 0 {
				line.Dashes = nil
			}
			p.Add(line)
			drawn = true
			name := c.Name
			if len(results) > 1 {
				name = fmt.Sprintf("%s (run %d)", name, n+1)
			}
			p.Legend.Add(name, line)
		}
	}
	if first.LogY && drawn {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	if first.X == bench.AxisPercentiles && drawn {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, ninesTicks{}
	}
	return p, nil
}

// ninesTicks labels an axis of percentiles, which is drawn as 1/(1-q).
type ninesTicks struct{}

func (ninesTicks) Ticks(lo, hi float64) []plot.Tick {
	var out []plot.Tick
	for q := 1.0; q <= hi*1.01; q *= 10 {
		for _, x := range []float64{q, 2 * q} {
			if x >= lo && x <= hi*1.01 && (x == q || q == 1) {
				out = append(out, plot.Tick{Value: x, Label: fmt.Sprintf("p%.6g", math.Round((1-1/x)*1e7)/1e5)})
			}
		}
	}
	return out
}
