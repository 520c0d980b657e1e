package main

import (
	"bytes"
	"fmt"
	"text/tabwriter"
)

// page is a buffer for text that is printed with one write.
type page struct{ bytes.Buffer }

func (p *page) line(format string, args ...any) {
	fmt.Fprintf(&p.Buffer, format+"\n", args...)
}

// columns writes an empty line and a table. It writes nothing for a table without rows. The
// header's cells are separated by tabs.
func columns[T any](p *page, header string, list []T, cells func(T) []any) {
	if len(list) == 0 {
		return
	}
	p.line("")
	w := tabwriter.NewWriter(&p.Buffer, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, header) //nolint:errcheck // a buffer takes everything
	for _, v := range list {
		for i, cell := range cells(v) {
			if i > 0 {
				fmt.Fprint(w, "\t") //nolint:errcheck // a buffer takes everything
			}
			fmt.Fprint(w, printable(fmt.Sprint(cell))) //nolint:errcheck // a buffer takes everything
		}
		fmt.Fprintln(w) //nolint:errcheck // a buffer takes everything
	}
	w.Flush() //nolint:errcheck // a buffer takes everything
}

// ago formats an age in milliseconds.
func ago(ms int64) string { return fmt.Sprintf("%.1fs ago", float64(ms)/1000) }

// bytesText formats a number of bytes with a unit.
func bytesText(n int64) string {
	if n < 0 {
		return "unlimited"
	}
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	f, i := float64(n), 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}
