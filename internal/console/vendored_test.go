package console_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestVendored: each file of others has the checksum in vendored.txt, which also has its licence.
func TestVendored(t *testing.T) {
	t.Parallel()
	list, err := os.ReadFile("vendored.txt")
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for line := range strings.Lines(string(list)) {
		f := strings.Fields(line)
		if strings.HasPrefix(line, "#") || len(f) == 0 {
			continue
		}
		if len(f) != 5 {
			t.Fatalf("got %d fields in %q, want a file, a package, its version, licence and SHA-256", len(f), line)
		}
		data, err := os.ReadFile(filepath.Join("static", f[0]))
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != f[4] {
			t.Errorf("%s: got SHA-256 %x, want %s", f[0], sum, f[4])
		}
		files++
	}
	minified, err := filepath.Glob("static/*.min.*")
	if err != nil {
		t.Fatal(err)
	}
	if files != len(minified) || files == 0 {
		t.Errorf("vendored.txt has %d files, and the folder static %v", files, minified)
	}
}
