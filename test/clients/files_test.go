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

// languages are the languages of the guides: how their code blocks begin, the files of their examples (a pattern), and
// the documents that have them.
var languages = []struct {
	fence, files string
	documents    []string
}{
	{"js", "clients/js/examples/*.js", []string{"docs/guides/javascript.md", "docs/guides/nats.md", "clients/js/README.md"}},
	{"python", "clients/python/examples/*.py", []string{"docs/guides/python.md", "docs/guides/nats.md", "clients/python/README.md"}},
	{"go", "examples/*/*.go", []string{"docs/guides/getting-started.md", "docs/guides/callbacks.md", "docs/guides/nats.md", "docs/guides/workers.md"}},
}

// TestGuides: each program in the guides and in the READMEs of the packages is an example, which the suites run, and each
// example is in a guide.
func TestGuides(t *testing.T) {
	t.Parallel()
	blocks := doctest.Blocks(t, "test/clients.TestGuides")
	for _, lang := range languages {
		examples := map[string]string{} // names by text
		files, err := filepath.Glob(filepath.Join(root, lang.files))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no examples (%v)", lang.files, err)
		}
		for _, path := range files {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			examples[string(b)] = path
		}
		found := map[string]bool{}
		for _, path := range lang.documents {
			programs := programs(t, blocks, path, lang.fence)
			if len(programs) == 0 {
				t.Errorf("%s has no program in %s", path, lang.fence)
			}
			for _, text := range programs {
				if examples[text] == "" {
					t.Errorf("%s has a program that is not in %s:\n%s", path, lang.files, text)
				}
				found[examples[text]] = true
			}
		}
		for _, path := range examples {
			if !found[path] {
				t.Errorf("no guide has the example %s", path)
			}
		}
	}
}

// programs returns the code blocks of a language in a document.
func programs(t *testing.T, blocks []*doctest.Block, path, fence string) (texts []string) {
	t.Helper()
	for _, b := range doctest.In(blocks, path) {
		if b.Lang == fence {
			texts = append(texts, b.Text())
		}
	}
	if strings.HasPrefix(path, "docs/") {
		return texts
	}
	for _, m := range regexp.MustCompile("(?ms)^```"+fence+"\n(.*?)^```$").FindAllStringSubmatch(string(read(t, path)), -1) {
		texts = append(texts, m[1])
	}
	return texts
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
