package schemas

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestTimesHaveMilliseconds wants a MarshalJSON of every type with a time in its JSON: time.Time itself omits
// the zeros at the end of the second, so that one time of ten would have another form than the others.
func TestTimesHaveMilliseconds(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var plain []string
	marshals := make(map[string]bool)
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Recv != nil && n.Name.Name == "MarshalJSON" {
					marshals[n.Recv.List[0].Type.(*ast.Ident).Name] = true
				}
				return false // a type inside a function is a step of a MarshalJSON
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok && slices.ContainsFunc(s.Fields.List, timeInJSON) {
					plain = append(plain, n.Name.Name)
				}
			}
			return true
		})
	}
	if len(plain) < 20 {
		t.Fatalf("only %d types with times: the test does not see them", len(plain))
	}
	for _, name := range plain {
		if name == "Freshness" {
			continue // is never sent alone: SearchReply and CountsReply embed it, and would have its method
		}
		if !marshals[name] {
			t.Errorf("%s has a time in its JSON and no MarshalJSON that writes milliseconds: see milliTime", name)
		}
	}
}

// timeInJSON tells if a field is a time.Time or a slice of them, and part of the JSON.
func timeInJSON(f *ast.Field) bool {
	if f.Tag == nil || !strings.Contains(f.Tag.Value, "json:") {
		return false
	}
	of := f.Type
	if s, ok := of.(*ast.ArrayType); ok {
		of = s.Elt
	}
	sel, ok := of.(*ast.SelectorExpr)
	return ok && sel.Sel.Name == "Time"
}
