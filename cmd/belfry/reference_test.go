package main

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/internal/doctest"
)

// reference is docs/reference.md, by the titles of its sections.
func reference(t *testing.T) map[string]string {
	t.Helper()
	return doctest.Sections(t, "../../docs/reference.md")
}

const (
	sectionConnection = "Flags for the connection"
	sectionSettings   = "Settings"
	sectionService    = "Settings of a service"
	sectionExit       = "Exit codes"
)

// TestReferenceHasEveryFlag: each command has a section, or its parent's section names
// it. The section, or a section of common flags, has all flags of the command with their
// defaults.
func TestReferenceHasEveryFlag(t *testing.T) {
	t.Parallel()
	ref := reference(t)
	c := &cli{process: process{lookupEnv: func(string) (string, bool) { return "", false }}}
	settingsOf := c.serveCommand().Flags()
	var connection cobra.Command
	c.talking(&connection, nil, nil)
	doctest.Flags(t, c.rootCommand(), ref, func(cmd *cobra.Command, f *pflag.Flag) (doctest.Place, bool) {
		switch name := cmd.CommandPath(); {
		case settingsOf.Lookup(f.Name) != nil && cmd.Flags().Lookup("config") != nil:
			return doctest.Place{Title: sectionSettings, Text: ref[sectionSettings], Key: f.Name}, true
		case connection.Flags().Lookup(f.Name) != nil:
			text := ref[sectionConnection]
			if f.Name != "output" && f.Name != "time-zone" && !strings.Contains(text, "`"+strings.TrimPrefix(name, "belfry ")+"`") {
				t.Errorf("section %q does not name the command %q", sectionConnection, name)
			}
			return doctest.Place{Title: sectionConnection, Text: text, Key: "--" + f.Name}, true
		}
		return doctest.Place{}, false
	})
}

// TestReferenceHasEverySetting: the reference has every key of the file and every
// environment variable.
func TestReferenceHasEverySetting(t *testing.T) {
	t.Parallel()
	section := reference(t)[sectionSettings]
	s := &settings{}
	s.add(&cobra.Command{})
	for _, name := range s.names {
		if line := doctest.Row(section, name); !strings.Contains(line, "`"+envName(name)+"`") {
			t.Errorf("setting %s has no row in the reference that names its variable %s", name, envName(name))
		}
	}
	for line := range strings.Lines(section) {
		name, ok := strings.CutPrefix(line, "| `")
		if name, _, _ = strings.Cut(name, "`"); ok && !slices.Contains(s.names, name) {
			t.Errorf("the reference has setting %s, which does not exist", name)
		}
	}
}

// TestReferenceHasEverySettingOfAService: each key of a service has a row, and the
// example is valid.
func TestReferenceHasEverySettingOfAService(t *testing.T) {
	t.Parallel()
	section := reference(t)[sectionService]
	for key := range serviceKeys {
		if doctest.Row(section, key) == "" {
			t.Errorf("setting %s of a service has no row in the reference", key)
		}
	}
	for line := range strings.Lines(section) {
		name, ok := strings.CutPrefix(line, "| `")
		if name, _, _ = strings.Cut(name, "`"); ok && serviceKeys[name] == nil {
			t.Errorf("the reference has setting %s of a service, which does not exist", name)
		}
	}
}

// TestReferenceHasEveryVariable: the reference has every environment variable that a
// command reads.
func TestReferenceHasEveryVariable(t *testing.T) {
	t.Parallel()
	asked := map[string]bool{}
	c := &cli{process: process{lookupEnv: func(name string) (string, bool) {
		asked[name] = true
		return "", false
	}}}
	(&clientFlags{}).fill(c.getenv)
	s := &settings{}
	s.add(&cobra.Command{})
	if _, err := s.load(c); err == nil { // load has read all variables by then
		t.Error("load without HOME: got no error, want one, because there is no default data folder")
	}
	if len(asked) < len(s.names) {
		t.Fatalf("load read %d variables, want at least %d, one for each setting", len(asked), len(s.names))
	}
	ref := reference(t)
	for name := range asked {
		if !strings.Contains(ref[sectionSettings]+ref[sectionConnection], "`"+name+"`") {
			t.Errorf("the reference does not name the variable %s", name)
		}
	}
}

// TestReferenceHasEveryExitCode: the table has every exit code with its JSON name, as
// belfry help exit-codes prints them.
func TestReferenceHasEveryExitCode(t *testing.T) {
	t.Parallel()
	section := reference(t)[sectionExit]
	rows := regexp.MustCompile("(?m)^\\| `(\\d+)` \\|").FindAllStringSubmatch(section, -1)
	if len(rows) != exitDiffers+1 {
		t.Errorf("the reference has %d exit codes, want %d", len(rows), exitDiffers+1)
	}
	var help bytes.Buffer
	topic := exitCodesTopic()
	help.WriteString(strings.Join(strings.Fields(topic.Long), " "))
	for code := exitOK; code <= exitDiffers; code++ {
		line := doctest.Row(section, fmt.Sprint(code))
		if word := cmdline.CodeNames[code]; line == "" || word != "" && code != exitRefused && !strings.Contains(line, "`"+word+"`") {
			t.Errorf("exit code %d: the reference has the row %q, want the word %q in it", code, line, cmdline.CodeNames[code])
		}
		if text := strings.TrimSpace(strings.Split(line+"|||", "|")[2]); !strings.Contains(help.String(), text) {
			t.Errorf("exit code %d: the reference has the text %q, which belfry help exit-codes lacks: %s", code, text, help.String())
		}
	}
}
