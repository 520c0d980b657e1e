package doctest

import (
	"flag"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/buildtest"
)

// Block is a fenced code block of a Markdown file.
type Block struct {
	File string // from the root of the module, with slashes
	Line int    // the line of the opening fence, from 1
	Lang string // the word after the fence; "" for none

	text string
	used bool
}

// Text returns the lines between the fences, without the indent of the fence. It marks the
// block as run.
func (b *Block) Text() string {
	b.used = true
	return b.text
}

// First returns the first line of the block.
func (b *Block) First() string {
	first, _, _ := strings.Cut(b.text, "\n")
	return first
}

// Commands returns the commands of a block "console", which begin with "$ ", each with what the
// block shows after it.
func (b *Block) Commands() (commands, shown []string) {
	for _, part := range strings.Split("\n"+b.Text(), "\n$ ")[1:] {
		command, out, _ := strings.Cut(part, "\n")
		commands, shown = append(commands, command), append(shown, out)
	}
	return commands, shown
}

// Root returns the root of the module: the nearest folder above the test's that has a go.mod.
func Root(t testing.TB) string {
	t.Helper()
	root, err := buildtest.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// documents are the patterns of the files whose blocks need a test.
var documents = []string{"README.md", "docs/*.md", "docs/guides/*.md"}

// All returns the blocks of README.md, docs and docs/guides, by file and line.
func All(t testing.TB) []*Block {
	t.Helper()
	root := Root(t)
	var all []*Block
	for _, pattern := range documents {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: found no files: %v", pattern, err)
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, parse(t, path.Join(path.Dir(pattern), filepath.Base(file)), string(b))...)
		}
	}
	return all
}

var fence = regexp.MustCompile("^(\\s*(?:\\d+\\. |[-*] )?)```(\\S*)\\s*$")

func parse(t testing.TB, file, text string) (blocks []*Block) {
	t.Helper()
	var open *Block
	indent := 0
	for i, line := range strings.Split(text, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case open == nil && m != nil:
			open, indent = &Block{File: file, Line: i + 1, Lang: m[2]}, len(m[1])
		case open != nil && m != nil && m[2] == "":
			blocks, open = append(blocks, open), nil
		case open != nil:
			cut := min(indent, len(line)-len(strings.TrimLeft(line, " ")))
			open.text += line[cut:] + "\n"
		}
	}
	if open != nil {
		t.Errorf("%s:%d: the code block has no end", file, open.Line)
	}
	return blocks
}

// Blocks returns the blocks that the table assigns to a test, by file and line. test is the
// folder of the package and the name of the function, such as "cmd/belfry.TestReadme". When t
// ends, each block must have been run (Block.Text), unless t failed or was skipped.
func Blocks(t testing.TB, test string) []*Block {
	t.Helper()
	var mine []*Block
	for _, b := range All(t) {
		if r := RuleOf(b); r != nil && r.Test == test {
			mine = append(mine, b)
		}
	}
	if len(mine) == 0 {
		t.Fatalf("the table of package doctest assigns no block to %s", test)
	}
	t.Cleanup(func() {
		if t.Failed() || t.Skipped() || onlyPart() {
			return
		}
		for _, b := range mine {
			if !b.used {
				t.Errorf("%s:%d: %s has not run the block, which the table of package doctest assigns to it", b.File, b.Line, test)
			}
		}
	})
	return mine
}

// GiveTo gives blocks to a subtest. If the subtest is skipped, it need not run them.
func GiveTo(sub testing.TB, blocks []*Block) {
	sub.Helper()
	sub.Cleanup(func() {
		if !sub.Skipped() {
			return
		}
		for _, b := range blocks {
			b.used = true
		}
	})
}

// onlyPart reports whether go test runs a part of the subtests only.
func onlyPart() bool {
	f := flag.Lookup("test.run")
	return f != nil && strings.Contains(f.Value.String(), "/")
}

// In returns the blocks of a file.
func In(blocks []*Block, file string) []*Block {
	return slices.Collect(func(yield func(*Block) bool) {
		for _, b := range blocks {
			if b.File == file && !yield(b) {
				return
			}
		}
	})
}

// Rule says for some blocks of a file which test runs them, or why none does.
type Rule struct {
	File  string
	Lang  string // "" for all
	Start string // of the first line; "" for all
	Test  string // the argument of Blocks; "" if Why is set
	Why   string // the reason why no test runs the blocks
}

// RuleOf returns the first rule of the table that has the block; nil for none.
func RuleOf(b *Block) *Rule {
	for i, r := range Table {
		if r.File == b.File && (r.Lang == "" || r.Lang == b.Lang) && strings.HasPrefix(b.First(), r.Start) {
			return &Table[i]
		}
	}
	return nil
}
