package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/schemas"
)

const defaultNATSURL = "nats://" + app.DefaultNATSListen

// clientFlags say which server a command talks to.
type clientFlags struct {
	url, creds string
	tls        app.TLS
	timeout    time.Duration
}

func (f *clientFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.url, "nats-url", "", "NATS server (default $BELFRY_NATS_URL, $NATS_URL, or "+defaultNATSURL+")")
	fs.StringVar(&f.creds, "creds", "", "NATS credentials file (default $BELFRY_CREDS)")
	fs.StringVar(&f.tls.CA, "tls-ca", "", "PEM file of a CA to trust (default $BELFRY_TLS_CA)")
	fs.StringVar(&f.tls.Cert, "tls-cert", "", "PEM file of a client certificate (default $BELFRY_TLS_CERT)")
	fs.StringVar(&f.tls.Key, "tls-key", "", "PEM file of the certificate's key (default $BELFRY_TLS_KEY)")
	f.timeout = belfry.DefaultTimeout
	fs.Var(durationValue{&f.timeout}, "timeout", "how long a call may take")
}

// fill takes from the environment what no flag gave.
func (f *clientFlags) fill(getenv func(string) string) {
	or := func(p *string, values ...string) {
		for _, v := range values {
			if *p == "" {
				*p = v
			}
		}
	}
	or(&f.url, getenv("BELFRY_NATS_URL"), getenv("NATS_URL"), defaultNATSURL)
	or(&f.creds, getenv("BELFRY_CREDS"))
	or(&f.tls.CA, getenv("BELFRY_TLS_CA"))
	or(&f.tls.Cert, getenv("BELFRY_TLS_CERT"))
	or(&f.tls.Key, getenv("BELFRY_TLS_KEY"))
}

func (f *clientFlags) options() ([]nats.Option, error) {
	opts := []nats.Option{nats.Name("belfry cli")}
	if f.creds != "" {
		if _, err := os.Stat(f.creds); err != nil {
			return nil, usagef("--creds: %v", err)
		}
		opts = append(opts, nats.UserCredentials(f.creds))
	}
	config, err := f.tls.Config()
	if err != nil {
		return nil, err
	}
	if config != nil {
		opts = append(opts, nats.Secure(config))
	}
	return opts, nil
}

// session is a connected client; call makes a context for one call.
type session struct {
	*belfry.Client
	flags *clientFlags
}

func (s session) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, s.flags.timeout, errors.New("no answer after "+s.flags.timeout.String()))
}

// talking makes a command of two functions: check looks at the arguments before
// anybody is asked, do has a client.
func (c *cli) talking(cmd *cobra.Command, check func(args []string) error, do func(ctx context.Context, s session) error) *cobra.Command {
	f := &clientFlags{}
	f.add(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.fill(c.getenv)
		if f.timeout <= 0 {
			return usagef("--timeout must be more than 0")
		}
		if err := check(args); err != nil {
			return err
		}
		opts, err := f.options()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), f.timeout)
		client, err := belfry.Connect(ctx, f.url, opts...)
		cancel()
		if err != nil {
			return schemas.Errorf(schemas.CodeUnavailable, "NATS server %s cannot be reached: %v; is \"belfry serve\" running? (--nats-url names another server)", app.RedactURLs(f.url), cause(err))
		}
		defer client.Close()
		return do(cmd.Context(), session{client, f})
	}
	return c.printing(cmd)
}

// cause is the innermost error: what the network said.
func cause(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

// timerRef names a timer on the command line: a timer id, or a CloudEvent's id
// with --source.
type timerRef struct {
	source string
	id     schemas.TimerID // once resolved
}

func (r *timerRef) add(fs *pflag.FlagSet) {
	fs.StringVar(&r.source, "source", "", "the CloudEvent's source: ID is then the CloudEvent's id")
}

// resolve finds the timer that the first argument names.
func (r *timerRef) resolve(args []string) error {
	id := args[0]
	if r.source != "" {
		if id == "" {
			return usagef("the id is empty")
		}
		r.id = schemas.NewTimerID(r.source, id)
		return nil
	}
	var err error
	if r.id, err = schemas.ParseTimerID(id); err != nil {
		return usagef("%v; for a CloudEvent's id give also --source", err)
	}
	return nil
}
