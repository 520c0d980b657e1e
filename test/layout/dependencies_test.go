package layout

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// dependency is a direct module of go.mod, as go list describes it. Dir and Time are absent if the module
// cache does not have the module.
type dependency struct {
	Path, Version, Dir string
	Time               *time.Time
}

// dependencies returns the direct modules of go.mod.
func dependencies(t *testing.T) []dependency {
	t.Helper()
	output := func(args ...string) *strings.Reader {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go %s: %v", args[0], err)
		}
		return strings.NewReader(string(out))
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.NewDecoder(output("mod", "edit", "-json")).Decode(&mod); err != nil {
		t.Fatal(err)
	}
	args := []string{"list", "-m", "-json"}
	for _, r := range mod.Require {
		if !r.Indirect {
			args = append(args, r.Path)
		}
	}
	var all []dependency
	for d := json.NewDecoder(output(args...)); ; {
		var m dependency
		switch err := d.Decode(&m); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatal(err)
		}
		all = append(all, m)
	}
}

// licences are the licences of the table, with words of their texts.
var licences = map[string]string{
	"Apache-2.0": "Apache License", "MIT": "Permission is hereby granted, free of charge", "BSD-3-Clause": "Neither the name of", "MIT, Apache-2.0": "Apache License",
}

// TestDependencies: the table in docs/internals/dependencies.md has each direct module of go.mod, with the version
// in use, the approximate date of its release and its licence, and no other module.
func TestDependencies(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(filepath.Join(root, "docs/internals/dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	type row struct{ version, date, licence string }
	rows := map[string]row{}
	pattern := regexp.MustCompile("(?m)^\\| \\[`([^`]+)`\\]\\(https://pkg\\.go\\.dev/[^)]+\\) \\| (v[^, |]+), ([0-9-]+) \\| ([^|]+) \\| ([0-9,]+|none) \\| [^|]+ \\|$")
	for _, m := range pattern.FindAllStringSubmatch(string(doc), -1) {
		if _, twice := rows[m[1]]; twice {
			t.Errorf("the table has %s twice", m[1])
		}
		rows[m[1]] = row{m[2], m[3], m[4]}
	}
	modules := dependencies(t)
	if len(modules) < 20 {
		t.Fatalf("go.mod has only %+v", modules)
	}
	for _, m := range modules {
		r, found := rows[m.Path]
		delete(rows, m.Path)
		switch {
		case !found:
			t.Errorf("the table lacks %s %s", m.Path, m.Version)
			continue
		case r.version != m.Version:
			t.Errorf("the table has version %s of %s, and go.mod has %s", r.version, m.Path, m.Version)
		case m.Time != nil && !isNear(t, r.date, *m.Time):
			t.Errorf("the table has %s as the date of %s %s, want about %s", r.date, m.Path, m.Version, m.Time.UTC().Format(time.DateOnly))
		}
		words, known := licences[r.licence]
		if !known {
			t.Errorf("the table has the unknown licence %q of %s", r.licence, m.Path)
		} else if m.Dir != "" && !licensed(t, m.Dir, words) {
			t.Errorf("the files of %s do not say that its licence is %s", m.Path, r.licence)
		}
	}
	for path := range rows {
		t.Errorf("the table has %s, which is no direct module of go.mod", path)
	}
}

// isNear reports whether a date of the table is the date of a release. Registries of modules give the time of the
// commit or that of its publication, which is up to some weeks later.
func isNear(t *testing.T, date string, released time.Time) bool {
	t.Helper()
	d, err := time.Parse(time.DateOnly, date)
	if err != nil {
		t.Error(err)
	}
	return released.Sub(d).Abs() < 60*24*time.Hour
}

// licensed reports whether a file with the licence of a module has the words.
func licensed(t *testing.T, dir, words string) bool {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, "LICENSE*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(strings.Join(strings.Fields(string(text)), " "), words) {
			return true
		}
	}
	return false
}
