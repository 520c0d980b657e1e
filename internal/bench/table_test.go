package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/testsize"
)

func TestTable(t *testing.T) {
	t.Parallel()
	testsize.NotShort(t, "four loads, one after another")
	c := config(t)
	c.Raw = 50
	table := &Table{Config: c, Profiles: []app.Profile{app.ProfileSafe, app.ProfileFast}, Scale: 0.005, Only: []string{"bulk", "day"}}
	r, err := table.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != 3 || len(r.Results) != 4 {
		t.Fatalf("got %d rows of %d runs, want 3 of 4", len(r.Rows), len(r.Results))
	}
	for _, row := range r.Rows {
		for _, cell := range row.Cells {
			if cell.Value == nil || cell.Error != "" {
				t.Errorf("row %s: got %+v, want a value and no error", row.Name, cell)
			}
		}
	}
	var md, doc bytes.Buffer
	if err := errors.Join(r.Markdown(&md), r.JSON(&doc)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| bulk adds, acknowledged | ≥ 20 k /s |", "| day (day) | fast |", "raw publish", "clients over TCP"} {
		if !strings.Contains(md.String(), want) {
			t.Errorf("got\n%s\nwant %q in it", md.String(), want)
		}
	}
	if !json.Valid(doc.Bytes()) {
		t.Errorf("got JSON %s, want it valid", doc.String())
	}
}

// TestTableCallbacks: the node is a separate process and calls back to this one.
func TestTableCallbacks(t *testing.T) {
	t.Parallel()
	testsize.Long(t, "TestCallback and TestTable run its parts")
	table := &Table{Config: config(t), Profiles: []app.Profile{app.ProfileFast}, Scale: 0.01, Only: []string{"http"}}
	r, err := table.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Results) != 1 || r.Results[0].Verified.Missing != 0 || figure(t, r.Results[0], apartFigure) <= 0 {
		t.Fatalf("got %+v, want one run with the CPU of the node", r.Results)
	}
}

// TestTableInProcess: a table of runs in one process says so.
func TestTableInProcess(t *testing.T) {
	t.Parallel()
	r := TableResult{Results: []*Result{{Settings: settings(Config{InProcess: true})}}}
	var md strings.Builder
	if err := r.Markdown(&md); err != nil || !strings.Contains(md.String(), "server, node and clients in one process, without TCP") {
		t.Errorf("got\n%s\n(%v), want the mark of one process", md.String(), err)
	}
}

func TestTableBadSettings(t *testing.T) {
	t.Parallel()
	for _, table := range []*Table{{Scale: 0}, {Scale: 2}, {Scale: 1, Only: []string{"nothing"}}} {
		if _, err := table.Run(t.Context()); err == nil {
			t.Errorf("Run with scale %v and only %v: got no error, want one", table.Scale, table.Only)
		}
	}
}

// TestTableInterrupted: rows that were not measured carry an error.
func TestTableInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	table := &Table{Config: config(t), Profiles: []app.Profile{app.ProfileSafe, app.ProfileFast}, Scale: 1}
	r, err := table.Run(ctx)
	if !errors.Is(err, context.Canceled) || len(r.Results) != 0 || len(r.Rows) < len(rows()) {
		t.Fatalf("interrupted Run: got %+v (%v), want every row, no results and context.Canceled", r, err)
	}
	for _, row := range r.Rows {
		if len(row.Cells) != 2 || row.Cells[0].Good || row.Cells[1].Error == "" {
			t.Errorf("interrupted Run: got row %+v, want an error in both profiles", row)
		}
	}
	if err := r.Markdown(io.Discard); err != nil {
		t.Error(err)
	}
}

// TestCells: a failed run does not reach its goal.
func TestCells(t *testing.T) {
	t.Parallel()
	results := []*Result{{}, {}, {}}
	for i, v := range []float64{30, 10, 20} {
		results[i].figure("f", v, "/s")
	}
	for _, tc := range []struct {
		want goal
		err  error
		got  string
		good bool
	}{
		{atLeast(20, "/s"), nil, "20 /s (10 to 30)", true},
		{atLeast(21, "/s"), nil, "20 /s (10 to 30)", false},
		{below(21, "/s"), nil, "20 /s (10 to 30)", true},
		{below(20, "/s"), nil, "20 /s (10 to 30)", false},
		{atLeast(1, "/s"), ErrUnsound, "20 /s (10 to 30), failed", false},
	} {
		if c := cell(tc.want, byFigure("f"), results, tc.err); c.Got != tc.got || c.Good != tc.good {
			t.Errorf("goal %s, error %v: got %+v, want %q, good %v", tc.want, tc.err, c, tc.got, tc.good)
		}
	}
	if c := cell(atLeast(1, "/s"), byFigure("g"), results, nil); c.Good || c.Got != "no result" {
		t.Errorf("without the figure: got %+v, want \"no result\", not good", c)
	}
	if c := cell(below(1, "ms"), byLatency("g", 99), results, nil); c.Good {
		t.Errorf("without the distribution: got %+v, want not good", c)
	}
}

// TestRows: every row of the table is a run that its workload accepts.
func TestRows(t *testing.T) {
	t.Parallel()
	for _, r := range rows() {
		w, err := Find(r.workload)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, set := range []func(*Config){r.safe, r.fast} {
			if set == nil {
				continue
			}
			var c Config
			set(&c)
			w.Defaults(&c)
			if err := c.setDefaults(); err != nil {
				t.Errorf("row %s: got error %v, want valid settings", r.name, err)
			}
		}
		if len(r.goals) == 0 {
			t.Errorf("row %s has no goal", r.name)
		}
	}
}
