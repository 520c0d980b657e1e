package layout

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// TestClientSurface: the documentation of the root package shows every exported identifier
// with a doc comment, and its signatures name no internal package.
func TestClientSurface(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "doc", "-all", ".")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go doc: %v", err)
	}
	lines := strings.Split(string(bytes.TrimSpace(out)), "\n")
	functions := 0
	for i, line := range lines {
		if !strings.HasPrefix(line, "func ") {
			continue
		}
		functions++
		for _, internal := range []string{"publish.", "worker."} {
			if strings.Contains(line, internal) {
				t.Errorf("an internal type is in the API: %s", line)
			}
		}
		if i+1 == len(lines) || !strings.HasPrefix(lines[i+1], "    ") {
			t.Errorf("no doc comment: %s", line)
		}
	}
	if functions < 30 {
		t.Errorf("go doc shows %d functions", functions)
	}
}
