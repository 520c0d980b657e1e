package layout

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A type of production code has at most maxFields fields and maxMethods methods, so that
// no type again knows everything, as the store once did (27 fields, 137 methods).
const (
	maxFields  = 40
	maxMethods = 65
	// printedSize is the least sum of fields and methods of a type that TestSizes prints.
	printedSize = 25
)

// wideTypes may be larger, for the given reason.
var wideTypes = map[string]string{
	"cmd/belfry/cli":       "two fields; a method for each command and its parts",
	"internal/app/Options": "a field for each setting of the program",
	"router/Service":       "three fields; a method for each operation of the API and its parts",
	"scheduler/Core":       "one state machine, which decides for one shard; the simulation and the scripts drive it as a whole",
}

// helperFolders hold no production code: tests, what only tests use, and the measuring tool.
var helperFolders = []string{
	"test/", "internal/sim/", "internal/bench/", "cmd/belfry-bench/", "internal/calendar/compare/", "internal/store/storetest/",
	"internal/natstest/", "internal/cputest/", "internal/logtest/", "internal/metrictest/", "internal/mutate/", "internal/waittest/",
	"internal/zonetest/", "internal/tcptest/", "internal/certtest/", "internal/doctest/", "internal/testsize/", "internal/buildtest/",
}

// TestSizes bounds the size of types. With -v it prints the tables of
// docs/internals/structure.md. BELFRY_SIZES_ROOT is the checkout that it measures, by
// default this one; another one only has to be readable.
func TestSizes(t *testing.T) {
	t.Parallel()
	dir := cmp.Or(os.Getenv("BELFRY_SIZES_ROOT"), root)
	c := measure(t, dir)
	if len(c.types) < 100 || len(c.lines) < 5 {
		t.Fatalf("found only %d types in %d areas", len(c.types), len(c.lines))
	}
	largest := slices.SortedFunc(maps.Values(c.types), func(a, b *typeSize) int {
		return cmp.Or(b.fields+b.methods-a.fields-a.methods, strings.Compare(a.name, b.name))
	})
	for _, s := range largest {
		if s.fields+s.methods >= printedSize {
			t.Logf("type %s: %d fields, %d methods", s.name, s.fields, s.methods)
		}
		if dir == root && wideTypes[s.name] == "" && (s.fields > maxFields || s.methods > maxMethods) {
			t.Errorf("%s has %d fields and %d methods: at most %d and %d", s.name, s.fields, s.methods, maxFields, maxMethods)
		}
	}
	sum := 0
	for _, area := range slices.Sorted(maps.Keys(c.lines)) {
		t.Logf("lines %s: %d", area, c.lines[area])
		sum += c.lines[area]
	}
	t.Logf("lines in all: %d", sum)
	for _, consumer := range []string{"router", "router/natsapi", "scheduler", "functions"} {
		for _, name := range slices.Sorted(maps.Keys(c.interfaces)) {
			if path.Dir(name) == consumer {
				t.Logf("interface %s: %d methods", name, c.methodsOf(name, map[string]bool{}))
			}
		}
	}
}

// typeSize is the size of a type. Methods in all files of its package count, also
// unexported ones.
type typeSize struct {
	name            string // folder/Name
	fields, methods int
}

// codeSize is what measure counts in production code.
type codeSize struct {
	types      map[string]*typeSize
	interfaces map[string]*ifaceSize
	lines      map[string]int // by area, with comments and empty lines
}

// ifaceSize is an interface: the number of its own methods, and its embedded interfaces as
// folder/Name.
type ifaceSize struct {
	methods int
	embeds  []string
}

// methodsOf returns the number of methods of an interface, including embedded interfaces.
// Interfaces outside the module count as one method.
func (c *codeSize) methodsOf(name string, seen map[string]bool) int {
	if seen[name] {
		return 0
	}
	seen[name] = true
	i := c.interfaces[name]
	if i == nil {
		return 1
	}
	n := i.methods
	for _, e := range i.embeds {
		n += c.methodsOf(e, seen)
	}
	return n
}

func measure(t *testing.T, dir string) *codeSize {
	t.Helper()
	c := &codeSize{map[string]*typeSize{}, map[string]*ifaceSize{}, map[string]int{}}
	err := filepath.WalkDir(dir, func(file string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if slices.ContainsFunc(helperFolders, func(h string) bool { return strings.HasPrefix(rel, h) }) {
			return nil
		}
		src, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, src, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		c.lines[area(rel)] += strings.Count(string(src), "\n")
		c.add(path.Dir(rel), f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// area returns the part of the code that a file belongs to: its first folder, or the first
// two below internal and cmd.
func area(rel string) string {
	parts := strings.Split(path.Dir(rel), "/")
	switch parts[0] {
	case ".":
		return "client"
	case "internal", "cmd":
		return strings.Join(parts[:min(2, len(parts))], "/")
	default:
		return parts[0]
	}
}

func (c *codeSize) add(folder string, f *ast.File) {
	imports := map[string]string{} // by name, the folder
	for _, i := range f.Imports {
		p, _ := strconv.Unquote(i.Path.Value)
		if rel, ours := strings.CutPrefix(p, module+"/"); ours {
			imports[path.Base(p)] = rel
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				c.typ(folder, receiver(d.Recv.List[0].Type)).methods++
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.TypeSpec); ok {
					c.addType(folder, s, imports)
				}
			}
		}
	}
}

func (c *codeSize) addType(folder string, s *ast.TypeSpec, imports map[string]string) {
	switch d := s.Type.(type) {
	case *ast.StructType:
		size := c.typ(folder, s.Name.Name)
		for _, field := range d.Fields.List {
			size.fields += max(1, len(field.Names))
		}
	case *ast.InterfaceType:
		i := &ifaceSize{}
		for _, m := range d.Methods.List {
			switch e := m.Type.(type) {
			case *ast.FuncType:
				i.methods++
			case *ast.Ident:
				i.embeds = append(i.embeds, folder+"/"+e.Name)
			case *ast.SelectorExpr:
				pkg := e.X.(*ast.Ident).Name
				i.embeds = append(i.embeds, cmp.Or(imports[pkg], pkg)+"/"+e.Sel.Name)
			}
		}
		c.interfaces[folder+"/"+s.Name.Name] = i
	}
}

func (c *codeSize) typ(folder, name string) *typeSize {
	full := folder + "/" + name
	if c.types[full] == nil {
		c.types[full] = &typeSize{name: full}
	}
	return c.types[full]
}

// receiver returns the name of a receiver's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	default:
		return ""
	}
}
