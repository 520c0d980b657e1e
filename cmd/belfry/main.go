// Command belfry runs a Belfry node (serve) and talks to one (add, get, cancel,
// reschedule, ls, tail, dead).
//
// Each command is a file of its own; settings.go is how flags, environment and
// config file become settings, exit.go what a command's error is to its caller.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/rs/zerolog"
)

// version is that of the release; the commit is in the build information.
const version = "0.1.0"

func main() {
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00" // timers are about milliseconds
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first signal the next one ends the process the usual way.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], process{in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv}))
}

// process is what a command may use of the process that it runs in.
type process struct {
	in       io.Reader
	out, err io.Writer
	getenv   func(string) string
}

// run is the whole program but for signals and the exit itself.
func run(ctx context.Context, args []string, p process) int {
	c := &cli{process: p}
	root := c.rootCommand()
	root.SetArgs(args)
	root.SetIn(p.in)
	root.SetOut(p.out)
	root.SetErr(p.err)
	return c.report(root.ExecuteContext(ctx))
}
