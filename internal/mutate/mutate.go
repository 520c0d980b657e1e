// Package mutate plants a bug for one run of the tests: it gives the compiler a
// changed copy of one source file in place of the original, which stays as it is.
package mutate

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Mutant is a bug: a change of one place of one file.
type Mutant struct {
	// Name says what is wrong with the mutant, in words.
	Name string
	// File is the path from the module's root, with slashes. From, which must be in
	// the file exactly once, is replaced by To.
	File, From, To string
}

// source reads the file and checks that the mutant still fits it.
func (m *Mutant) source(root string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(m.File)))
	if err != nil {
		return nil, err
	}
	if n := strings.Count(string(b), m.From); n != 1 {
		return nil, fmt.Errorf("mutant %q: %q is %d times in %s; the mutant has to follow the code", m.Name, m.From, n, m.File)
	}
	return b, nil
}

// Check reports whether the mutant fits the code below root.
func (m *Mutant) Check(root string) error {
	_, err := m.source(root)
	return err
}

// Test runs "go test" with the arguments on the code below root with the bug in
// it. dir is for its files. It returns what go test prints and its error: nil if
// the tests pass, so that the bug was not noticed.
func (m *Mutant) Test(ctx context.Context, root, dir string, env []string, args ...string) ([]byte, error) {
	b, err := m.source(root)
	if err != nil {
		return nil, err
	}
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(changed, []byte(strings.Replace(string(b), m.From, m.To, 1)), 0o600); err != nil {
		return nil, err
	}
	o, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, filepath.FromSlash(m.File)): changed}})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(overlay, o, 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-count=1", "-vet=off"}, args...)...)
	// GOFLAGS also applies to the programs that the tests build.
	flags := strings.TrimSpace(os.Getenv("GOFLAGS") + " -overlay=" + overlay)
	cmd.Dir, cmd.Env = root, append(append(os.Environ(), env...), "GOFLAGS="+flags)
	return cmd.CombinedOutput()
}
