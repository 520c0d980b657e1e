//go:build unix

package clients

import (
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/test/proc"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(runner{m})
}

// runner removes the programs that the tests have built.
type runner struct{ m *testing.M }

func (r runner) Run() int { return proc.Run(r.m) }

const (
	token  = "a-token-of-the-tests-of-the-clients"
	secret = "whsec_YSBzZWNyZXQgb2YgdGhlIHRlc3RzIG9mIHRoZSBjbGllbnRz"
	// config has the services whose callbacks the suites verify.
	config = `services:
  signed: {secret: ` + secret + `}
  signed-binary: {secret: ` + secret + `, mode: binary}
`
)

// TestJavaScript and TestPython run the suites of the clients, each against a node of its own.
func TestJavaScript(t *testing.T) {
	t.Parallel()
	node := program(t, "node")
	if node == "" {
		t.Skip("node is not installed")
	}
	for _, module := range []string{"express", "@nats-io/transport-node"} {
		if _, err := os.Stat(filepath.Join(root, "clients/js/node_modules", module)); err != nil && required() {
			t.Fatalf("BELFRY_CLIENTS=required, and %s is not installed: npm ci --prefix clients/js", module)
		}
	}
	run(t, "clients/js", startNode(t), node, "--test", "test/unit.test.js", "test/node.test.js", "test/examples.test.js")
}

func TestPython(t *testing.T) {
	t.Parallel()
	python := program(t, "python3")
	if python == "" {
		t.Skip("python3 is not installed")
	}
	run(t, "clients/python", startNode(t), python, "-m", "unittest", "discover", "-v", "-s", "tests")
}

// startNode starts a node and returns the environment of its suite.
func startNode(t *testing.T) []string {
	t.Helper()
	testsize.NotShort(t, "a suite of another language")
	n := proc.New(t, proc.Options{Config: config, Env: []string{"BELFRY_HTTP_TOKEN=" + token}})
	n.Start()
	n.Ready(t.Context())
	return []string{"BELFRY_URL=" + n.HTTP(), "NATS_URL=" + n.URL(), "BELFRY_HTTP_TOKEN=" + token, "BELFRY_SECRET=" + secret}
}
