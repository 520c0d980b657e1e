// Package cmdline has the parts of the command line that the programs of this module share:
// flag types, usage errors, exit codes, and the one line that reports an error.
package cmdline

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/belfryio/belfry/schemas"
)

// The values of the flag --output.
const (
	FormatText = "text"
	FormatJSON = "json"
)

// UsageError is a mistake of the caller that the program found by itself.
type UsageError struct{ text string }

func (e *UsageError) Error() string { return e.text }

// Usagef makes a UsageError.
func Usagef(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// Group is the RunE of a command that only has subcommands. Without arguments it prints
// the help, and for an unknown subcommand it suggests similar ones.
func Group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	cmd.SuggestionsMinimumDistance = 2 // letters that may be wrong
	hint := ""
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		// People rarely mistype the first letter.
		slices.SortStableFunc(s, func(a, b string) int {
			return cmp.Compare(commonPrefix(b, args[0]), commonPrefix(a, args[0]))
		})
		if commonPrefix(s[0], args[0]) > 0 {
			s = slices.DeleteFunc(s, func(other string) bool { return commonPrefix(other, args[0]) == 0 })
		}
		hint = "; did you mean " + strings.Join(s, " or ") + "?"
	}
	return Usagef("unknown command %q for %q%s", args[0], cmd.CommandPath(), hint)
}

// commonPrefix returns the number of bytes with which both begin.
func commonPrefix(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// Exactly accepts n arguments, which the command's use line names.
func Exactly(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == n {
			return nil
		}
		return Usagef("got %d arguments; usage: %s", len(args), cmd.UseLine())
	}
}

// AtMost accepts no more than n arguments, which the command's use line names.
func AtMost(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) <= n {
			return nil
		}
		return Usagef("got %d arguments; usage: %s", len(args), cmd.UseLine())
	}
}

// FlagError makes a usage error of a flag that could not be parsed.
func FlagError(cmd *cobra.Command, err error) error {
	return Usagef("%v (see %s --help)", err, cmd.CommandPath())
}

// AddOutput adds the flag --output, -o, to a command. Its value is FormatText or
// FormatJSON.
func AddOutput(cmd *cobra.Command, to *string) {
	cmd.Flags().VarP(format{to}, "output", "o", "output format: text, or json (one object per line)")
}

type format struct{ to *string }

func (v format) String() string {
	if v.to == nil || *v.to == "" {
		return FormatText
	}
	return *v.to
}
func (format) Type() string { return "text|json" }
func (v format) Set(s string) error {
	if s != FormatText && s != FormatJSON {
		return fmt.Errorf("must be text or json")
	}
	*v.to = s
	return nil
}

// Duration is a flag that accepts the durations of ParseDuration: 10s, 1h30m, 3d, P30D.
// Negative durations are refused.
func Duration(to *time.Duration) pflag.Value { return &duration{to: to} }

type duration struct {
	to    *time.Duration
	given bool
}

// String returns the value in a form that Set accepts. A default of 0 is "", so that the help does not show it.
func (v *duration) String() string {
	if v.to == nil || *v.to == 0 && !v.given {
		return ""
	}
	return schemas.FormatDuration(*v.to)
}
func (*duration) Type() string { return "duration" }
func (v *duration) Set(s string) error {
	d, err := ParseDuration(s)
	if err != nil {
		return err
	}
	if d < 0 {
		return fmt.Errorf("must not be negative")
	}
	*v.to, v.given = d, true
	return nil
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && (isatty.IsTerminal(f.Fd()) || isatty.IsCygwinTerminal(f.Fd()))
}
