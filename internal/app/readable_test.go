package app

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
)

// TestReadableByAnybody: only the owner can read a new data folder. The node warns about
// an existing folder, or a file with secrets, that others can read.
func TestReadableByAnybody(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data, file, private := filepath.Join(dir, "data"), filepath.Join(dir, "config.yaml"), filepath.Join(dir, "private.yaml")
	for path, mode := range map[string]os.FileMode{file: 0o644, private: 0o640} {
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil { // independent of the umask
			t.Fatal(err)
		}
	}
	node := func() string {
		var out bytes.Buffer
		a, err := New(Options{Data: data, HTTP: NoHTTP, SecretFiles: []string{file, private, file}, Log: zerolog.New(&out)})
		if err != nil {
			t.Fatal(err)
		}
		stop(t, a)
		return out.String()
	}
	log := node()
	if strings.Contains(log, "chmod 700") || strings.Count(log, "chmod 600 "+file) != 1 || strings.Contains(log, private) {
		t.Errorf("got log %s, want one warning about %s, and none about the new data folder or %s", log, file, private)
	}
	info, err := os.Stat(data)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("the new data folder has mode %v (%v), want 0700", info.Mode(), err)
	}
	if err := os.Chmod(data, 0o755); err != nil { //nolint:gosec // the finding of the test
		t.Fatal(err)
	}
	if log := node(); !strings.Contains(log, "chmod 700 "+data) {
		t.Errorf("got log %s, want a warning about the data folder %s", log, data)
	}
}
