package layout

import (
	"fmt"
	"go/parser"
	"go/scanner"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// patterns are turns of phrase that make text hard to read, with what to write instead.
var patterns = []struct {
	text    string
	instead string
}{
	{`anew`, "again"},
	{`mend(s|ed|ing)?`, "repair, fix"},
	{`besides`, "also, in addition to"},
	{`whoever`, "name the person or the part: a client, the operator"},
	{`(is|are|was|were|be|been) told`, "say who reports what: the log names, the tool prints"},
	{`stands twice`, "is a duplicate"},
	{`one that`, "name the thing: a timer that, the node that"},
	{`those that`, "name the things: timers that, nodes that"},
	{`what it`, "name the thing: its cost, the state that it has"},
}

const (
	baselineFile = "language.txt"
	// updateEnv makes TestLanguage write the baseline.
	updateEnv = "BELFRY_LANGUAGE_UPDATE"
)

// hit is one use of a pattern.
type hit struct {
	file string
	line int
	text string
	rule int
}

// TestLanguage counts the patterns in comments and texts of Go files, and in Markdown
// files, by folder. A count must not exceed the baseline in language.txt. After a folder
// has become better, or text has moved to another folder, write the baseline with
//
//	BELFRY_LANGUAGE_UPDATE=1 go test -run TestLanguage ./test/layout
//
// which refuses to raise the sum.
func TestLanguage(t *testing.T) {
	t.Parallel()
	hits := map[string][]hit{}
	for _, file := range files(t, ".go", ".md") {
		if path.Dir(file) == "test/layout" && strings.HasPrefix(path.Base(file), "language") {
			continue // it has to name the patterns
		}
		hits[path.Dir(file)] = append(hits[path.Dir(file)], languageHits(t, file)...)
	}
	now := map[string]int{}
	for folder, list := range hits {
		if len(list) > 0 {
			now[folder] = len(list)
		}
	}
	baseline := readBaseline(t)
	if os.Getenv(updateEnv) != "" {
		writeBaseline(t, baseline, now)
		return
	}
	for _, folder := range slices.Sorted(maps.Keys(now)) {
		switch allowed := baseline[folder]; {
		case now[folder] > allowed:
			var lines strings.Builder
			for _, h := range hits[folder] {
				fmt.Fprintf(&lines, "\n  %s:%d: %q: write %s", h.file, h.line, h.text, patterns[h.rule].instead)
			}
			t.Errorf("folder %s has %d hard-to-read phrases, %d are allowed. Rewrite at least %d of these:%s", folder, now[folder], allowed, now[folder]-allowed, lines.String())
		case now[folder] < allowed:
			t.Logf("folder %s has %d of %d allowed phrases: lower the baseline with %s=1", folder, now[folder], allowed, updateEnv)
		}
	}
}

var languagePattern = func() *regexp.Regexp {
	all := make([]string, len(patterns))
	for i, p := range patterns {
		all[i] = "(" + strings.ReplaceAll(strings.ReplaceAll(p.text, "(", "(?:"), " ", `\s+`) + ")"
	}
	return regexp.MustCompile(`(?i)\b(?:` + strings.Join(all, "|") + `)\b`)
}()

// languageHits finds the patterns in one file, also where a line ends within one.
func languageHits(t *testing.T, file string) []hit {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	var out []hit
	find := func(text string, line int) {
		for _, m := range languagePattern.FindAllStringSubmatchIndex(text, -1) {
			rule := 0
			for m[2+2*rule] < 0 {
				rule++
			}
			out = append(out, hit{file, line + strings.Count(text[:m[0]], "\n"), strings.Join(strings.Fields(text[m[0]:m[1]]), " "), rule})
		}
	}
	if !strings.HasSuffix(file, ".go") {
		find(string(b), 1)
		return out
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, b, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range f.Comments {
		var lines []string
		for _, c := range group.List {
			lines = append(lines, strings.TrimPrefix(c.Text, "//"))
		}
		find(strings.Join(lines, "\n"), fset.Position(group.Pos()).Line)
	}
	var s scanner.Scanner
	tokens := token.NewFileSet()
	s.Init(tokens.AddFile(file, -1, len(b)), b, nil, 0)
	for {
		pos, tok, lit := s.Scan()
		switch tok {
		case token.EOF:
			return out
		case token.STRING:
			find(lit, tokens.Position(pos).Line)
		}
	}
}

// readBaseline reads lines "folder count".
func readBaseline(t *testing.T) map[string]int {
	t.Helper()
	b, err := os.ReadFile(baselineFile)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		folder, count, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.Atoi(strings.TrimSpace(count))
		if err != nil {
			t.Fatalf("%s: %q is not a folder and a count", baselineFile, line)
		}
		out[folder] = n
	}
	return out
}

func writeBaseline(t *testing.T, before, now map[string]int) {
	t.Helper()
	sum := func(m map[string]int) (n int) {
		for _, v := range m {
			n += v
		}
		return n
	}
	if len(before) > 0 && sum(now) > sum(before) {
		t.Fatalf("there are %d hard-to-read phrases, %d are allowed: the baseline may only fall; run the test without %s for the list", sum(now), sum(before), updateEnv)
	}
	var b strings.Builder
	b.WriteString("# Hard-to-read phrases by folder, see language_test.go. The counts may only fall.\n")
	for _, folder := range slices.Sorted(maps.Keys(now)) {
		fmt.Fprintf(&b, "%s %d\n", folder, now[folder])
	}
	if err := os.WriteFile(baselineFile, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d phrases, before %d", sum(now), sum(before))
}
