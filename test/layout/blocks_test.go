package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/doctest"
)

// TestBlocks: each code block of README.md, docs and docs/guides is run by a test, or is listed as
// not run with the reason (doctest.Table). A test that is named there takes its blocks from the
// documents by doctest.Blocks, which fails if it does not run one of them.
func TestBlocks(t *testing.T) {
	t.Parallel()
	used := map[*doctest.Rule]int{}
	run, all := 0, doctest.All(t)
	for _, b := range all {
		r := doctest.RuleOf(b)
		if r == nil {
			t.Errorf("%s:%d: no test runs the block %q: see Table in internal/doctest", b.File, b.Line, b.First())
			continue
		}
		used[r]++
		if r.Test != "" {
			run++
		} else {
			t.Logf("not run: %s:%d: %s", b.File, b.Line, r.Why)
		}
	}
	t.Logf("%d of %d blocks are run", run, len(all))
	if len(all) < 150 {
		t.Errorf("only %d blocks were found", len(all))
	}
	takers := map[string]bool{}
	for i := range doctest.Table {
		r := &doctest.Table[i]
		if used[r] == 0 {
			t.Errorf("no block fits the rule %+v: remove it", *r)
		}
		if (r.Test == "") == (r.Why == "") {
			t.Errorf("rule %+v: want a test or a reason", *r)
		}
		for _, m := range otherTest.FindAllStringSubmatch(r.Why, -1) {
			if testFunction(t, m[2], m[1]) == nil {
				t.Errorf("rule %+v: there is no %s", *r, m[0])
			}
		}
		if _, known := takers[r.Test]; r.Test != "" && !known {
			takers[r.Test] = takesBlocks(t, r.Test)
			if !takers[r.Test] {
				t.Errorf("%s does not call doctest.Blocks(t, %q)", r.Test, r.Test)
			}
		}
	}
}

// otherTest is a test that shows the subject of a block otherwise, in the reason why no test runs the block.
var otherTest = regexp.MustCompile(`([Tt]est\w+) in ([\w/]+)`)

// takesBlocks reports whether the test function calls doctest.Blocks with its name.
func takesBlocks(t *testing.T, test string) bool {
	t.Helper()
	dot := strings.LastIndex(test, ".")
	f := testFunction(t, test[:dot], test[dot+1:])
	if f == nil {
		return false
	}
	found := false
	ast.Inspect(f.Body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && len(call.Args) == 2 {
			name, isText := call.Args[1].(*ast.BasicLit)
			fun, isMember := call.Fun.(*ast.SelectorExpr)
			found = found || isText && isMember && fun.Sel.Name == "Blocks" && name.Value == strconv.Quote(test)
		}
		return true
	})
	return found
}

// testFunction returns a function of the tests of a folder; nil if there is none.
func testFunction(t *testing.T, folder, name string) *ast.FuncDecl {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == name {
				return f
			}
		}
	}
	return nil
}
