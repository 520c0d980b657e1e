package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/gctune"
	"github.com/belfryio/belfry/internal/tracing"
)

func (c *cli) serveCommand() *cobra.Command {
	s := &settings{}
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a node, with an embedded NATS server or on yours",
		Long: `Run a node. Without --nats-url it runs an embedded NATS server with JetStream, which
any NATS client can use. Every flag is also a key of the config file and an
environment variable: --nats-listen is nats-listen and BELFRY_NATS_LISTEN. A flag
takes precedence over the environment, and the environment over the file.

An address that other hosts can reach requires authentication: nats-listen needs users
and TLS, http needs a token. --insecure removes this requirement.

SIGHUP, or a change of the config file, of a file that it names for a service, or of
a file with tokens, reloads the settings of services, what tenants may use,
callback-subjects, callback-hosts and the tokens of HTTP. SIGTERM and SIGINT drain the node and stop it within 10 seconds.

OTEL_EXPORTER_OTLP_ENDPOINT and the other variables of OpenTelemetry make the node send
traces; see docs/tracing.md.`,
		Example: `  belfry serve
  belfry serve --data /var/lib/belfry --nats-listen 10.0.0.5:4222 --nats-tls-cert cert.pem --nats-tls-key key.pem \
    --nats-user admin --nats-password-file admin.password
  belfry serve --nats-url nats://nats.internal:4222 --creds belfry.creds --replicas 3`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			// Until its end the process handles SIGHUP, which would otherwise end it. A signal during the
			// start becomes a reload once the node runs, and a signal during the stop has no effect.
			hangup := make(chan os.Signal, 1)
			signal.Notify(hangup, syscall.SIGHUP)
			defer signal.Stop(hangup)
			o, err := s.load(c)
			if err != nil {
				return err
			}
			var warnings []string
			o.Tracing, warnings = tracing.FromEnv(c.getenv)
			for _, w := range warnings {
				o.Log.Warn().Str("reason", w).Msg("a setting of traces is not used")
			}
			defer gctune.Start(cmd.Context())()
			defer routeStdLog(o.Log)()
			return c.serve(cmd.Context(), s, o, hangup)
		},
	}
	s.add(cmd)
	return cmd
}

// startNode starts a node. The node is nil after an error, and without one if the user stopped it while it started.
func startNode(ctx context.Context, o app.Options) (*app.App, error) {
	a, err := app.New(o)
	if err != nil {
		return nil, err
	}
	if err := a.Start(ctx); err != nil {
		if ctx.Err() != nil {
			err = nil
		}
		return nil, err
	}
	return a, nil
}

// serve runs the node until ctx ends. It reloads the configuration at each signal of hangup.
func (c *cli) serve(ctx context.Context, s *settings, o app.Options, hangup <-chan os.Signal) error {
	a, err := startNode(ctx, o)
	if a == nil {
		return err
	}
	err = c.announce(a, o)
	if err == nil {
		running, cancel := context.WithCancel(ctx)
		reloaded := make(chan struct{})
		go func() {
			defer close(reloaded)
			(&reloader{c: c, s: s, a: a, log: o.Log, hangup: hangup}).run(running)
		}()
		err = a.Wait(ctx)
		cancel()
		<-reloaded
	}
	if errors.Is(err, app.ErrHung) && ctx.Err() == nil {
		// Do not stop the node first: the hanging server cannot be stopped.
		o.Log.Warn().Err(err).Msg("starting this program again in place of the process; no acknowledged timer is lost")
		return replaceProcess(err)
	}
	return errors.Join(err, c.stop(ctx, a, o))
}

// exitMargin is the part of StopTimeout that is left for the end of the process.
const exitMargin = 250 * time.Millisecond

// stop stops the node. It returns within StopTimeout even if the node does not stop; the end
// of the process is then like a SIGKILL, which loses no acknowledged timer.
func (c *cli) stop(ctx context.Context, a *app.App, o app.Options) error {
	o.Log.Info().Msg("stopping")
	begun := time.Now()
	bound, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), app.StopTimeout-exitMargin, errors.New("the time for stopping is over"))
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- a.Stop(bound) }()
	select {
	case err := <-stopped:
		if err == nil {
			o.Log.Info().Dur("took_ms", time.Since(begun)).Msg("stopped")
		}
		return err
	case <-bound.Done():
		return fmt.Errorf("the node did not stop within %s (%s), so the process ends without it; no acknowledged timer is lost", time.Since(begun).Round(time.Millisecond), a.Ready().Phase)
	}
}

// announce prints the addresses and settings of the running node: as text on a terminal, else
// as one log line.
func (c *cli) announce(a *app.App, o app.Options) error {
	roles := make([]string, len(o.Roles))
	for i, r := range o.Roles {
		roles[i] = string(r)
	}
	console := consoleURL(a, &o)
	server, data, profile := "embedded", o.Data, string(o.Profile)
	if o.NATSURL != "" {
		server, data = "external", ""
	}
	if !isTerminal(c.out) {
		o.Log.Info().Str("version", version).Str("node", a.Node()).Str("nats", a.NATSURL()).Str("server", server).Str("http", a.HTTPAddr()).Str("console", console).
			Str("data", data).Str("profile", profile).Strs("roles", roles).
			Bool("allow_loopback", o.AllowLoopback).Bool("allow_private", o.AllowPrivate).Stringers("allow_prefixes", stringers(o.AllowPrefixes)).
			Msg("belfry is running")
		return nil
	}
	http := httpURL(a, &o)
	if http != "" {
		http += "  /healthz /readyz /metrics /v1"
	}
	if _, err := fmt.Fprintf(c.out, "belfry %s is running\n", version); err != nil {
		return err
	}
	return c.printText("  nats", a.NATSURL()+" ("+server+")", "  http", http, "  console", console, "  data", data, "  profile", profileText(o), "  node", a.Node(),
		"  roles", strings.Join(roles, ", "), "  callbacks", allowed(o), "  stop", "Ctrl-C")
}

// httpURL returns the address of the HTTP server; "" on a node without one.
func httpURL(a *app.App, o *app.Options) string {
	switch {
	case a.HTTPAddr() == "":
		return ""
	case o.HTTPTLS.Cert != "":
		return "https://" + a.HTTPAddr()
	}
	return "http://" + a.HTTPAddr()
}

// consoleURL returns the address of the console; "" on a node without one.
func consoleURL(a *app.App, o *app.Options) string {
	if a.HTTPAddr() == "" || !slices.Contains(o.Roles, app.RoleRouter) {
		return ""
	}
	return httpURL(a, o) + "/"
}

// profileText describes the failures that acknowledged timers survive.
func profileText(o app.Options) string {
	switch {
	case o.Profile == app.ProfileFast:
		return "fast: power loss may lose timers that were acknowledged in the last minutes"
	case o.NATSURL == "":
		return "safe: every write is synced to disk before it is acknowledged"
	case o.Replicas >= 3:
		return fmt.Sprintf("safe: every write is on a majority of %d servers before it is acknowledged", o.Replicas)
	}
	return "safe, if the server syncs every write"
}

// allowed returns the list of the addresses to which callbacks may connect, for a log line.
func allowed(o app.Options) string {
	what := []string{"public addresses"}
	if o.AllowLoopback {
		what = append(what, "loopback (this host)")
	}
	if o.AllowPrivate {
		what = append(what, "private networks")
	}
	for _, p := range o.AllowPrefixes {
		what = append(what, p.String())
	}
	return "may connect to " + strings.Join(what, ", ")
}

func stringers[T fmt.Stringer](list []T) []fmt.Stringer {
	out := make([]fmt.Stringer, len(list))
	for i, v := range list {
		out[i] = v
	}
	return out
}
