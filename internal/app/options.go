package app

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/functions"
	"github.com/belfryio/belfry/internal/store"
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
)

// AllRoles is what a node runs by default.
func AllRoles() []Role { return []Role{RoleRouter, RoleScheduler, RoleFunctions} }

// Profile says what an acknowledged write survives. It sets the embedded server;
// of another server it is what the node promises, and checks as far as the server
// tells it.
type Profile string

// The profiles.
const (
	// ProfileSafe: what was acknowledged survives power loss, since the server
	// syncs every write before it acknowledges it, or since three replicas have it.
	ProfileSafe Profile = "safe"
	// ProfileFast: what was acknowledged survives the end of the process, however
	// it ends, but not power loss. The embedded server syncs every two minutes.
	ProfileFast Profile = "fast"
)

// TLS are files for a connection to a server: CA to trust besides the system's,
// and a client certificate. Empty fields are not used.
type TLS struct{ CA, Cert, Key string }

// Options configure an App. The zero value of a field means its default.
type Options struct {
	// Data is the folder of the embedded server; required unless NATSURL is set.
	Data string
	// NATSListen is where the embedded server listens; port 0 takes a free one.
	// Default 127.0.0.1:4222.
	NATSListen string
	// Profile is what an acknowledged write survives; default ProfileSafe.
	Profile Profile

	// NATSURL is a server to use instead of the embedded one.
	NATSURL string
	// Creds is a NATS credentials file for NATSURL.
	Creds string
	// User and Password, or Token, are for NATSURL; credentials in the URL win. Dial uses
	// them for the embedded server, too.
	User, Password, Token string
	// TLS is for NATSURL.
	TLS TLS

	// Users may connect to the embedded server; none means that everybody may, who
	// reaches it.
	Users []User
	// NATSTLS makes the embedded server ask for TLS.
	NATSTLS ServerTLS
	// Insecure allows to listen beyond loopback without authentication and encryption.
	Insecure bool

	// HTTP is where health and metrics are served; port 0 takes a free one, "-"
	// is no HTTP server. Default 127.0.0.1:8420.
	HTTP string
	// HTTPToken, if set, is the bearer token that /metrics and the details of /readyz
	// ask for. HTTPTLS makes the HTTP server speak HTTPS.
	HTTPToken string
	HTTPTLS   ServerTLS
	// Roles to run; default all.
	Roles []Role
	// Node names this process among those that share a store: a token of letters,
	// digits, '-' or '_'. Default: kept in the data folder, or with NATSURL the
	// host's name and a random part.
	Node string

	// Shards of a new store; 0 takes what is recorded, or schemas.DefaultShards.
	Shards int
	// Replicas of every stream; default 1.
	Replicas int
	// Retention is how long the record of a concluded timer is kept; default 24 h.
	Retention time.Duration
	// FiredMaxAge, DeadMaxAge and RejectedMaxAge bound the streams of fired events,
	// of dead letters and of refused adds; default 24 h, 30 days and 7 days.
	FiredMaxAge, DeadMaxAge, RejectedMaxAge time.Duration
	// FiredMaxPerService is how many events of one service stay in TIMERS_FIRED; 0 takes
	// a share of the stream.
	FiredMaxPerService int
	// MaxServices bounds the services with callbacks; default 20,000.
	MaxServices int
	// Timeout bounds every call to JetStream; default 5 s.
	Timeout time.Duration
	// Limits bound what an add may ask for.
	Limits schemas.Limits
	// InboxPrefixes are prefixes of reply subjects of API requests that are answered,
	// besides _INBOX…; see schemas.Inboxes.
	InboxPrefixes []string

	// Lease, Tick, Horizon and SweepDelay are the scheduler's; see package
	// scheduler.
	Lease, Tick, Horizon, SweepDelay time.Duration

	// AllowLoopback, AllowPrivate and AllowPrefixes open HTTP callbacks to such
	// addresses.
	AllowLoopback, AllowPrivate bool
	AllowPrefixes               []netip.Prefix
	// Concurrency and TotalConcurrency bound callbacks running at once, of one
	// service and of all; default 64 and 512.
	Concurrency, TotalConcurrency int
	// ServiceIdle is after how long without an event a service comes to rest: it loses
	// its consumers until its next one. Default 30 s, negative for never.
	ServiceIdle time.Duration
	// Callbacks are the settings of callbacks that Reconfigure replaces.
	Callbacks functions.Settings

	// SecretFiles are further files that hold secrets, such as the config file. The
	// node warns about each that every user of the host can read, and about Creds, the
	// keys of TLS and the data folder without being asked.
	SecretFiles []string

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
	// StopTimeout is how long Run lets Stop take.
	StopTimeout = 10 * time.Second
	// callbackGrace is how long running callbacks may go on after Stop begins.
	callbackGrace = 5 * time.Second
	// drainBound is the part of Stop that is given to router and functions,
	// releaseBound that of the scheduler. What is left is the server's.
	drainBound   = 6 * time.Second
	releaseBound = 2 * time.Second
	// aloneBound takes the place of either when the server does not answer.
	aloneBound = time.Second
	// flushBound is how long the server may take for requests that were cut off.
	flushBound = time.Second
	// probeBound is how long a server may take to answer when Stop begins.
	probeBound = time.Second
	// connectTimeout bounds one attempt to reach a server, and with it how long a
	// silent one holds up whoever uses the connection.
	connectTimeout = 2 * time.Second
	// A server that has missed so many pings, which are sent to the embedded one
	// and to others in these intervals, is taken for gone; so is one that takes no
	// bytes for writeBound, for which every call has to wait.
	pingsMissed = 2
	pingOwn     = 10 * time.Second
	pingOther   = 2 * time.Second
	writeBound  = 2 * time.Second
	// beatTimeout bounds one beat.
	beatTimeout = 2 * time.Second
	// timeTooOld is the age of the last reading of the cluster's time from which
	// on the node is not ready: the store has not answered for that long.
	timeTooOld = 5 * time.Second
)

func (o *Options) embedded() bool { return o.NATSURL == "" }

func (o *Options) runs(r Role) bool { return slices.Contains(o.Roles, r) }

func badConfig(format string, args ...any) error {
	return schemas.Errorf(schemas.CodeConfig, format, args...)
}

// DefaultOptions has every default filled in, but for Data, which has none, and
// Shards and Node, which the store and the data folder know.
func DefaultOptions() Options {
	return Options{
		NATSListen: DefaultNATSListen, HTTP: DefaultHTTP, Profile: ProfileSafe, Roles: AllRoles(), Replicas: 1,
		Retention: store.DefaultRetention, FiredMaxAge: store.DefaultFiredMaxAge, DeadMaxAge: store.DefaultDeadMaxAge, RejectedMaxAge: store.DefaultRejectedMaxAge, Timeout: store.DefaultTimeout,
		Limits: schemas.Limits{MaxHorizon: schemas.DefaultLimitHorizon},
		Lease:  scheduler.DefaultLease, Horizon: scheduler.DefaultHorizon, SweepDelay: scheduler.DefaultSweepDelay,
		Concurrency: functions.DefaultConcurrency, TotalConcurrency: functions.DefaultTotal, ServiceIdle: functions.DefaultServiceIdle,
		MaxServices: store.DefaultMaxServices,
	}
}

// Validate reports what is out of range, without touching anything outside.
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
	if len(o.Roles) == 0 {
		o.Roles = AllRoles()
	}
	return o.validate()
}

func (o *Options) validate() error {
	for _, r := range o.Roles {
		if !slices.Contains(AllRoles(), r) {
			return badConfig("role %.40q does not exist; the roles are router, scheduler and functions", string(r))
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
	if err := o.checkTogether(); err != nil {
		return err
	}
	if !o.embedded() {
		return nil
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
