// Package doctest compares the documents with the program, for tests. Table says which test runs each
// code block of the documents, and Blocks gives a test its blocks. Flags compares the commands of a
// program with docs/reference.md: each command has a section or is named in its parent's, and each
// flag is there with its default.
package doctest

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Sections returns the text of each section of a Markdown file by its title, without the
// quotes of code.
func Sections(t *testing.T, path string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sections, title := map[string]string{}, ""
	for line := range strings.Lines(string(b)) {
		if name, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			title = strings.Trim(strings.TrimSpace(name), "`")
			continue
		}
		sections[title] += line
	}
	return sections
}

// Row returns the line of a table whose first cell names name, or "".
func Row(section, name string) string {
	for line := range strings.Lines(section) {
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		if strings.HasPrefix(line, "| ") && slices.Contains(strings.Split(first, ", "), "`"+name+"`") {
			return line
		}
	}
	return ""
}

// Place is where a flag is documented.
type Place struct {
	Title string // of the section
	Text  string // the section
	Key   string // how the section writes the flag: --http, or http in the table of settings
}

// Flags walks the commands below root. elsewhere, if not nil, returns the place of a flag
// that the section of its command does not name.
func Flags(t *testing.T, root *cobra.Command, ref map[string]string, elsewhere func(cmd *cobra.Command, f *pflag.Flag) (Place, bool)) {
	t.Helper()
	root.InitDefaultHelpCmd()
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		if !cmd.Runnable() || cmd.Hidden || cmd.Name() == "help" || !cmd.HasParent() {
			return
		}
		name := cmd.CommandPath()
		section, ok := ref[name]
		if !ok {
			section = ref[cmd.Parent().CommandPath()]
			if !regexp.MustCompile("`(" + name + "[ `]|" + cmd.Name() + "`)").MatchString(section) {
				t.Errorf("docs/reference.md has no section %q, nor is the command in its parent's", name)
				return
			}
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			place := Place{name, section, "--" + f.Name}
			if !strings.Contains(section, "`--"+f.Name+"`") && elsewhere != nil {
				if p, found := elsewhere(cmd, f); found {
					place = p
				}
			}
			if !strings.Contains(place.Text, "`"+place.Key+"`") && !strings.Contains(place.Text, "`--"+f.Name+"`") {
				t.Errorf("flag --%s of %q is not in section %q", f.Name, name, place.Title)
				return
			}
			if line := Row(place.Text, place.Key); line != "" && !hasDefault(line, f) {
				t.Errorf("the row of --%s of %q lacks its default %q: %s", f.Name, name, f.DefValue, line)
			}
			if f.Shorthand != "" && !strings.Contains(place.Text, "`-"+f.Shorthand+"`") {
				t.Errorf("-%s of --%s of %q is not in section %q", f.Shorthand, f.Name, name, place.Title)
			}
		})
	}
	walk(root)
}

func hasDefault(row string, f *pflag.Flag) bool {
	def := strings.Trim(f.DefValue, "[]")
	return def == "" || def == "0" || strings.Contains(row, "`"+def+"`")
}
