// Package buildtest builds programs for tests.
package buildtest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// unusedFor is the time after which a kept program that no test used is removed.
const unusedFor = 14 * 24 * time.Hour

// Program builds the main package pkg, with arguments of go build, and puts the program at path, which must not exist.
// The current folder must be in the module.
//
// Several packages test the same program. The first one links it and keeps it in the user's cache folder
// (belfry-test); the others, and later runs, take that program after go build has found that it is up to date. With
// -overlay among the arguments or in GOFLAGS, whose file has another name each time, Program keeps nothing.
func Program(path, pkg string, args ...string) error {
	kept, unlock, err := keep(pkg, args)
	if err != nil { // without a cache folder, build at path
		return build(path, pkg, args)
	}
	defer unlock()
	if err := build(kept, pkg, args); err != nil {
		return err
	}
	now := time.Now()
	if err := os.Chtimes(kept, now, now); err != nil { // used
		return err
	}
	// go build replaces the file and never writes to it, so the link keeps this program.
	if os.Link(kept, path) == nil {
		return nil
	}
	return duplicate(kept, path)
}

func build(path, pkg string, args []string) error {
	args = append(append([]string{"build", "-o", path}, args...), pkg)
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

var errNotKept = errors.New("the program is not kept")

// keep returns where the program is kept, and locks the place until unlock is called.
func keep(pkg string, args []string) (path string, unlock func(), err error) {
	for _, a := range append(strings.Fields(os.Getenv("GOFLAGS")), args...) {
		if strings.HasPrefix(strings.TrimLeft(a, "-"), "overlay") {
			return "", nil, errNotKept
		}
	}
	root, err := ModuleRoot()
	if err != nil {
		return "", nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", nil, err
	}
	folder := filepath.Join(cache, "belfry-test")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", nil, err
	}
	clean(folder)
	key := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", root, pkg, args))
	path = filepath.Join(folder, fmt.Sprintf("%x", key[:8]))
	unlock, err = lock(path + ".lock")
	return path, unlock, err
}

// clean removes what was not used for unusedFor.
func clean(folder string) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > unusedFor && !strings.HasSuffix(e.Name(), ".lock") {
			_ = os.Remove(filepath.Join(folder, e.Name())) // somebody else has removed it
		}
	}
}

// ModuleRoot returns the nearest folder, from the current one upwards, that has a go.mod.
func ModuleRoot() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("no go.mod above the current folder")
		}
	}
	return "", err
}

func duplicate(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // it was only read
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
