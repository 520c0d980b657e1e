package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/waittest"
)

// TestScheduleGuide runs the commands of docs/schedules.md that need a node, in their order.
// Of what they print it compares the first word of each line: the rest depends on the time.
func TestScheduleGuide(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../docs/schedules.md")
	if err != nil {
		t.Fatal(err)
	}
	n := serve(t, "")
	words := func(line string) (args []string) {
		for _, w := range regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`).FindAllString(line, -1) {
			args = append(args, strings.Trim(w, `'"`))
		}
		return args
	}
	ran := 0
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(b), -1) {
		for line := range strings.Lines(block[1]) {
			ran++
			if r := n.client(t, words(strings.TrimPrefix(line, "belfry "))...); r.code != exitOK {
				t.Errorf("%s: exit code %d, want 0: %s", strings.TrimSpace(line), r.code, r.err)
			}
		}
	}
	if ran < 9 {
		t.Errorf("docs/schedules.md has %d commands for a node, want at least 9", ran)
	}
	shown := 0
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(string(b), -1) {
		for _, part := range strings.Split("\n"+block[1], "\n$ belfry ")[1:] {
			line, want, _ := strings.Cut(part, "\n")
			if strings.HasPrefix(line, "preview ") {
				continue // TestScheduleExamples runs it
			}
			shown++
			// The first run of the backfill fires a moment after its command.
			var got string
			waittest.Until(t, "belfry "+line+" prints what the guide shows", func() bool {
				r := n.client(t, words(line)...)
				got = r.out + r.err
				return r.code == exitOK && slices.Equal(firstWords(got), firstWords(want))
			}, func() string { return "got\n" + got + "\nwant lines like\n" + want })
		}
	}
	if shown < 3 {
		t.Errorf("docs/schedules.md shows %d answers of a node, want at least 3", shown)
	}
}

// firstWords returns the first word of each line.
func firstWords(text string) (all []string) {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 0 {
			all = append(all, f[0])
		}
	}
	return all
}
