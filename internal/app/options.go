package app

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/functions"
	"github.com/belfryio/belfry/internal/oidc"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/token"
	"github.com/belfryio/belfry/internal/tracing"
	"github.com/belfryio/belfry/internal/visibility"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// Role is one part that a node can run.
type Role string

// The roles.
const (
	RoleRouter    Role = "router"
	RoleScheduler Role = "scheduler"
	RoleFunctions Role = "functions"
	// RoleVisibility keeps the search index, in a file of the node.
	RoleVisibility Role = "visibility"
)

// AllRoles returns all roles, the default of a node with the embedded server.
func AllRoles() []Role {
	return []Role{RoleRouter, RoleScheduler, RoleFunctions, RoleVisibility}
}

// SharedRoles returns the default roles of a node with a server of its own: all that need no data
// folder.
func SharedRoles() []Role { return []Role{RoleRouter, RoleScheduler, RoleFunctions} }

// Profile determines which failures an acknowledged write survives. It configures the
// embedded server. On another server the node checks that the server's settings match the
// profile, as far as the server reports them.
type Profile string

// The profiles.
const (
	// ProfileSafe means that acknowledged writes survive power loss, because the server
	// syncs every write before it acknowledges it, or because three replicas store it.
	ProfileSafe Profile = "safe"
	// ProfileFast means that acknowledged writes survive any end of the process, including
	// SIGKILL, but not power loss. The embedded server syncs every two minutes.
	ProfileFast Profile = "fast"
)

// TLS names PEM files for a connection to a server: a CA to trust in addition to the
// system's, and a client certificate with its key. Empty fields have no effect.
type TLS struct{ CA, Cert, Key string }

// Options configure an App. The zero value of a field means its default.
type Options struct {
	// Data is the folder of the embedded server; required unless NATSURL is set.
	Data string
	// NATSListen is the address of the embedded server; port 0 means a free port.
	// Default 127.0.0.1:4222.
	NATSListen string
	// Profile determines which failures an acknowledged write survives; default ProfileSafe.
	Profile Profile

	// NATSURL is a server to use instead of the embedded one.
	NATSURL string
	// Creds is a NATS credentials file for NATSURL.
	Creds string
	// User and Password, or Token, are for NATSURL; credentials in the URL take precedence.
	// Dial also uses them for the embedded server.
	User, Password, Token string
	// TLS is for NATSURL.
	TLS TLS

	// Users lists the users of the embedded server. Without users, every client that reaches
	// the server may connect.
	Users []User
	// NATSTLS makes the embedded server require TLS.
	NATSTLS ServerTLS
	// Insecure allows to listen beyond loopback without authentication and encryption.
	Insecure bool

	// HTTP is the address of health and metrics; port 0 means a free port, NoHTTP no HTTP
	// server. Default 127.0.0.1:8420.
	HTTP string
	// HTTPTokens are the bearer tokens of HTTP, one of which /metrics and the details of /readyz
	// require; nil for none. HTTPToken, if set, is a further one, which allows everything.
	// Reconfigure replaces both. HTTPTLS makes the HTTP server serve HTTPS.
	HTTPTokens *token.Set
	HTTPToken  string
	HTTPTLS    ServerTLS
	// OIDC is an OpenID Connect provider whose tokens HTTP also accepts; an empty Issuer for none. New
	// sets its Roots from OIDCCA, a PEM file, if OIDCCA is set, and its Known and Log.
	OIDC   oidc.Config
	OIDCCA string
	// OIDCRedirect is the base URL at which people open the console, for the login with OIDC.ClientID. It is
	// required unless HTTP is on loopback.
	OIDCRedirect string
	// Roles to run; default AllRoles, or with NATSURL SharedRoles.
	Roles []Role
	// Node is the node's name, unique among the nodes of a store: letters, digits, '-' or
	// '_'. Default: the name stored in the data folder, or with NATSURL the host's name and
	// a random part.
	Node string

	// Shards of a new store; 0 means the stored number, or schemas.DefaultShards.
	Shards int
	// Replicas of every stream; default 1.
	Replicas int
	// Retention is the lifetime of the record of a finished timer; default 1 h.
	Retention time.Duration
	// HistoryFolder is the folder of the search index, of this node alone; default the folder
	// visibility in Data, required for RoleVisibility with NATSURL. History, HistoryBytes and
	// HistoryAttributes are described in package visibility; defaults 7 days and 2 GiB.
	HistoryFolder     string
	History           time.Duration
	HistoryBytes      int64
	HistoryAttributes []string
	// FiredMaxAge, DeadMaxAge and RejectedMaxAge are the lifetimes of fired events, dead
	// letters and rejected adds in their streams; default 24 h, 30 days and 7 days.
	FiredMaxAge, DeadMaxAge, RejectedMaxAge time.Duration
	// FiredMaxPerService is the maximum number of events of one service in TIMERS_FIRED; 0
	// means a share of the stream.
	FiredMaxPerService int
	// MaxServices bounds the services with callbacks; default 20,000.
	MaxServices int
	// Timeout bounds every call to JetStream; default 5 s.
	Timeout time.Duration
	// Limits bounds the values in an add.
	Limits schemas.Limits
	// InboxPrefixes lists prefixes of reply subjects that API requests may have, in addition
	// to _INBOX…; see schemas.Inboxes.
	InboxPrefixes []string

	// Lease, Heartbeat, Horizon and SweepDelay are the scheduler's; see package
	// scheduler.
	Lease, Heartbeat, Horizon, SweepDelay time.Duration

	// AllowLoopback, AllowPrivate and AllowPrefixes permit HTTP callbacks to these addresses,
	// which Belfry otherwise refuses to call.
	AllowLoopback, AllowPrivate bool
	AllowPrefixes               []netip.Prefix
	// Concurrency and TotalConcurrency bound the concurrent callbacks of one service and of
	// all services; default 64 and 512.
	Concurrency, TotalConcurrency int
	// ServiceIdle is the time without an event after which a service's consumers are
	// removed, until its next event. Default 30 s, negative for never.
	ServiceIdle time.Duration
	// Callbacks holds the settings of callbacks. Reconfigure replaces them.
	Callbacks functions.Settings

	// Tenants has the accounts of the tenants by their names: NATS accounts of the server at
	// NATSURL that share this Belfry. In operator mode an account is its public key. Each imports
	// timers.t.<account>.add and timers.t.<account>.api.> from Belfry's account, whose exports of
	// timers.t.*.add and timers.t.*.api.> have account_token_position 3. Callbacks.Tenants has
	// an entry for each of them.
	Tenants map[string]string
	// ExportFired has the names of the tenants whose fired events Belfry also stores in
	// TIMERS_TENANT_FIRED, on timers.t.<account>.fired.<service>, with a pull consumer of the
	// account's name. Each account imports both; see docs/tenants.md.
	ExportFired map[string]bool

	// SecretFiles lists further files with secrets, such as the config file. The node logs a
	// warning for each of them, and for Creds, the keys of TLS and the data folder, that
	// every user of the host can read.
	SecretFiles []string

	// Tracing are the settings of traces; the zero value for none.
	Tracing tracing.Config

	// Development makes a node whose clock can be moved, with a store of its own kind; see package
	// internal/devclock. It needs the embedded server. Frozen makes the clock stand still between
	// moves.
	Development, Frozen bool

	// Version is shown in $SRV.INFO, metrics and the User-Agent of callbacks.
	Version string
	// Commit is the revision that the program was built from. It is shown in metrics.
	Commit string
	Log    zerolog.Logger

	// dontListen keeps the embedded server from opening a port; see OpenFolder.
	dontListen bool
}

// Defaults of Options, and bounds.
const (
	DefaultNATSListen = "127.0.0.1:4222"
	DefaultHTTP       = "127.0.0.1:8420"
	// NoHTTP is the value of Options.HTTP for no HTTP server.
	NoHTTP = "-"
	// StopTimeout bounds Stop within Run.
	StopTimeout = 10 * time.Second
	// callbackGrace bounds how long running callbacks may continue after Stop begins.
	callbackGrace = 5 * time.Second
	// drainBound bounds the part of Stop for router and functions, releaseBound the part
	// for the scheduler. The remainder of StopTimeout is for the server.
	drainBound   = 6 * time.Second
	releaseBound = 2 * time.Second
	// aloneBound replaces drainBound and releaseBound if the server does not answer.
	aloneBound = time.Second
	// flushBound bounds how long the server may take to finish interrupted requests.
	flushBound = time.Second
	// traceBound bounds how long the receiver of traces may take for the last spans.
	traceBound = 2 * time.Second
	// probeBound bounds the server's answer to the request with which Stop begins.
	probeBound = time.Second
	// connectTimeout bounds one attempt to connect to a server. Users of the connection may
	// wait that long for a server that does not answer.
	connectTimeout = 2 * time.Second
	// A connection counts as lost after pingsMissed unanswered pings, which it sends to the
	// embedded server and to other servers in the intervals below, or if the server accepts
	// no bytes for writeBound, during which every call blocks.
	pingsMissed = 2
	pingOwn     = 10 * time.Second
	pingOther   = 2 * time.Second
	writeBound  = 2 * time.Second
	// heartbeatTimeout bounds one heartbeat.
	heartbeatTimeout = 2 * time.Second
	// timeTooOld is the maximum age of the last reading of the cluster's time on a node that
	// is ready. An older reading means that the store has not answered for that long.
	timeTooOld = 5 * time.Second
)

func (o *Options) embedded() bool { return o.NATSURL == "" }

func (o *Options) runs(r Role) bool { return slices.Contains(o.Roles, r) }

func badConfig(format string, args ...any) error {
	return schemas.Errorf(schemas.CodeConfig, format, args...)
}

// DefaultOptions returns options with all defaults, except Data, which has no default, Roles, whose
// default depends on NATSURL, and Shards and Node, whose defaults come from the store and the data
// folder.
func DefaultOptions() Options {
	return Options{
		NATSListen: DefaultNATSListen, HTTP: DefaultHTTP, Profile: ProfileSafe, Replicas: 1,
		Retention: store.DefaultRetention, History: visibility.DefaultHistory, HistoryBytes: visibility.DefaultHistoryBytes, FiredMaxAge: store.DefaultFiredMaxAge, DeadMaxAge: store.DefaultDeadMaxAge, RejectedMaxAge: store.DefaultRejectedMaxAge, Timeout: store.DefaultTimeout,
		Limits: schemas.Limits{MaxHorizon: schemas.DefaultLimitHorizon},
		Lease:  scheduler.DefaultLease, Horizon: scheduler.DefaultHorizon, SweepDelay: scheduler.DefaultSweepDelay,
		Concurrency: functions.DefaultConcurrency, TotalConcurrency: functions.DefaultTotal, ServiceIdle: functions.DefaultServiceIdle,
		MaxServices: store.DefaultMaxServices,
	}
}

// Validate returns an error of schemas.CodeConfig for invalid options. It reads no files and
// opens no connections.
func (o Options) Validate() error { return o.setDefaults() }

func (o *Options) setDefaults() error {
	or := func(p *string, d string) {
		if *p == "" {
			*p = d
		}
	}
	or(&o.NATSListen, DefaultNATSListen)
	or(&o.HTTP, DefaultHTTP)
	or((*string)(&o.Profile), string(ProfileSafe))
	or(&o.Version, "0.0.0")
	switch {
	case len(o.Roles) > 0:
	case o.embedded():
		o.Roles = AllRoles()
	default:
		o.Roles = SharedRoles()
	}
	return o.validate()
}

func (o *Options) validate() error {
	for _, r := range o.Roles {
		if !slices.Contains(AllRoles(), r) {
			return badConfig("role %.40q does not exist; the roles are router, scheduler, functions and visibility", string(r))
		}
	}
	if o.Profile != ProfileSafe && o.Profile != ProfileFast {
		return badConfig("profile %.40q does not exist; it is safe (what is acknowledged survives power loss) or fast", string(o.Profile))
	}
	if o.HTTP != NoHTTP {
		if err := checkAddress("http", o.HTTP); err != nil {
			return err
		}
	}
	if o.Node != "" && !schemas.ValidService(o.Node) {
		return badConfig("node name %.80q must be 1 to %d letters, digits, '-' or '_'", o.Node, schemas.MaxServiceLength)
	}
	if o.Shards < 0 || o.Shards > schemas.MaxShards {
		return badConfig("shards is %d; it must be 1 to %d", o.Shards, schemas.MaxShards)
	}
	if o.Replicas != 0 && o.Replicas != 1 && o.Replicas != 3 && o.Replicas != 5 {
		return badConfig("replicas is %d; it must be 1, 3 or 5", o.Replicas)
	}
	for _, prefix := range o.InboxPrefixes {
		if err := schemas.CheckInboxPrefix(prefix); err != nil {
			return err
		}
	}
	if o.Concurrency < 0 || o.TotalConcurrency < 0 {
		return badConfig("concurrency is %d and total-concurrency %d; they must be 1 or more", o.Concurrency, o.TotalConcurrency)
	}
	if err := o.Callbacks.Check(); err != nil {
		return err
	}
	if err := o.validateAccess(); err != nil {
		return err
	}
	if err := o.checkDevelopment(); err != nil {
		return err
	}
	if err := o.checkTogether(); err != nil {
		return err
	}
	if err := o.checkHistory(); err != nil {
		return err
	}
	if !o.embedded() {
		return checkURL(o.NATSURL)
	}
	switch {
	case o.Data == "":
		return badConfig("the embedded server needs a data folder: give data, or nats-url for a server of your own")
	case o.Creds != "" || o.TLS != TLS{}:
		return badConfig("creds and tls files are for a server of your own: they need nats-url")
	case o.Replicas > 1:
		return badConfig("replicas is %d, but the embedded server is one: replicas need a cluster of your own (nats-url)", o.Replicas)
	}
	return checkAddress("nats-listen", o.NATSListen)
}

func checkAddress(name, addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return badConfig("%s %.80q is not HOST:PORT", name, addr)
	}
	if n, err := net.LookupPort("tcp", port); err != nil || n < 0 || strings.TrimLeft(port, "0123456789") != "" {
		return badConfig("%s %.80q: the port must be a number from 0 to 65535", name, addr)
	}
	return nil
}
