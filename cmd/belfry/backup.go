package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/backup"
)

func (c *cli) backupCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backup FOLDER",
		Short: "Copy all timers into a folder while Belfry runs",
		Long: `Copy every stream and bucket of Belfry into a new folder, while nodes run. Every
timer whose add was acknowledged before the command began is in the backup. The
folder is complete when it has the file manifest.json.

Copy the config file, certificates and secrets yourself: the backup does not have
them.`,
		Example: `  belfry backup /backups/belfry-$(date +%F)
  belfry restore /backups/belfry-2026-11-22 --data /var/lib/belfry`,
		Args: exactly(1),
	}
	var dir string
	check := func(args []string) error {
		dir = args[0]
		return nil
	}
	return c.following(cmd, check, func(ctx context.Context, s session) error {
		begun := time.Now()
		m, err := backup.Write(ctx, backup.Options{Conn: s.Conn(), Timeout: s.flags.requestTimeout(), Progress: c.streamDone("copied")}, dir)
		if errors.Is(err, fs.ErrExist) {
			return usagef("%v", err)
		}
		if err != nil {
			return err
		}
		return c.printBackup(m, dir, begun)
	})
}

func (c *cli) restoreCommand() *cobra.Command {
	var data string
	var replicas int
	profile := string(app.ProfileSafe)
	cmd := &cobra.Command{
		Use:   "restore FOLDER",
		Short: "Restore a backup into an empty account or data folder",
		Long: `Restore a backup into a NATS account without Belfry's streams, or with --data into
a new data folder of an embedded server. No node may run meanwhile. Start the
nodes when the command is done.

Timers that came due since the backup fire at once. Timers that fired after the
backup began fire again, with the same idempotency key.`,
		Example: `  belfry restore /backups/belfry-2026-11-22 --data /var/lib/belfry
  belfry restore /backups/belfry-2026-11-22 --nats-url nats://nats.internal:4222 --creds belfry.creds`,
		Args: exactly(1),
	}
	cmd.Flags().StringVar(&data, "data", "", "data folder of an embedded server that does not run, instead of --nats-url")
	cmd.Flags().StringVar(&profile, "profile", profile, "with --data: safe syncs each write to disk, fast does not")
	cmd.Flags().IntVar(&replicas, "replicas", 0, "replicas of every stream: 1, 3 or 5; 0 for as many as in the backup, or 1 with --data")
	f := &clientFlags{}
	server := pflag.NewFlagSet("", pflag.ContinueOnError)
	server.SortFlags = false
	f.add(server)
	cmd.Flags().AddFlagSet(server)
	timeoutOfRequests(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if replicas != 0 && replicas != 1 && replicas != 3 && replicas != 5 {
			return usagef("--replicas must be 1, 3 or 5")
		}
		o := backup.Options{Timeout: f.requestTimeout(), Replicas: replicas, Progress: c.streamDone("restored")}
		restore := func(ctx context.Context) error {
			begun := time.Now()
			m, err := backup.Restore(ctx, o, args[0])
			if err != nil {
				return err
			}
			return c.printBackup(m, args[0], begun)
		}
		if data == "" {
			f.fill(c.getenv)
			return f.connect(cmd.Context(), func(ctx context.Context, s session) error {
				o.Conn = s.Conn()
				return restore(ctx)
			})
		}
		var err error
		server.VisitAll(func(flag *pflag.Flag) {
			if err == nil && flag.Changed && flag.Name != "timeout" {
				err = usagef("--data is a folder to restore into, and --%s belongs to a NATS server: give one of them", flag.Name)
			}
		})
		if err != nil {
			return err
		}
		if o.Replicas == 0 {
			o.Replicas = 1
		}
		// Check first, so that a damaged backup creates no data folder.
		if _, err := backup.Read(args[0]); err != nil {
			return err
		}
		nc, end, err := app.OpenFolder(cmd.Context(), app.Options{Data: data, Profile: app.Profile(profile), Log: zerolog.Nop()})
		if err != nil {
			return err
		}
		o.Conn = nc
		return errors.Join(restore(cmd.Context()), end())
	}
	return c.printing(cmd)
}

// streamDone returns a progress function that prints each finished stream to standard
// error.
func (c *cli) streamDone(what string) func(backup.Stream) {
	return func(s backup.Stream) {
		if !c.json() {
			_, _ = fmt.Fprintf(c.err, "%s %s: %d messages, %s\n", what, s.Name, s.Messages, bytesText(int64(s.Bytes))) // progress only
		}
	}
}

func (c *cli) printBackup(m backup.Manifest, dir string, begun time.Time) error {
	if c.json() {
		return c.printJSON(m)
	}
	return c.printText("folder", dir, "as of", c.zone.show(m.Begun), "streams", fmt.Sprint(len(m.Streams)), "took", time.Since(begun).Round(time.Millisecond).String())
}
