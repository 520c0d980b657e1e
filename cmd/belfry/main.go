// Command belfry runs a Belfry node (serve). Its other commands are for operators and users:
// most of them connect to running nodes.
//
// Each command has its own file; root.go lists the commands. settings.go reads the settings of
// a node from flags, environment and config file. client.go connects the other commands. exit.go
// documents the exit codes.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/rs/zerolog"
)

// version is the version of the release. The build of a release sets it (-ldflags -X), "go install" of a
// module has that of the module, and a build of another commit has that of the next release.
var version = "0.1.0"

func main() {
	zerolog.TimeFieldFormat = "2006-01-02T15:04:05.000Z07:00" // milliseconds, because they matter for timers
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	version = releaseOf(debug.ReadBuildInfo())
	os.Exit(run(ctx, os.Args[1:], process{in: os.Stdin, out: os.Stdout, err: os.Stderr, lookupEnv: os.LookupEnv}))
}

// process is the environment of a command: arguments, streams and variables. Tests replace it.
type process struct {
	in       io.Reader
	out, err io.Writer
	// lookupEnv returns a variable, and whether it is set.
	lookupEnv func(string) (string, bool)
}

// getenv returns a variable; "" if it is not set.
func (p process) getenv(name string) string {
	value, _ := p.lookupEnv(name)
	return value
}

// run executes the command line and returns the exit code. main handles signals and exits.
func run(ctx context.Context, args []string, p process) int {
	c := &cli{process: p}
	root := c.rootCommand()
	root.SetArgs(args)
	root.SetIn(p.in)
	root.SetOut(p.out)
	root.SetErr(p.err)
	refuseUnknownShells(root, args)
	return c.report(root.ExecuteContext(ctx))
}
