package layout

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

const root = "../.."

// files returns the paths of all files that git tracks, or would add, whose names end in
// one of the endings. They are relative to the root of the module.
func files(t *testing.T, endings ...string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", "ls-files", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	var all []string
	if err == nil {
		all = strings.Fields(string(out))
	} else { // an archive, without git
		err = filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
			rel, rerr := filepath.Rel(root, path)
			all = append(all, rel)
			if err == nil {
				err = rerr
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var found []string
	for _, path := range all {
		for _, ending := range endings {
			if _, err := os.Stat(filepath.Join(root, path)); err == nil && strings.HasSuffix(path, ending) {
				found = append(found, filepath.ToSlash(path))
			}
		}
	}
	if len(found) < 10 {
		t.Fatalf("found only the files %v", found)
	}
	return found
}

var (
	linkPattern    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	headingPattern = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	fencePattern   = regexp.MustCompile("(?ms)^ *```.*?^ *```")
)

// TestLinks: each relative link in a Markdown file leads to a file, and to a heading of
// it if the link names one.
func TestLinks(t *testing.T) {
	t.Parallel()
	links := 0
	for _, path := range files(t, ".md") {
		for _, m := range linkPattern.FindAllStringSubmatch(markdown(t, path), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			links++
			file, anchor, _ := strings.Cut(m[1], "#")
			target := path
			if file != "" {
				target = filepath.ToSlash(filepath.Join(filepath.Dir(path), file))
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s: the target of link %s does not exist", path, m[1])
				continue
			}
			if anchor != "" && !anchors(markdown(t, target))[anchor] {
				t.Errorf("%s: the link %s names a heading that %s does not have", path, m[1], target)
			}
		}
	}
	if links < 50 {
		t.Errorf("only %d links were found", links)
	}
}

// markdown returns a Markdown file without its code blocks.
func markdown(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return fencePattern.ReplaceAllString(string(b), "")
}

// anchors returns the names that GitHub gives to the headings of a text.
func anchors(text string) map[string]bool {
	out := map[string]bool{}
	for _, m := range headingPattern.FindAllStringSubmatch(text, -1) {
		title := linkPattern.ReplaceAllString(m[1], "")
		out[strings.Map(func(r rune) rune {
			switch {
			case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
				return unicode.ToLower(r)
			case r == ' ':
				return '-'
			}
			return -1
		}, strings.TrimSpace(title))] = true
	}
	return out
}

// TestBenchCommands: the docs name workloads as commands of belfry-bench, not of belfry.
func TestBenchCommands(t *testing.T) {
	t.Parallel()
	wrong := regexp.MustCompile(`belfry bench [a-z]+`)
	for _, path := range files(t, ".md", ".yml", ".yaml") {
		b, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range wrong.FindAllString(string(b), -1) {
			t.Errorf("%s: %q is a command of belfry-bench", path, m)
		}
	}
}
