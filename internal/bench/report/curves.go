package report

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"image/color"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	vgdraw "gonum.org/v1/plot/vg/draw"

	"github.com/belfryio/belfry/internal/bench"
)

const (
	panelColumns            = 2
	panelWidth, panelHeight = 12 * vg.Centimeter, 7.5 * vg.Centimeter
)

// CurvePlots writes a picture of each curve into a folder, as curve-<name>.svg.
func CurvePlots(dir string, r *bench.GrowthResult) error {
	for i := range r.Curves {
		c := &r.Curves[i]
		f, err := os.Create(filepath.Join(dir, "curve-"+c.Name+".svg"))
		if err != nil {
			return err
		}
		if err := errors.Join(drawCurve(f, c), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// drawCurve draws a panel for each cost, with a line for each series.
func drawCurve(w io.Writer, c *bench.GrowthCurve) error {
	var names []string // names of costs; a series may lack some
	of := map[string][]panelLine{}
	for _, s := range c.Series {
		for n := range s.Costs {
			cost := &s.Costs[n]
			name := cost.Name + ", " + cost.Unit
			if of[name] == nil {
				names = append(names, name)
			}
			of[name] = append(of[name], panelLine{s.Label(), s.X, cost})
		}
	}
	var rows [][]*plot.Plot
	for n, name := range names {
		p, err := panel(c, name, of[name])
		if err != nil {
			return fmt.Errorf("plot %s: %w", c.Name, err)
		}
		if n%panelColumns == 0 {
			rows = append(rows, make([]*plot.Plot, panelColumns))
		}
		rows[n/panelColumns][n%panelColumns] = p
	}
	if len(rows) == 0 { // an interrupted run: an empty picture
		rows = [][]*plot.Plot{{plot.New(), nil}}
	}
	canvas, err := vgdraw.NewFormattedCanvas(panelColumns*panelWidth, vg.Length(len(rows))*panelHeight, "svg")
	if err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	tiles := vgdraw.Tiles{Rows: len(rows), Cols: panelColumns, PadX: vg.Centimeter, PadY: vg.Centimeter / 2}
	for i, row := range plot.Align(rows, tiles, vgdraw.New(canvas)) {
		for k := range row {
			if rows[i][k] != nil {
				rows[i][k].Draw(row[k])
			}
		}
	}
	_, err = canvas.WriteTo(w)
	return err
}

type panelLine struct {
	name string
	x    []float64
	cost *bench.GrowthCost
}

// panel draws one cost on logarithmic axes, or on a linear y axis if a value is not
// positive. A grey line shows how the cost may grow from its first point.
func panel(c *bench.GrowthCurve, name string, lines []panelLine) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text = name, c.X
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	loX, hiX, loY, hiY := math.Inf(1), math.Inf(-1), math.Inf(1), math.Inf(-1)
	for i, l := range lines {
		var xys plotter.XYs
		for n, v := range l.cost.Values {
			if v != nil {
				xys = append(xys, plotter.XY{X: l.x[n], Y: *v})
				loX, hiX, loY, hiY = min(loX, l.x[n]), max(hiX, l.x[n]), min(loY, *v), max(hiY, *v)
			}
		}
		line, dots, err := plotter.NewLinePoints(xys)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = lineColours[i%len(lineColours)], vg.Points(1.5)
		dots.Color, dots.Shape = line.Color, vgdraw.CircleGlyph{}
		p.Add(line, dots)
		p.Legend.Add(l.name, line, dots)
		if xys[0].Y <= 0 || len(xys) < 2 {
			continue
		}
		end := xys[len(xys)-1].X
		may, err := plotter.NewLine(plotter.XYs{xys[0], {X: end, Y: xys[0].Y * math.Pow(end/xys[0].X, l.cost.Most)}})
		if err != nil {
			return nil, err
		}
		may.Color, may.Dashes = color.Gray{Y: 170}, []vg.Length{vg.Points(2), vg.Points(3)}
		p.Add(may)
	}
	// Room around the points, and above them for the legend.
	p.X.Min, p.X.Max = loX/1.3, hiX*1.3
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, decades{}
	if loY > 0 {
		p.Y.Min, p.Y.Max = loY/2, hiY*6
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, decades{}
	} else {
		room := max(hiY-loY, 1)
		p.Y.Min, p.Y.Max = loY-room/5, hiY+room/2
	}
	return p, nil
}

// decades puts ticks at 1, 2 and 5 times each power of ten, or only at the powers if there are
// many.
type decades struct{}

func (decades) Ticks(lo, hi float64) []plot.Tick {
	var out []plot.Tick
	steps := []float64{1, 2, 5}
	if hi/lo > 1e3 {
		steps = steps[:1]
	}
	for power := math.Floor(math.Log10(lo)); power <= math.Log10(hi); power++ {
		for _, step := range steps {
			if v := step * math.Pow(10, power); v >= lo && v <= hi {
				out = append(out, plot.Tick{Value: v, Label: strings.ReplaceAll(bench.Short(v), " ", "")})
			}
		}
	}
	return out
}

//go:embed curves.html
var curvesText string

var curvesPage = template.Must(template.New("curves").Parse(curvesText))

// Curves writes the curves as one page.
func Curves(w io.Writer, r *bench.GrowthResult) error {
	type section struct {
		*bench.GrowthCurve
		Plot template.HTML
	}
	var sections []section
	for i := range r.Curves {
		var b bytes.Buffer
		if err := drawCurve(&b, &r.Curves[i]); err != nil {
			return err
		}
		sections = append(sections, section{&r.Curves[i], inline(b.Bytes())})
	}
	return curvesPage.Execute(w, map[string]any{"Result": r, "Sections": sections, "Disturbed": r.Disturbed()})
}
