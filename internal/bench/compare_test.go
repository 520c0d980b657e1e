package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/testsize"
)

func contenders() []Contender {
	return []Contender{{System: Belfry}, {System: NATSSchedules}}
}

// TestCompare measures two rows of both systems, one of which the peer does not have.
func TestCompare(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "six loads, one after another")
	rows := 0
	c := &Comparison{
		Config: config(t), Contenders: contenders(), Profiles: []app.Profile{app.ProfileFast}, Repeat: 2, Scale: 0.004, Only: []string{"bulk", "clientbatch"},
		Each: func(*ComparisonResult) error { rows++; return nil },
	}
	r, err := c.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, run := range r.Runs {
		order = append(order, run.Row+" "+run.Contender)
		if v := run.Result.Verified; v.Expected != 800 || v.Err() != nil {
			t.Errorf("run %s of %s: got %+v, want 800 timers", run.Row, run.Contender, v)
		}
		if figure(t, run.Result, loadFigure) < 0 {
			t.Errorf("run %s of %s: the load of others is below 0", run.Row, run.Contender)
		}
	}
	want := []string{"bulk Belfry", "bulk NATS schedules", "bulk NATS schedules", "bulk Belfry", "clientbatch Belfry", "clientbatch Belfry"}
	if !slices.Equal(order, want) || rows != 2 {
		t.Errorf("got the runs %v and %d finished rows, want %v and 2", order, rows, want)
	}
	figures := r.Tables[0].Figures
	if len(figures) != 4 || figures[0].Cells[0] == nil || figures[0].Cells[1] == nil || figures[0].best(nil) < 0 || figures[3].Cells[1] != nil || figures[3].best(nil) >= 0 {
		t.Errorf("got figures %+v, want 3 of both systems and 1 of Belfry alone", figures)
	}
	var md, doc bytes.Buffer
	if err := errors.Join(r.Markdown(&md), r.JSON(&doc)); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + md.String())
	for _, want := range []string{"| fast | Belfry | NATS schedules | others", "| adds in bulk, acknowledged |", "Belfry: 3200 timers, 0 missing", "clients in another, over TCP", "| bulk | fast | NATS schedules | 2 |"} {
		if !strings.Contains(md.String(), want) {
			t.Errorf("got\n%s\nwant %q in it", md.String(), want)
		}
	}
	if !json.Valid(doc.Bytes()) {
		t.Errorf("got JSON %s, want it valid", doc.String())
	}
}

// TestCompareFails: a contender that does not start has no figures, and the others are measured.
func TestCompareFails(t *testing.T) {
	t.Parallel()
	broken := Contender{Name: "broken", System: Belfry, Child: func(string) *exec.Cmd { return exec.Command("/does/not/exist") }}
	c := &Comparison{
		Config: config(t), Contenders: []Contender{broken, {System: NATSSchedules}}, Profiles: []app.Profile{app.ProfileSafe}, Repeat: 1, Scale: 0.01, Only: []string{"singles"},
	}
	r, err := c.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "singles, safe, broken") {
		t.Errorf("got error %v, want that of the broken system", err)
	}
	f := r.Tables[0].Figures[0]
	if len(r.Runs) != 2 || f.Cells[0] != nil || f.Cells[1] == nil || f.best(nil) >= 0 {
		t.Errorf("got runs %+v and figure %+v, want only that of the other system", r.Runs, f)
	}
	var md strings.Builder
	if err := r.Markdown(&md); err != nil || !strings.Contains(md.String(), "Failed: singles, safe, broken, turn 1") {
		t.Errorf("got\n%s\n(%v), want the failed run", md.String(), err)
	}
}

// TestCompareUnsound: a run with a lost timer gives no figure.
func TestCompareUnsound(t *testing.T) {
	t.Parallel()
	row := compareRows()[0]
	var sound, lost Result
	for _, r := range []*Result{&sound, &lost} {
		r.figure("adds acknowledged", 10, "/s")
	}
	f := figuresOf(row, Config{Count: 5}, []string{"a", "b"}, [][]CompareRun{{{Result: &sound}}, {{Result: &lost, Error: ErrUnsound.Error()}}})
	if f[0].Cells[0] == nil || f[0].Cells[1] != nil {
		t.Errorf("got cells %v, want one for the sound run only", f[0].Cells)
	}
}

func TestCompareBadSettings(t *testing.T) {
	t.Parallel()
	fast := []app.Profile{app.ProfileFast}
	for name, c := range map[string]*Comparison{
		"scale":   {Contenders: contenders(), Profiles: fast, Repeat: 1},
		"repeat":  {Contenders: contenders(), Profiles: fast, Scale: 1},
		"row":     {Contenders: contenders(), Profiles: fast, Repeat: 1, Scale: 1, Only: []string{"nothing"}},
		"profile": {Contenders: contenders(), Profiles: []app.Profile{"slow"}, Repeat: 1, Scale: 1},
		"system":  {Profiles: fast, Repeat: 1, Scale: 1},
		"size":    {Config: Config{Size: -1}, Contenders: contenders(), Profiles: fast, Repeat: 1, Scale: 1},
	} {
		if _, err := c.Run(t.Context()); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Comparison with an invalid %s: got %v, want an error that names it", name, err)
		}
	}
}

func TestCompareInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := &Comparison{Config: config(t), Contenders: contenders(), Profiles: []app.Profile{app.ProfileSafe, app.ProfileFast}, Repeat: 1, Scale: 1}
	r, err := c.Run(ctx)
	if !errors.Is(err, context.Canceled) || len(r.Runs) != 0 {
		t.Fatalf("interrupted Run: got %+v (%v), want no runs and context.Canceled", r, err)
	}
	if err := r.Markdown(io.Discard); err != nil {
		t.Error(err)
	}
}

// TestCompareRows: every row is a run that its workload accepts, in both profiles and for all
// systems that it is measured for.
func TestCompareRows(t *testing.T) {
	t.Parallel()
	for _, r := range compareRows() {
		w, err := Find(r.workload)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, set := range []func(*Config){r.safe, r.fast} {
			for _, k := range contenders() {
				if set == nil || r.belfry && k.System != Belfry {
					continue
				}
				c := Config{System: k.System}
				set(&c)
				w.Defaults(&c)
				if err := c.setDefaults(); err != nil {
					t.Errorf("row %s, %s: got error %v, want valid settings", r.name, k.System, err)
				}
			}
		}
		if len(r.figures) == 0 {
			t.Errorf("row %s has no figure", r.name)
		}
	}
}
