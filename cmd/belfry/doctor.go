package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/internal/doctor"
)

// unhealthyError reports that doctor or repair found something that must be repaired.
type unhealthyError struct{ n int }

func (e *unhealthyError) Error() string {
	return fmt.Sprintf("%d of the findings must be repaired", e.n)
}

func (*unhealthyError) Is(target error) bool { return target == cmdline.ErrUnhealthy }

func (c *cli) doctorCommand() *cobra.Command {
	s := &settings{}
	var sysURL, sysCreds string
	cmd := c.printing(&cobra.Command{
		Use:   "doctor",
		Short: "Check the NATS installation, and show how to fix each problem",
		Long: `Check the NATS installation of a node with the same flags, environment and config
file as "belfry serve": the server's version and limits, JetStream, the failures that
an acknowledged write survives, replicas, permissions, clocks, and the streams against
the settings. The command only reads. Without nats-url, $NATS_URL and nats-listen it
checks the embedded server of a running node.

A server reports its settings only to its system account. Give a user of that account
with --sys-creds or --sys-url.

Each finding is ok, unknown (the user lacks the permissions for the check), warning or
error. The exit code is 7 if a finding is an error, and otherwise 0.`,
		Example: `  belfry doctor
  belfry doctor --nats-url nats://nats.internal:4222 --creds belfry.creds --replicas 3 --sys-creds sys.creds`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := s.load(c)
			if err != nil {
				return err
			}
			// Use $NATS_URL, like the other commands that connect to running nodes.
			if url := c.getenv("NATS_URL"); url != "" && o.NATSURL == "" && !s.given["nats-listen"] {
				o.NATSURL = url
			}
			return c.doctor(cmd.Context(), o, !s.given["profile"], sysURL, sysCreds)
		},
	})
	cmd.Flags().StringVar(&sysURL, "sys-url", "", "NATS URL of a user of the system account (default: nats-url, with --sys-creds)")
	cmd.Flags().StringVar(&sysCreds, "sys-creds", "", "NATS credentials file of a user of the system account")
	s.add(cmd)
	return cmd
}

// doctor examines the setup and prints the findings. With nodesDecide no setting names the
// profile, and the doctor uses the profile that the running nodes announce.
func (c *cli) doctor(ctx context.Context, o app.Options, nodesDecide bool, sysURL, sysCreds string) error {
	nc, err := app.Dial(o, "belfry doctor")
	if err != nil {
		return err
	}
	defer nc.Close()
	onLoopback := app.OnLoopback(o.NATSListen)
	if o.NATSURL != "" {
		onLoopback = app.EmbeddedOnLoopback(ctx, nc)
	}
	d := doctor.Options{Conn: nc, Store: o.StoreConfig(), Safe: o.Profile == app.ProfileSafe, NodesDecide: nodesDecide, Loopback: onLoopback, Timeout: o.Timeout}
	if sysURL != "" || sysCreds != "" {
		if d.Sys, err = dialSystem(o, sysURL, sysCreds); err != nil {
			return err
		}
		defer d.Sys.Close()
	}
	findings, err := doctor.Examine(ctx, d)
	if err != nil {
		return err
	}
	return c.printFindings(findings)
}

func dialSystem(o app.Options, url, creds string) (*nats.Conn, error) {
	o.Creds = creds
	switch {
	case url != "":
		o.NATSURL = url
	case o.NATSURL == "":
		o.NATSURL = "nats://" + o.NATSListen
	}
	nc, err := app.Dial(o, "belfry doctor (system account)")
	if err != nil {
		return nil, fmt.Errorf("system account: %w", err)
	}
	return nc, nil
}

func (c *cli) printFindings(findings []doctor.Finding) error {
	bad := 0
	for _, f := range findings {
		if f.Level == doctor.Error {
			bad++
		}
	}
	if c.json() {
		if err := c.printJSON(map[string]any{"findings": findings, "errors": bad}); err != nil {
			return err
		}
	} else {
		t := table{c.out, []int{7, 11}}
		for _, f := range findings {
			if err := t.row(strings.ToUpper(string(f.Level)), f.Check, f.Text); err != nil {
				return err
			}
			if f.Do != "" {
				if err := t.row("", "", "-> "+f.Do); err != nil {
					return err
				}
			}
		}
	}
	if bad > 0 {
		return &unhealthyError{bad}
	}
	return nil
}
