//go:build unix

package proc

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// ErrNoRevision says that there is no such revision here to build.
var ErrNoRevision = errors.New("no such revision here")

// BuildRevision makes the program as it was at a revision of the repository that
// the working directory is in, and returns its path: ErrNoRevision where there is
// no git, or no such revision.
func BuildRevision(tb testing.TB, revision string) (string, error) {
	tb.Helper()
	top, err := git("rev-parse", "--show-toplevel")
	if err != nil {
		return "", errors.Join(ErrNoRevision, err)
	}
	archive, err := git("-C", strings.TrimSpace(string(top)), "archive", "--format=tar", revision)
	if err != nil {
		return "", errors.Join(ErrNoRevision, err)
	}
	dir := tb.TempDir()
	if err := unpack(tar.NewReader(bytes.NewReader(archive)), dir); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "belfry-of-"+filepath.Base(revision))
	cmd := exec.Command("go", "build", "-o", path, "./cmd/belfry")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("revision %s does not build: %w\n%s", revision, err, out)
	}
	return path, nil
}

func git(args ...string) ([]byte, error) {
	out, err := exec.Command("git", args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil, fmt.Errorf("git %s: %s", args[0], bytes.TrimSpace(exit.Stderr))
	}
	return out, err
}

func unpack(r *tar.Reader, dir string) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !filepath.IsLocal(h.Name) || h.Typeflag != tar.TypeReg {
			continue // directories are made for their files; links are none of the program
		}
		path := filepath.Join(dir, h.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		b, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if err := os.WriteFile(path, b, 0o600); err != nil {
			return err
		}
	}
}
