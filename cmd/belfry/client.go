package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/synadia-io/orbit.go/natscontext"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/schemas"
)

const defaultNATSURL = "nats://" + app.DefaultNATSListen

// clientFlags holds the flags for the connection to a server.
type clientFlags struct {
	url, creds, nkey string
	// context is the name or the path of a context of the NATS command line tool.
	context string
	inbox   string
	// user and password, or token, log in without a credentials file. The secrets come
	// from files or the environment.
	user, password, passwordFile, token, tokenFile string
	tls                                            app.TLS
	// timeout bounds the whole command; 0 means the default timeout for each request.
	timeout time.Duration
}

func (f *clientFlags) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.url, "nats-url", "", "NATS server (default $BELFRY_NATS_URL, $NATS_URL, or "+defaultNATSURL+")")
	fs.StringVar(&f.context, "context", "", "context of the nats command line tool: a name, or the path of its file (default $BELFRY_CONTEXT, or $NATS_CONTEXT; not if a URL is set)")
	fs.StringVar(&f.creds, "creds", "", "NATS credentials file (default $BELFRY_CREDS, or $NATS_CREDS)")
	fs.StringVar(&f.nkey, "nkey", "", "file with the seed of an NKey (default $BELFRY_NKEY, or $NATS_NKEY)")
	fs.StringVar(&f.user, "user", "", "user name, if the URL has none (default $BELFRY_USER, or $NATS_USER)")
	fs.StringVar(&f.passwordFile, "password-file", "", "file with the user's password (default $BELFRY_PASSWORD_FILE, or the password in $BELFRY_PASSWORD)")
	fs.StringVar(&f.tokenFile, "token-file", "", "file with a token (default $BELFRY_TOKEN_FILE, or the token in $BELFRY_TOKEN)")
	fs.StringVar(&f.tls.CA, "tls-ca", "", "PEM file of a CA to trust (default $BELFRY_TLS_CA)")
	fs.StringVar(&f.tls.Cert, "tls-cert", "", "PEM file of a client certificate (default $BELFRY_TLS_CERT)")
	fs.StringVar(&f.tls.Key, "tls-key", "", "PEM file of the certificate's key (default $BELFRY_TLS_KEY)")
	fs.StringVar(&f.inbox, "inbox-prefix", "", "prefix of reply subjects, for a NATS user who may subscribe to no others (default $BELFRY_INBOX_PREFIX, or _INBOX)")
	fs.Var(cmdline.Duration(&f.timeout), "timeout", "time limit of the whole command (default: "+schemas.FormatDuration(belfry.DefaultRequestTimeout)+" for each request)")
}

// fill sets values from the environment for flags that were not given.
func (f *clientFlags) fill(getenv func(string) string) {
	or := func(p *string, values ...string) {
		for _, v := range values {
			if *p == "" {
				*p = v
			}
		}
	}
	if f.context == "" {
		or(&f.url, getenv("BELFRY_NATS_URL"), getenv("NATS_URL"))
	}
	if f.url == "" {
		or(&f.context, getenv("BELFRY_CONTEXT"), getenv("NATS_CONTEXT"))
	}
	or(&f.inbox, getenv("BELFRY_INBOX_PREFIX"))
	if f.context != "" {
		return // the context has the servers and the login
	}
	or(&f.url, defaultNATSURL)
	or(&f.creds, getenv("BELFRY_CREDS"), getenv("NATS_CREDS"))
	or(&f.nkey, getenv("BELFRY_NKEY"), getenv("NATS_NKEY"))
	or(&f.user, getenv("BELFRY_USER"), getenv("NATS_USER"))
	or(&f.passwordFile, getenv("BELFRY_PASSWORD_FILE"))
	or(&f.tokenFile, getenv("BELFRY_TOKEN_FILE"))
	or(&f.password, getenv("BELFRY_PASSWORD"), getenv("NATS_PASSWORD"))
	or(&f.token, getenv("BELFRY_TOKEN"), getenv("NATS_TOKEN"))
	or(&f.tls.CA, getenv("BELFRY_TLS_CA"))
	or(&f.tls.Cert, getenv("BELFRY_TLS_CERT"))
	or(&f.tls.Key, getenv("BELFRY_TLS_KEY"))
}

func (f *clientFlags) options() ([]nats.Option, error) {
	opts := []nats.Option{nats.Name("belfry cli")}
	switch {
	case f.creds != "" && f.nkey != "":
		return nil, usagef("give either --creds or --nkey")
	case f.context != "" && (f.url != "" || f.creds != "" || f.nkey != "" || f.user != "" || f.tokenFile != ""):
		return nil, usagef("--context has the servers and the login: give neither --nats-url nor --creds, --nkey, --user or --token-file")
	}
	if f.creds != "" {
		if err := app.CheckCreds(f.creds); err != nil {
			return nil, usagef("--creds: %v", err)
		}
		opts = append(opts, nats.UserCredentials(f.creds))
	}
	if f.nkey != "" {
		opt, err := nats.NkeyOptionFromSeed(f.nkey)
		if err != nil {
			return nil, usagef("--nkey: %v", err)
		}
		opts = append(opts, opt)
	}
	secrets, err := f.secrets()
	if err != nil {
		return nil, err
	}
	opts = append(opts, secrets...)
	if f.inbox != "" {
		if strings.Contains(f.inbox, " ") || !server.IsValidLiteralSubject(f.inbox) {
			return nil, usagef("--inbox-prefix %.80q is not a subject without wildcards", f.inbox)
		}
		opts = append(opts, nats.CustomInboxPrefix(f.inbox))
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

// secrets returns the options for a user and password, or a token. Files take precedence
// over the environment, and credentials in the URL over both.
func (f *clientFlags) secrets() ([]nats.Option, error) {
	read := func(flag, path string, into *string) (err error) {
		if path == "" {
			return nil
		}
		if *into, err = readSecretFile(path); err != nil {
			return usagef("%s: %v", flag, err)
		}
		return nil
	}
	if f.user != "" { // without a user the password may be for another program
		if err := read("--password-file", f.passwordFile, &f.password); err != nil {
			return nil, err
		}
		return []nats.Option{nats.UserInfo(f.user, f.password)}, nil
	}
	if err := read("--token-file", f.tokenFile, &f.token); err != nil || f.token == "" {
		return nil, err
	}
	return []nats.Option{nats.Token(f.token)}, nil
}

// session is a connected client.
type session struct {
	*belfry.Client
	flags *clientFlags
}

// errOverdue is the cause of the context of a command that took longer than --timeout.
var errOverdue = errors.New("--timeout is over")

// requestTimeout bounds one request: --timeout, or the client's default.
func (f *clientFlags) requestTimeout() time.Duration {
	if f.timeout > 0 {
		return f.timeout
	}
	return belfry.DefaultRequestTimeout
}

func (f *clientFlags) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, f.requestTimeout())
}

// call returns a context for one request.
func (s session) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return s.flags.bounded(ctx)
}

// far adds the progress so far to an error of a command that sends many requests.
func (s session) far(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w (%s)", err, fmt.Sprintf(format, args...))
}

// talking makes cmd a command that connects as a client. check validates the arguments before
// any request; do runs with the client. --timeout bounds the whole command.
func (c *cli) talking(cmd *cobra.Command, check func(args []string) error, do func(ctx context.Context, s session) error) *cobra.Command {
	return c.connected(cmd, check, func(ctx context.Context, f *clientFlags) error {
		if f.timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, f.timeout, errOverdue)
			defer cancel()
		}
		err := f.connect(ctx, do)
		switch {
		case err == nil:
		case errors.Is(context.Cause(ctx), errOverdue):
			return schemas.Errorf(schemas.CodeUnavailable, "not done within --timeout %s: %w", schemas.FormatDuration(f.timeout), err)
		case errors.Is(err, context.DeadlineExceeded):
			return schemas.Errorf(schemas.CodeUnavailable, "no answer within %s (--timeout allows more): %w", schemas.FormatDuration(belfry.DefaultRequestTimeout), err)
		}
		return err
	})
}

// following is like talking, for a command that runs until it is interrupted: --timeout
// bounds each of its requests.
func (c *cli) following(cmd *cobra.Command, check func(args []string) error, do func(ctx context.Context, s session) error) *cobra.Command {
	c.connected(cmd, check, func(ctx context.Context, f *clientFlags) error { return f.connect(ctx, do) })
	timeoutOfRequests(cmd)
	return cmd
}

// timeoutOfRequests changes the help of --timeout of a command that bounds only its requests.
func timeoutOfRequests(cmd *cobra.Command) {
	cmd.Flags().Lookup("timeout").Usage = "time limit of each request (default " + schemas.FormatDuration(belfry.DefaultRequestTimeout) + ")"
}

// connected adds the flags of the connection to a command, and runs do after check.
func (c *cli) connected(cmd *cobra.Command, check func(args []string) error, do func(ctx context.Context, f *clientFlags) error) *cobra.Command {
	f := &clientFlags{}
	f.add(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f.fill(c.getenv)
		if cmd.Flags().Changed("timeout") && f.timeout <= 0 {
			return usagef("--timeout must be more than 0")
		}
		if err := check(args); err != nil {
			return err
		}
		return do(cmd.Context(), f)
	}
	return c.printing(cmd)
}

// connect runs do with a client.
func (f *clientFlags) connect(ctx context.Context, do func(ctx context.Context, s session) error) error {
	opts, err := f.options()
	if err != nil {
		return err
	}
	if f.context != "" {
		return f.connectContext(ctx, opts, do)
	}
	bounded, cancel := f.bounded(ctx)
	client, err := belfry.Connect(bounded, f.url, opts...)
	cancel()
	if err != nil {
		if app.RefusesLogin(err) {
			return schemas.Errorf(schemas.CodeUnavailable, "NATS server %s refuses the login: %v; check the user and password, token, credentials file or NKey", schemas.RedactURLs(f.url), cause(err))
		}
		return schemas.Errorf(schemas.CodeUnavailable, "NATS server %s cannot be reached: %v; is \"belfry serve\" running? (--nats-url names another server)", schemas.RedactURLs(f.url), cause(err))
	}
	defer client.Close()
	return do(ctx, session{client, f})
}

// errNotYet ends a connect after the settings of a context were read.
var errNotYet = errors.New("the settings can be read")

// connectContext runs do with a client that connects as a context of the nats command line tool
// says.
func (f *clientFlags) connectContext(ctx context.Context, opts []nats.Option, do func(ctx context.Context, s session) error) error {
	name := f.context
	if strings.ContainsRune(name, os.PathSeparator) {
		var err error
		if name, err = filepath.Abs(name); err != nil {
			return usagef("--context: %v", err)
		}
	}
	// The library reads the settings and connects in one call. A mistake in the settings is a
	// usage error, and a server that cannot be reached is not, so the first call does not connect.
	_, _, err := natscontext.Connect(name, func(*nats.Options) error { return errNotYet })
	if !errors.Is(err, errNotYet) {
		return usagef("--context %s: %v", f.context, err)
	}
	nc, settings, err := natscontext.Connect(name, append(opts, nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(), nats.Timeout(f.requestTimeout()))...)
	switch {
	case app.RefusesLogin(err):
		return schemas.Errorf(schemas.CodeUnavailable, "NATS server %s refuses the login of context %s: %v; check the user and password, token, credentials file or NKey of the context", schemas.RedactURLs(settings.URL), f.context, cause(err))
	case err != nil:
		return schemas.Errorf(schemas.CodeUnavailable, "NATS server %s of context %s cannot be reached: %v", schemas.RedactURLs(settings.URL), f.context, cause(err))
	}
	defer nc.Close()
	client, err := belfry.New(nc)
	if err != nil {
		return err
	}
	return do(ctx, session{client, f})
}

// cause returns the innermost error, which is that of the network.
func cause(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}

// timerRef names a timer on the command line: a timer id, <timer id>.<run> for the run of a
// schedule, or a CloudEvent's id with --source.
type timerRef struct {
	source string
	tenant string
	text   string          // the argument; set by resolve
	id     schemas.TimerID // set by resolve; for a run, the id of the run's own record
	run    schemas.RunID   // set by resolve if the argument names a run
	// assumed is true if resolve took defaultSource because the argument is no timer id.
	assumed bool
}

// defaultSource is the source of the events of "belfry add" without --source.
const defaultSource = "belfry-cli"

func (r *timerRef) add(fs *pflag.FlagSet) {
	fs.StringVar(&r.source, "source", "", fmt.Sprintf("the CloudEvent's source: ID is then the CloudEvent's id (default %s, if ID is no timer id)", defaultSource))
	fs.StringVar(&r.tenant, "tenant", "", "with --source: the tenant that your account is, if it is one")
}

// resolve sets id from the first argument.
func (r *timerRef) resolve(args []string) error {
	id := args[0]
	r.text = id
	if id == "" {
		return usagef("the id is empty")
	}
	if r.source == "" && r.tenant == "" && !namesTimer(id) {
		r.source, r.assumed = defaultSource, true
	}
	if r.source != "" {
		if r.tenant != "" && !schemas.ValidTenant(r.tenant) {
			return usagef("--tenant %.80q must be 1 to %d lower-case letters, digits or '-'", r.tenant, schemas.MaxTenantLength)
		}
		r.id = schemas.NewTenantTimerID(r.tenant, r.source, id)
		return nil
	}
	if r.tenant != "" {
		return usagef("--tenant needs --source: a timer id names the tenant's timer by itself")
	}
	if run, err := schemas.ParseRunID(id); err == nil {
		r.id, r.run = schemas.RunTimer(run.Timer, run.Run), run
		return nil
	}
	var err error
	if r.id, err = schemas.ParseTimerID(id); err != nil {
		return usagef("%v; if this is a CloudEvent's id, also give its --source", err)
	}
	return nil
}

// namesTimer reports whether an argument is a timer id or the run of one, or has the shape of a
// timer id: then it is more likely a mistyped timer id than the id of an event.
func namesTimer(arg string) bool {
	id, _, _ := strings.Cut(arg, ".")
	return len(id) == schemas.TimerIDLength && strings.Trim(id, "0123456789abcdefghijklmnopqrstuvwxyz") == ""
}

// explain adds to a not_found error which source the argument was looked up with, if the user
// did not name one.
func (r *timerRef) explain(err error) error {
	if !r.assumed || !errors.Is(err, belfry.ErrNotFound) {
		return err
	}
	return schemas.Errorf(schemas.CodeNotFound, "%w; the argument is not a timer id, so it was taken as the id of an event with the source %s: --source names another", err, defaultSource)
}

// atRun calls f with the id of the record that the argument names. For <timer id>.<run> of a
// one-shot timer that is the timer's record, which also describes its only run.
func atRun(ctx context.Context, s session, ref *timerRef, f func(ctx context.Context, id schemas.TimerID) (belfry.Timer, error)) (belfry.Timer, error) {
	t, err := f(ctx, ref.id)
	run := ref.run
	if run.Run == 0 || !errors.Is(err, belfry.ErrNotFound) {
		return t, ref.explain(err)
	}
	timer, other := s.Get(ctx, run.Timer)
	switch {
	case other != nil:
		return t, other
	case timer.Schedule == nil && max(timer.Run, 1) == run.Run:
		return f(ctx, run.Timer)
	case timer.Schedule == nil:
		return t, schemas.Errorf(schemas.CodeNotFound, "no run %s: timer %s is not a schedule, and its run is number %d", run, run.Timer, max(timer.Run, 1))
	}
	return t, schemas.Errorf(schemas.CodeNotFound, "run %s has no record: it has not fired, its schedule has no callback, or the record has expired; see \"belfry runs %s\"", run, run.Timer)
}

// byFlag is the flag --by: the caller's name for a timer's history.
type byFlag struct{ by string }

func (f *byFlag) add(fs *pflag.FlagSet) {
	fs.StringVar(&f.by, "by", whoami(), "your name in the timer's history and the node's log")
}

// check validates the name before any request.
func (f *byFlag) check() error {
	if err := schemas.CheckBy(f.by); err != nil {
		return usagef("--by: %v", err)
	}
	return nil
}

func (f *byFlag) option() belfry.ControlOption { return belfry.By(f.by) }

// whoami returns user@host, or only the known part. It returns "" if the result is not a valid
// name for a history.
func whoami() string {
	name, host := "", ""
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = "@" + h
	}
	if by := name + host; schemas.CheckBy(by) == nil {
		return by
	}
	return ""
}
