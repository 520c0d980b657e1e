// Command belfry-bench measures Belfry. It is a program of its own because it draws
// plots: package internal/bench/report carries a plot library and its fonts, which the
// program belfry must not contain (test/layout checks that). The short form of it is
// "belfry bench".
//
// workload.go has the commands that run one workload; compare.go, table.go and curves.go run many.
// "belfry-bench child" is a node or a nats-server that the other commands start.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/belfryio/belfry/internal/cmdline"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	t := &tool{out: os.Stdout, err: os.Stderr}
	err := t.rootCommand().ExecuteContext(ctx)
	os.Exit(cmdline.Report(t.err, "belfry-bench", t.format, err))
}

// tool is one run of the program.
type tool struct {
	out, err io.Writer
	// format is how results and errors are printed, see cmdline.AddOutput.
	format string
}

func (t *tool) json() bool { return t.format == cmdline.FormatJSON }
