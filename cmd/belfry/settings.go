package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/belfryio/belfry/functions"
	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/schemas"
)

// settings holds the settings of a node. Each setting has one name: its flag, and its key in
// the config file. The name of its environment variable is the same in capitals after BELFRY_,
// with underscores. A flag takes precedence over the environment, and the environment over the
// file. The services and the list of users are only in the config file.
type settings struct {
	fs     *pflag.FlagSet
	config string
	names  []string // in the order of the flags
	// given has the settings with a value from a flag, the environment or the file; flagged
	// has the settings with a value from a flag.
	given, flagged map[string]bool
	// ownServer is true if a flag configures the embedded server.
	ownServer bool

	app                 app.Options
	roles               []string
	profile             string
	prefixes            []string
	logLevel, logFormat string
	// services has the groups of the file, without secrets, for display. files are the
	// config file and the files that it names for services.
	services map[string]any
	files    fileStamps
	// secretFiles are the files with secrets.
	secretFiles []string
	// subjects and hosts that callbacks may call. If the setting is absent, all are
	// allowed.
	subjects, hosts []string
	// Files with secrets, by setting, and the user that the flags name.
	passwordFile, tokenFile, natsPasswordFile, httpTokenFile, httpTokens string

	oidc         oidcSettings
	natsUser     string
	listedUsers  []app.User // of the config file
	configSecret bool       // the config file itself has a secret
}

const (
	envPrefix   = "BELFRY_"
	keyServices = "services"
	keyUsers    = "nats-users"
	keyTenants  = "tenants"
	// keyExportFired is a setting of a tenant.
	keyExportFired = "export-fired"
)

// add defines the flags on a command.
func (s *settings) add(cmd *cobra.Command) {
	s.fs = cmd.Flags()
	s.fs.SortFlags = false
	s.fs.StringVar(&s.config, "config", "", "YAML file with any of these settings, and services (default $BELFRY_CONFIG)")
	s.app = app.DefaultOptions()
	o := &s.app
	d := pflag.NewFlagSet("", pflag.ContinueOnError)
	d.StringVar(&o.Data, "data", "", "data folder of the embedded server (default $XDG_STATE_HOME/belfry or ~/.local/state/belfry)")
	d.StringVar(&o.NATSListen, "nats-listen", o.NATSListen, "listen address of the embedded server; an address other than loopback needs users and TLS")
	d.StringVar(&s.natsUser, "nats-user", "", "user name of the embedded server's administrator; if set, every client must log in")
	d.StringVar(&s.natsPasswordFile, "nats-password-file", "", "file with the password of nats-user, or its bcrypt hash (or $BELFRY_NATS_PASSWORD)")
	d.StringVar(&o.NATSTLS.Cert, "nats-tls-cert", "", "PEM file of the embedded server's certificate: clients must use TLS")
	d.StringVar(&o.NATSTLS.Key, "nats-tls-key", "", "PEM file of that certificate's key")
	d.StringVar(&o.NATSTLS.CA, "nats-tls-ca", "", "PEM file of a CA: each client needs a certificate of it")
	d.StringVar(&o.HTTP, "http", o.HTTP, "listen address of the console (/), the API (/v1/), /healthz, /readyz and /metrics, - for none; an address other than loopback needs http-tokens, http-token-file or oidc-issuer")
	d.StringVar(&s.httpTokens, "http-tokens", "", "file with the hashes of bearer tokens for HTTP, as belfry token new prints them")
	d.StringVar(&s.httpTokenFile, "http-token-file", "", "file with a bearer token that allows everything over HTTP (or $BELFRY_HTTP_TOKEN)")
	d.StringVar(&o.HTTPTLS.Cert, "http-tls-cert", "", "PEM file of a certificate, to serve HTTPS")
	d.StringVar(&o.HTTPTLS.Key, "http-tls-key", "", "PEM file of that certificate's key")
	s.oidc.add(d, o)
	d.BoolVar(&o.Insecure, "insecure", false, "permit addresses other than loopback without users, TLS or token")
	d.StringVar(&s.profile, "profile", string(o.Profile), "safe: acknowledged timers survive power loss and the end of any process; fast: only the end of any process")
	d.StringVar(&o.NATSURL, "nats-url", "", "use this server instead of the embedded one")
	d.StringVar(&o.Creds, "creds", "", "NATS credentials file for nats-url")
	d.StringVar(&o.User, "user", "", "user for nats-url")
	d.StringVar(&s.passwordFile, "password-file", "", "file with the password of user (or $BELFRY_PASSWORD)")
	d.StringVar(&s.tokenFile, "token-file", "", "file with a token for nats-url (or $BELFRY_TOKEN)")
	d.StringVar(&o.TLS.CA, "tls-ca", "", "PEM file of a CA to trust for nats-url")
	d.StringVar(&o.TLS.Cert, "tls-cert", "", "PEM file of a client certificate for nats-url")
	d.StringVar(&o.TLS.Key, "tls-key", "", "PEM file of the certificate's key")
	d.StringSliceVar(&s.roles, "roles", []string{"router", "scheduler", "functions", "visibility"}, "roles of this node: router, scheduler, functions, visibility (with nats-url not by default)")
	d.StringVar(&o.Node, "node", "", "name of this node (default: the name in the data folder, or a random name)")
	d.IntVar(&o.Shards, "shards", 0, fmt.Sprintf("shards of a new store, fixed at its first start; 0 for the number of an existing store, or %d", schemas.DefaultShards))
	d.IntVar(&o.Replicas, "replicas", o.Replicas, "replicas of every stream: 1, 3 or 5")
	d.Var(cmdline.Duration(&o.Retention), "retention", "lifetime of the record of a finished timer")
	d.StringVar(&o.HistoryFolder, "history-folder", "", "folder of the search index, of this node alone (default the folder visibility in data; required for role visibility with nats-url)")
	d.Var(cmdline.Duration(&o.History), "history", "how long the search index keeps finished timers")
	d.Int64Var(&o.HistoryBytes, "history-bytes", o.HistoryBytes, "size of the search index, in bytes, above which it removes the oldest finished timers earlier")
	d.StringSliceVar(&o.HistoryAttributes, "history-attributes", nil, "names of attributes of events by which the search index finds timers, such as orderid, at most 8")
	d.Var(cmdline.Duration(&o.FiredMaxAge), "fired-max-age", "how long the stream keeps fired events")
	d.IntVar(&o.FiredMaxPerService, "fired-max-per-service", 0, "maximum number of fired events of one service that the stream keeps; 0 for a share of the stream's bytes")
	d.Var(cmdline.Duration(&o.DeadMaxAge), "dead-max-age", "how long dead letters are kept")
	d.Var(cmdline.Duration(&o.RejectedMaxAge), "rejected-max-age", "how long rejected adds are kept")
	d.Var(cmdline.Duration(&o.SweepDelay), "sweep-delay", "how long after their due time the sweeper checks that timers have fired")
	d.Var(cmdline.Duration(&o.Lease), "lease", "how long a scheduler keeps its shards without a renewal")
	d.Var(cmdline.Duration(&o.Horizon), "horizon", "how long before their due time timers are read into memory")
	d.Var(cmdline.Duration(&o.Limits.MaxHorizon), "max-ahead", "maximum time from the add of a timer to its due time")
	d.IntVar(&o.Concurrency, "concurrency", o.Concurrency, "maximum number of concurrent callbacks of one service")
	d.IntVar(&o.TotalConcurrency, "total-concurrency", o.TotalConcurrency, "maximum number of concurrent callbacks of this node")
	d.Var(cmdline.Duration(&o.ServiceIdle), "service-idle", "time without an event after which Belfry removes a service's consumers, until its next event; 0 means never")
	d.IntVar(&o.MaxServices, "max-services", o.MaxServices, "maximum number of services with callbacks")
	d.BoolVar(&o.AllowLoopback, "allow-loopback", false, "let callbacks connect to this host (default true on the embedded server while it listens on loopback)")
	d.BoolVar(&o.AllowPrivate, "allow-private", false, "let callbacks connect to private addresses")
	d.StringSliceVar(&s.prefixes, "allow-prefixes", nil, "let callbacks connect to these address ranges, such as 10.1.0.0/16")
	d.StringSliceVar(&o.InboxPrefixes, "inbox-prefixes", nil, "answer API requests whose reply subjects have one of these prefixes, such as REPLIES.shop, in addition to _INBOX")
	d.StringSliceVar(&s.subjects, "callback-subjects", nil, "NATS subjects that callbacks may call, with wildcards, such as orders.> (default: all except reserved subjects)")
	d.StringSliceVar(&s.hosts, "callback-hosts", nil, "hosts that HTTP callbacks may call, such as api.example.com or *.example.com (default: all)")
	d.StringVar(&s.logLevel, "log-level", "info", "debug, info, warn or error")
	d.StringVar(&s.logFormat, "log-format", "auto", "json, console, or auto: console on a terminal")
	d.SortFlags = false
	d.VisitAll(func(f *pflag.Flag) {
		s.names = append(s.names, f.Name)
		s.fs.AddFlag(f)
	})
}

// load reads the settings that no flag has set from the environment and the config file. It
// checks all settings, and returns the options of a node.
func (s *settings) load(c *cli) (app.Options, error) {
	s.given, s.flagged, s.files = map[string]bool{}, map[string]bool{}, fileStamps{}
	s.fs.Visit(func(f *pflag.Flag) { s.given[f.Name], s.flagged[f.Name] = true, true })
	if err := s.chooseServer(); err != nil {
		return app.Options{}, err
	}
	if s.config == "" {
		s.config = c.getenv(envPrefix + "CONFIG")
	}
	fromFile, err := s.readFile()
	if err != nil {
		return app.Options{}, err
	}
	for _, name := range s.names {
		fromEnv, set := c.lookupEnv(envName(name))
		inFile, exists := fromFile[name]
		switch {
		case s.flagged[name], s.ownServer && slices.Contains(externalSettings, name), s.flagged["nats-url"] && slices.Contains(embeddedSettings, name):
		case set && fromEnv == "" && slices.Contains(restricting, name):
			err = usagef("environment variable %s is empty: unset it, or give %s a value (an empty list, which allows none, is [] in the config file)", envName(name), name)
		case fromEnv != "":
			err = s.set(name, fromEnv, "environment variable "+envName(name))
		case exists:
			err = s.set(name, inFile, "config file "+s.config+": "+name)
			if url := s.app.NATSURL; name == "nats-url" && schemas.RedactURLs(url) != url {
				s.configSecret = true
			}
		}
		if err != nil {
			return app.Options{}, err
		}
	}
	if err := s.readServices(fromFile, c.getenv); err != nil {
		return app.Options{}, err
	}
	if err := s.readTenants(fromFile); err != nil {
		return app.Options{}, err
	}
	if err := s.readUsers(c.getenv, fromFile); err != nil {
		return app.Options{}, err
	}
	if err := s.readSecrets(c.getenv); err != nil {
		return app.Options{}, err
	}
	if err := s.oidc.read(&s.app, c.getenv); err != nil {
		return app.Options{}, err
	}
	if err := s.checkRestricting(); err != nil {
		return app.Options{}, err
	}
	if err := s.checkZeros(); err != nil {
		return app.Options{}, err
	}
	return s.options(c)
}

// zeroAllowed has the settings with a documented meaning of 0.
var zeroAllowed = []string{"shards", "fired-max-per-service", "service-idle"}

// checkZeros refuses a given 0 that has no meaning. In app.Options 0 is the default.
func (s *settings) checkZeros() error {
	for _, name := range s.names {
		text := s.fs.Lookup(name).Value.String()
		if s.given[name] && (text == "0" || text == "0s") && !slices.Contains(zeroAllowed, name) {
			return usagef("%s is %s; it must be more than 0", name, text)
		}
	}
	return nil
}

// embeddedSettings apply to the embedded server, externalSettings to a server at nats-url.
var (
	embeddedSettings = []string{"data", "nats-listen", "nats-user", "nats-password-file", "nats-tls-cert", "nats-tls-key", "nats-tls-ca"}
	externalSettings = []string{"nats-url", "creds", "user", "password-file", "token-file", "tls-ca", "tls-cert", "tls-key"}
)

// restricting lists the settings without which more is permitted. An empty text is refused for each of them. An empty
// environment variable of any other setting counts as absent. Lists may be empty.
var restricting = []string{"callback-subjects", "callback-hosts", "http-tokens", "http-token-file", "nats-user", "nats-tls-ca", "oidc-issuer", "oidc-tenant-claim"}

// checkRestricting refuses a restricting setting that is given as an empty text.
func (s *settings) checkRestricting() error {
	for _, name := range restricting {
		if f := s.fs.Lookup(name); s.given[name] && f.Value.Type() == "string" && f.Value.String() == "" {
			return usagef("%s is empty, and without it more is permitted: give it a value, or leave it out", name)
		}
	}
	return nil
}

// chooseServer makes a flag of the embedded server take precedence over a nats-url in the
// environment, which may be set for the commands that connect to a server.
func (s *settings) chooseServer() error {
	for _, name := range embeddedSettings {
		if !s.flagged[name] {
			continue
		}
		if s.flagged["nats-url"] {
			return usagef("--%s configures the embedded server, and --nats-url uses another server: give only one of them", name)
		}
		s.ownServer = true
	}
	return nil
}

func envName(name string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

// readFile returns the config file as YAML decodes it, with text keys at every level. It
// refuses unknown keys.
func (s *settings) readFile() (map[string]any, error) {
	if s.config == "" {
		return nil, nil
	}
	s.files.note(s.config)
	b, err := os.ReadFile(s.config)
	if err != nil {
		var path *os.PathError
		if errors.As(err, &path) {
			err = path.Err
		}
		return nil, usagef("config file %s: %v", s.config, err)
	}
	var values map[string]any
	document := yaml.NewDecoder(bytes.NewReader(b))
	if err := document.Decode(&values); err != nil && !errors.Is(err, io.EOF) {
		return nil, usagef("config file %s is not YAML with settings: %v", s.config, err)
	}
	if err := document.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, usagef("config file %s has more than one YAML document: remove the others, or the line --- between them", s.config)
	}
	if values == nil { // such as a file that was cut to 0 bytes: without settings more is permitted
		return nil, usagef("config file %s is empty: write {} for no settings, or leave --config out", s.config)
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if values[key] == nil {
			return nil, usagef("config file %s: %s has no value: write one, such as [] for an empty list, or leave the key out", s.config, key)
		}
	}
	var unknown []string
	for key, value := range values {
		if key != keyServices && key != keyUsers && key != keyTenants && !slices.Contains(s.names, key) {
			unknown = append(unknown, key)
		}
		values[key] = textKeys(value)
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return nil, usagef("config file %s has unknown keys: %s (valid keys are the flags in \"belfry serve --help\", services, tenants and nats-users)", s.config, strings.Join(unknown, ", "))
	}
	return values, nil
}

// textKeys converts the keys of groups to text. YAML decodes keys such as 1 and true as numbers
// and booleans.
func textKeys(value any) any {
	switch v := value.(type) {
	case map[any]any:
		out := make(map[string]any, len(v))
		for key, item := range v {
			out[fmt.Sprint(key)] = textKeys(item)
		}
		return out
	case map[string]any:
		for key, item := range v {
			v[key] = textKeys(item)
		}
	case []any:
		for i, item := range v {
			v[i] = textKeys(item)
		}
	}
	return value
}

// set passes a value to its flag, which validates it.
func (s *settings) set(name string, value any, where string) error {
	text := fmt.Sprint(value)
	switch v := value.(type) {
	case map[string]any:
		return usagef("%s: must be a single value or a list, not a group", where)
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			if v[i] == nil {
				return usagef("%s: item %d has no value", where, i+1)
			}
			parts[i] = fmt.Sprint(v[i])
		}
		text = strings.Join(parts, ",")
	}
	if err := s.fs.Lookup(name).Value.Set(text); err != nil {
		return usagef("%s: %q: %v", where, text, err)
	}
	s.given[name] = true
	return nil
}

func (s *settings) readServices(file map[string]any, getenv func(string) string) error {
	where := "config file " + s.config + ": services"
	value := file[keyServices]
	if value == nil {
		return nil
	}
	services, ok := value.(map[string]any)
	if !ok {
		return usagef("%s: must be a group, with a group of settings for each service", where)
	}
	s.app.Callbacks.Services = map[string]functions.ServiceConfig{}
	s.services = map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(services)) {
		group, ok := services[name].(map[string]any)
		if !ok {
			return usagef("%s.%s: must be a group of settings", where, name)
		}
		r := serviceReader{getenv: getenv, files: s.files}
		for _, key := range slices.Sorted(maps.Keys(group)) {
			if err := r.read(key, group[key]); err != nil {
				return usagef("%s.%s.%s: %v", where, name, key, err)
			}
		}
		s.secretFiles = append(s.secretFiles, r.secretFiles...)
		if r.inline && !slices.Contains(s.secretFiles, s.config) {
			s.secretFiles = append(s.secretFiles, s.config)
		}
		s.app.Callbacks.Services[name] = r.config
		s.services[name] = hideService(group)
	}
	return nil
}

// options converts the settings to the options of a node.
func (s *settings) options(c *cli) (app.Options, error) {
	o := s.app
	o.Version, o.Commit = version, commit(debug.ReadBuildInfo())
	if o.ServiceIdle == 0 {
		o.ServiceIdle = -1 // never
	}
	o.Profile = app.Profile(s.profile)
	o.Roles = nil
	if !s.given["roles"] && o.NATSURL != "" {
		s.roles = nil
		for _, r := range app.SharedRoles() {
			s.roles = append(s.roles, string(r))
		}
	}
	for _, r := range s.roles {
		o.Roles = append(o.Roles, app.Role(strings.TrimSpace(r)))
	}
	for _, p := range s.prefixes {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(p))
		if err != nil {
			return o, usagef("allow-prefixes: %q is not a range such as 10.1.0.0/16", p)
		}
		o.AllowPrefixes = append(o.AllowPrefixes, prefix)
	}
	// A given empty list allows nothing; an absent setting allows all.
	if s.given["callback-subjects"] {
		o.Callbacks.Subjects = append([]string{}, s.subjects...)
	}
	if s.given["callback-hosts"] {
		o.Callbacks.Hosts = append([]string{}, s.hosts...)
	}
	if o.Data == "" && o.NATSURL == "" {
		dir, err := stateFolder(c.getenv)
		if err != nil {
			return o, err
		}
		o.Data = dir
	}
	// Only clients on this host can reach the embedded server, so callbacks to this host give
	// them no additional access.
	if !s.given["allow-loopback"] && o.NATSURL == "" {
		o.AllowLoopback = app.OnLoopback(o.NATSListen)
	}
	var err error
	if o.Log, err = s.logger(c); err != nil {
		return o, err
	}
	o.SecretFiles = append(o.SecretFiles, s.secretFiles...)
	if s.config != "" && s.configSecret {
		o.SecretFiles = append(o.SecretFiles, s.config)
	}
	s.app.Data, s.app.AllowLoopback = o.Data, o.AllowLoopback // effective shows these values
	return o, o.Validate()
}

func stateFolder(getenv func(string) string) (string, error) {
	if dir := getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "belfry"), nil
	}
	home := getenv("HOME")
	if home == "" {
		return "", usagef("neither XDG_STATE_HOME nor HOME is set: give --data")
	}
	return filepath.Join(home, ".local", "state", "belfry"), nil
}

func (s *settings) logger(c *cli) (zerolog.Logger, error) {
	level, err := zerolog.ParseLevel(s.logLevel)
	if err != nil || !slices.Contains([]string{"debug", "info", "warn", "error"}, s.logLevel) {
		return zerolog.Nop(), usagef("log-level %q is not debug, info, warn or error", s.logLevel)
	}
	w := c.err
	switch {
	case s.logFormat == "console", s.logFormat == "auto" && isTerminal(c.err):
		w = zerolog.ConsoleWriter{Out: c.err, TimeFormat: "15:04:05.000", NoColor: !isTerminal(c.err)}
	case s.logFormat != "json" && s.logFormat != "auto":
		return zerolog.Nop(), usagef("log-format %q is not json, console or auto", s.logFormat)
	}
	return zerolog.New(zerolog.SyncWriter(w)).Level(level).With().Timestamp().Logger(), nil
}

// effective returns every setting with its value for display, without secrets.
func (s *settings) effective() map[string]any {
	m := map[string]any{}
	for _, name := range s.names {
		f := s.fs.Lookup(name)
		switch v := f.Value.(type) {
		case pflag.SliceValue:
			m[name] = v.GetSlice()
		default:
			m[name] = f.Value.String()
		}
		switch f.Value.Type() {
		case "bool":
			m[name] = f.Value.String() == "true"
		case "int", "int64":
			var n int64
			if _, err := fmt.Sscan(f.Value.String(), &n); err == nil {
				m[name] = n
			}
		}
	}
	for _, name := range restricting {
		if !s.given[name] {
			delete(m, name) // an empty list would allow nothing, and an empty text is refused
		}
	}
	m["data"], m["allow-loopback"] = s.app.Data, s.app.AllowLoopback
	m["nats-url"] = schemas.RedactURLs(s.app.NATSURL)
	if len(s.services) > 0 {
		m[keyServices] = s.services
	}
	if len(s.app.Tenants) > 0 {
		m[keyTenants] = s.printedTenants()
	}
	if users := s.printedUsers(); len(users) > 0 {
		m[keyUsers] = users
	}
	return m
}
