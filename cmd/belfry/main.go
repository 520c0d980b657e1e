// Command belfry runs a Belfry node (serve) and talks to one (add, get, cancel,
// reschedule, ls, tail, dead).
//
// Each command has its own file. settings.go reads the settings from flags, environment and
// config file. exit.go documents the exit codes.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/rs/zerolog"
)

// version is the version of the release. The build information has the commit.
const version = "0.1.0"

func main() {
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00" // milliseconds, because they matter for timers
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], process{in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv}))
}

// process is the environment of a command: arguments, streams and variables. Tests replace it.
type process struct {
	in       io.Reader
	out, err io.Writer
	getenv   func(string) string
}

// run runs the program, except for signal handling and the exit, and returns the exit code.
func run(ctx context.Context, args []string, p process) int {
	c := &cli{process: p}
	root := c.rootCommand()
	root.SetArgs(args)
	root.SetIn(p.in)
	root.SetOut(p.out)
	root.SetErr(p.err)
	return c.report(root.ExecuteContext(ctx))
}
