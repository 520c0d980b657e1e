package clients

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/belfryio/belfry/internal/doctest"
)

// TestGuides: each program in the guides and in the READMEs of the packages is an example, which the suites run, and each
// example is in its guide.
func TestGuides(t *testing.T) {
	t.Parallel()
	blocks := doctest.Blocks(t, "test/clients.TestGuides")
	for _, lang := range []struct{ fence, guide, folder string }{
		{"js", "docs/guides/javascript.md", "clients/js"},
		{"python", "docs/guides/python.md", "clients/python"},
	} {
		examples := map[string]string{} // names by text
		entries, err := os.ReadDir(filepath.Join(root, lang.folder, "examples"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !e.IsDir() {
				examples[string(read(t, lang.folder+"/examples/"+e.Name()))] = e.Name()
			}
		}
		for _, path := range []string{lang.guide, lang.folder + "/README.md"} {
			var programs []string
			for _, b := range doctest.In(blocks, path) {
				programs = append(programs, b.Text())
			}
			if path != lang.guide {
				for _, m := range regexp.MustCompile("(?ms)^```"+lang.fence+"\n(.*?)^```$").FindAllStringSubmatch(string(read(t, path)), -1) {
					programs = append(programs, m[1])
				}
			}
			found := map[string]bool{}
			for _, text := range programs {
				if examples[text] == "" {
					t.Errorf("%s has a program that is not in %s/examples:\n%s", path, lang.folder, text)
				}
				found[examples[text]] = true
			}
			for _, name := range examples {
				if path == lang.guide && !found[name] {
					t.Errorf("%s lacks the example %s", path, name)
				}
			}
		}
	}
}

// TestPackages: the packages have the licence of the repository, and the lock file names no place to load from, so that
// npm uses the registry of its settings.
func TestPackages(t *testing.T) {
	t.Parallel()
	licence := read(t, "LICENSE")
	for _, folder := range []string{"clients/js", "clients/python"} {
		if !bytes.Equal(read(t, folder+"/LICENSE"), licence) {
			t.Errorf("%s/LICENSE differs from LICENSE", folder)
		}
	}
	var pkg struct {
		License      string
		Dependencies map[string]string
	}
	if err := json.Unmarshal(read(t, "clients/js/package.json"), &pkg); err != nil {
		t.Fatal(err)
	}
	if pkg.License != "Apache-2.0" || len(pkg.Dependencies) > 0 {
		t.Errorf("package.json has the licence %s and the dependencies %v, want Apache-2.0 and none", pkg.License, pkg.Dependencies)
	}
	if !strings.Contains(string(read(t, "clients/python/pyproject.toml")), `license = "Apache-2.0"`) {
		t.Error("pyproject.toml lacks the licence Apache-2.0")
	}
	if strings.Contains(string(read(t, "clients/js/package-lock.json")), `"resolved"`) {
		t.Error("package-lock.json has addresses of packages: npm config set omit-lockfile-registry-resolved true, and write it again")
	}
}
