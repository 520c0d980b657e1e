package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/gctune"
)

// devFlags are the flags of belfry dev.
type devFlags struct {
	nats, http, level string
	frozen            bool
}

func (c *cli) devCommand() *cobra.Command {
	f := devFlags{}
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a node for trying things out, with a clock that can be moved",
		Long: `Run a node with an embedded NATS server in a temporary folder, which is removed at the end:
after SIGINT (Ctrl-C), SIGTERM or SIGHUP (the terminal was closed).
Callbacks may connect to this host. The clock runs, and "belfry clock" moves it: a timer in
30 days fires at once. With --frozen it stands still between moves.

The store is a development store: "belfry serve" does not open it, and "belfry dev" opens no
other.`,
		Example: `  belfry dev
  belfry add --in 30d --svc orders --callback http://127.0.0.1:3000/remind
  belfry clock advance 30d`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			if !signal.Ignored(syscall.SIGHUP) { // nohup lets the process ignore it
				var stop context.CancelFunc
				ctx, stop = signal.NotifyContext(ctx, syscall.SIGHUP)
				defer stop()
			}
			defer gctune.Start(ctx)()
			return c.dev(ctx, f)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&f.nats, "nats-listen", app.DefaultNATSListen, "listen address of the embedded server; port 0 for a free one")
	fs.StringVar(&f.http, "http", app.DefaultHTTP, "listen address of the console and the HTTP API; port 0 for a free one")
	fs.BoolVar(&f.frozen, "frozen", false, "let the clock stand still between moves")
	fs.StringVar(&f.level, "log-level", "warn", "debug, info, warn or error")
	return cmd
}

// dev runs a development node until ctx ends.
func (c *cli) dev(ctx context.Context, f devFlags) (err error) {
	s := settings{logLevel: f.level, logFormat: "auto"}
	o := app.Options{
		NATSListen: f.nats, HTTP: f.http, Profile: app.ProfileFast, AllowLoopback: true, Development: true, Frozen: f.frozen, Version: version, Commit: commit(debug.ReadBuildInfo()),
	}
	if o.Log, err = s.logger(c); err != nil {
		return err
	}
	for _, addr := range []string{f.nats, f.http} {
		if !app.OnLoopback(addr) {
			return usagef("%s is not a loopback address: belfry dev serves this host only", addr)
		}
	}
	if o.Data, err = os.MkdirTemp("", "belfry-dev-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(o.Data)) }()
	defer routeStdLog(o.Log)()
	a, err := startNode(ctx, o)
	if a == nil {
		return err
	}
	clock := "runs; belfry clock advance 30d"
	if f.frozen {
		clock = "frozen; belfry clock advance 30d"
	}
	if _, err = fmt.Fprintf(c.out, "belfry %s runs for development\n", version); err == nil {
		err = c.printText("  nats", a.NATSURL(), "  console", "http://"+a.HTTPAddr()+"/", "  data", o.Data+" (removed at the end)", "  clock", clock, "  stop", "Ctrl-C")
	}
	if err == nil {
		err = a.Wait(ctx)
	}
	return errors.Join(err, c.stop(ctx, a, o))
}
