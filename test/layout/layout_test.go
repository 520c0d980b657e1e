// Package layout checks rules of the architecture that the compiler cannot check.
package layout

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/testsize"
)

const module = "github.com/belfryio/belfry"

// TestImportNoNATS: the packages above the store use its types and the endpoint's, not
// those of NATS. functions/natscall is exempt: it makes NATS requests to callees, and uses
// a *nats.Conn, but not JetStream.
func TestImportNoNATS(t *testing.T) {
	t.Parallel()
	for _, pkg := range []string{"router", "router/natsapi", "scheduler", "functions", "functions/callback", "functions/httpcall", "functions/natscall"} {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-f", `{{join .Imports "\n"}}`, "./"+pkg)
		cmd.Dir = "../.."
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		imports := strings.Fields(string(out))
		if len(imports) < 2 {
			t.Fatalf("go list found only %v", imports)
		}
		for _, imp := range imports {
			if strings.HasPrefix(imp, "github.com/nats-io/") && (pkg != "functions/natscall" || imp != "github.com/nats-io/nats.go") {
				t.Errorf("%s imports %s", pkg, imp)
			}
		}
	}
}

// TestWalk: the functions that docs/architecture.md names in its walk exist in their files.
func TestWalk(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| [a-z]*\\s*\\| `([a-z/]+\\.go)` \\| `(\\w+)\\.(\\w+)` \\|")
	rows := row.FindAllStringSubmatch(string(doc), -1)
	if len(rows) < 15 {
		t.Fatalf("the walk has only %d rows", len(rows))
	}
	for _, r := range rows {
		src, err := os.ReadFile("../../" + r[1])
		if err != nil {
			t.Error(err)
			continue
		}
		if !regexp.MustCompile(`(?m)^func \(\w+ \*?` + r[2] + `\) ` + r[3] + `[\[(]`).Match(src) {
			t.Errorf("%s has no %s.%s", r[1], r[2], r[3])
		}
	}
}

// natsImporters are the packages that import NATS's client, with the reason, in addition
// to internal/jet, the root package with internal/client, cmd, examples and internal/natstest. The
// list must only become shorter.
var natsImporters = map[string]string{
	"functions/natscall": "calls back by NATS request and reply, which is its purpose",
	"internal/app":       "makes the connection, and runs the embedded server",
	"internal/bench":     "measures NATS beside Belfry",
	"internal/cmdline":   "makes the connection of command lines",
	"internal/doctor":    "asks the server about accounts and limits",
	"internal/endpoint":  "is the micro service: it answers NATS requests",
	"schemas":            "nats.Header is the type of headers",
}

// TestNATSImporters checks that only internal/jet and the listed packages import NATS's
// client, and that each listed package still does.
func TestNATSImporters(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	found := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		pkg, imports, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.Contains(imports, "github.com/nats-io/nats.go") {
			found[strings.TrimPrefix(strings.TrimPrefix(pkg, module), "/")] = true
		}
	}
	if !found["internal/jet"] {
		t.Fatal("go list did not find that internal/jet imports NATS")
	}
	for pkg := range found {
		free := pkg == "" || pkg == "internal/jet" || pkg == "internal/natstest" || strings.HasPrefix(pkg, "internal/client/") || strings.HasPrefix(pkg, "cmd/") || strings.HasPrefix(pkg, "examples/")
		if !free && natsImporters[pkg] == "" {
			t.Errorf("%s imports NATS's client: go through internal/jet", pkg)
		}
	}
	for pkg := range natsImporters {
		if !found[pkg] {
			t.Errorf("%s no longer imports NATS's client: remove it from the list", pkg)
		}
	}
}

// TestImports checks the dependencies in docs/architecture.md: the packages that a
// package must not depend on, directly or indirectly.
func TestImports(t *testing.T) {
	t.Parallel()
	rules := []struct {
		pkg string
		not []string
	}{
		{"schemas", []string{"router", "scheduler", "functions", "internal/", "cmd/"}},
		{"scheduler/wheel", []string{"schemas", "router", "functions", "internal/", "cmd/"}},
		{"router", []string{"scheduler", "functions", "internal/app", "internal/endpoint", "internal/visibility", "cmd/"}},
		{"router/natsapi", []string{"scheduler", "functions", "internal/app", "cmd/"}},
		{"scheduler", []string{"router", "functions", "internal/app", "cmd/"}},
		{"functions", []string{"router", "scheduler", "internal/app", "cmd/"}},
		{"internal/store", []string{"router", "scheduler", "functions", "internal/app", "cmd/"}},
		{"internal/visibility", []string{"router", "scheduler", "functions", "internal/app", "internal/httpapi", "cmd/"}},
		{"internal/jet", []string{"schemas", "router", "scheduler", "functions", "internal/", "cmd/"}},
		{"internal/doctor", []string{"router", "scheduler", "functions", "internal/app", "cmd/"}},
		{"internal/calendar", []string{"schemas", "router", "scheduler", "functions", "internal/", "cmd/"}},
		{"internal/tracing", []string{"router", "scheduler", "functions", "internal/app", "internal/store", "internal/jet", "cmd/"}},
		{"internal/clustertime", []string{"router", "scheduler", "functions", "internal/app", "cmd/"}},
		{"internal/devclock", []string{"router", "scheduler", "functions", "internal/app", "internal/httpapi", "cmd/"}},
		{"internal/client/publish", []string{"router", "scheduler", "functions", "internal/app", "internal/store", "cmd/"}},
		{"internal/client/worker", []string{"router", "scheduler", "functions", "internal/app", "internal/store", "internal/client/publish", "cmd/"}},
		{".", []string{"router", "scheduler", "functions", "internal/app", "internal/store", "internal/devclock", "belfrytest", "cmd/"}},
	}
	for _, r := range rules {
		t.Run(r.pkg, func(t *testing.T) {
			t.Parallel()
			for _, dep := range deps(t, r.pkg) {
				rel, ours := strings.CutPrefix(dep, module+"/")
				if !ours || rel == r.pkg {
					continue
				}
				for _, not := range r.not {
					if rel == not || strings.HasPrefix(rel, not) && (strings.HasSuffix(not, "/") || strings.HasPrefix(rel, not+"/")) {
						t.Errorf("%s depends on %s", r.pkg, rel)
					}
				}
			}
		})
	}
}

// TestProgramIsSmall: the program has no plot library or fonts, because only belfry-bench draws,
// no jsm.go, which brings JSON schemas and an expression language (docs/adr/0011), and neither gRPC nor
// the generated types of OpenTelemetry's protocol (docs/adr/0025).
func TestProgramIsSmall(t *testing.T) {
	t.Parallel()
	for _, dep := range deps(t, "cmd/belfry") {
		for _, not := range []string{"gonum.org/", "codeberg.org/", "git.sr.ht/", "golang.org/x/image", "github.com/golang/freetype", "image", "github.com/nats-io/jsm.go", "github.com/expr-lang/", "gopkg.in/yaml.v3", "google.golang.org/grpc", "go.opentelemetry.io/proto", module + "/internal/bench/report"} {
			if dep == not || strings.HasPrefix(dep, strings.TrimSuffix(not, "/")+"/") {
				t.Errorf("cmd/belfry depends on %s", dep)
			}
		}
	}
}

// TestReleaseIsSmall: the program without debugging information and symbols, as "task build"
// builds it, has at most 42 MB.
func TestReleaseIsSmall(t *testing.T) {
	testsize.NotShort(t, "this test builds the program")
	t.Parallel()
	const maxBytes = 42_000_000
	program := filepath.Join(t.TempDir(), "belfry")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", program, "./cmd/belfry")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	info, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes", info.Size())
	if info.Size() > maxBytes {
		t.Errorf("the program has %d bytes, at most %d are allowed: docs/adr/0011 says what makes it large", info.Size(), maxBytes)
	}
}

// deps returns all packages that a package of the module depends on, including itself.
func deps(t *testing.T, pkg string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./"+pkg)
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	list := strings.Fields(string(out))
	if len(list) < 2 {
		t.Fatalf("go list found only %v", list)
	}
	return list
}
