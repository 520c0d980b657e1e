package bench

import (
	"cmp"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/schemas"
)

// Config configures a run: the load, the deployment and the output. The zero value of a field
// means its default, which may depend on the workload.
type Config struct {
	// NATSURL is a server on which Belfry runs already. If it is empty, the run starts Belfry
	// on On, in new folders that it removes afterwards.
	NATSURL string
	// Creds is a NATS credentials file for NATSURL.
	Creds string
	// On is the server deployment of the measured node; default OnEmbedded.
	On Topology
	// Dir is the folder for the servers' data, on the disk to measure; default the system's
	// folder for temporary files.
	Dir string
	// Keep keeps the folders after the run and writes their paths to Progress.
	Keep bool
	// Profile is the servers' profile; default safe.
	Profile app.Profile
	// LoadFast makes the pending workload add its timers in the fast profile. Profile then
	// applies only to the measurements after the adds.
	LoadFast bool
	// Shards of the store; default schemas.DefaultShards.
	Shards int
	// System is the system under test; default Belfry. Other systems have no callbacks and accept adds
	// by ViaPublish, ViaBatch and ViaSingle. NATSSchedules needs OnServer or OnCluster, Floor OnEmbedded.
	System System
	// InProcess runs the node in the process of the clients, which connect to its embedded server
	// without TCP. By default the node is a process of its own, and the clients connect over TCP, as
	// in practice. Figures of an in-process run are better than those of any real deployment.
	InProcess bool
	// NoSearchIndex leaves the role visibility out of a node with OnEmbedded. A node on other
	// servers has no such role by default.
	NoSearchIndex bool
	// Idle measures the idle node for Seconds after the run. It needs a node in a process of its
	// own.
	Idle bool

	// Rate is the number of timers due per second. For workloads of single adds it is the
	// number of adds started per second, 0 for no limit.
	Rate int
	// Seconds is the period in which timers are due, or in which an idle node is measured.
	Seconds int
	// Count is the number of timers, for workloads without a Rate.
	Count int
	// Beside is the number of timers due per second, for Seconds, while the timers of the
	// pending workload wait; 0 for none.
	Beside int
	// Every is the period of the schedules of the schedules workload, 1 s or more. Daily and
	// Instant are the number of schedules of its other two parts: due once a day, and due at
	// one instant; at most one of them is not 0.
	Every          time.Duration
	Daily, Instant int
	// Settle is the time after the adds of the pending workload at which their memory is measured.
	// It lets a process return the memory that only the adds needed. 0 means the workload's
	// default, less than 0 no such measurement.
	Settle time.Duration
	// Keys makes the flow workload measure this many idle flow keys; 0 for callbacks under a limit.
	Keys int
	// Size is the size of the event's data, in bytes; default DefaultSize.
	Size int
	// Workers is the number of concurrent adders, each with its own connection; default
	// DefaultWorkers for ViaPublish and batches, DefaultSingles for one request at a time.
	Workers int
	// Callers is the number of concurrent callers of the cancel workload, each with its own
	// connection and one request at a time.
	Callers int
	// Via is the way to add timers; default ViaPublish.
	Via string
	// Callback is the kind of callback of the timers: CallbackHTTP, CallbackNATS, or "" for
	// none.
	Callback string
	// Services is the number of services over which the timers of steady, burst, day and
	// callback are spread; default 1. If there are several, each fires a timer before the
	// measurement.
	Services int
	// Lead is the time from the add to the due time of a timer; 0 means the workload's default.
	Lead time.Duration
	// Retention is how long the node keeps the records of finished timers; 0 means the node's
	// default. If it is set, the run reads the records concurrently, before they expire.
	Retention time.Duration
	// Ahead makes the steady workload add all timers before the first one is due, so that it
	// measures only firing.
	Ahead bool
	// Warmup is the number of timers that are added and fired before the measurement; 0 means
	// DefaultWarmup, less than 0 none.
	Warmup int

	// Raw is the number of raw JetStream operations of each kind to measure on the same server
	// after the run; 0 for none.
	Raw int
	// CPUProfile is a file for a CPU profile of the first run's measurement. It needs InProcess, as
	// the profile is of this process.
	CPUProfile string
	// MemProfile is a file for a profile of the allocations up to the end of the first run's
	// measurement. It needs InProcess.
	MemProfile string

	// Progress receives progress lines; nil for none. If Live is true it is a terminal, and
	// each line overwrites the previous one.
	Progress io.Writer
	Live     bool
	// Child returns the command of a process that calls RunChild with the spec. Runs that start
	// nats-server processes, or nodes in separate processes, need it.
	Child func(spec string) *exec.Cmd
}

// Topology is the server deployment of the measured node.
type Topology string

// The topologies.
const (
	OnEmbedded Topology = "embedded" // a server in the node's process
	OnServer   Topology = "server"   // a nats-server process
	OnCluster  Topology = "cluster"  // three nats-server processes, three replicas
)

// How timers are added.
const (
	ViaPublish = "publish" // timers.add; each worker has a window of unacknowledged publishes
	ViaBatch   = "batch"   // timers.add; each worker publishes atomic batches of 500 in turn, as the Go client's AddBatch does
	ViaSingle  = "single"  // timers.add; each worker publishes one event at a time
	ViaAPI     = "api"     // timers.api.add; each worker sends one request at a time
	ViaClient  = "client"  // the Go client's Add; each worker makes one call at a time
	// ViaClientAsync is the Go client's AddAsync; each worker has a window of unacknowledged adds.
	ViaClientAsync = "clientasync"
	ViaClientBatch = "clientbatch" // the Go client's AddBatch; each worker adds 500 in turn
	ViaHTTP        = "http"        // POST /v1/timers; each worker sends one request at a time
	// ViaHTTPBatch is POST /v1/events; each worker sends batches of 500 in turn.
	ViaHTTPBatch = "httpbatch"
)

// Kinds of callbacks.
const (
	CallbackHTTP = "http"
	CallbackNATS = "nats"
)

// Defaults and bounds of Config.
const (
	DefaultSize    = 400
	DefaultWorkers = 2
	DefaultSingles = 16
	DefaultWarmup  = 2000
	maxWorkers     = 1024
	maxServices    = 10_000
	maxCount       = 100_000_000
	// keptPerService is the number of fired events of one service that the tool's own nodes keep:
	// the default with enough free disk space. With less, the node makes its streams smaller, and
	// events of a large run would leave TIMERS_FIRED before the tool has verified them.
	keptPerService = 1 << 20
	minRetention   = 30 * time.Second // leaves time to read the records
	replicas       = 3
)

func bad(format string, args ...any) error {
	return schemas.Errorf(schemas.CodeConfig, format, args...)
}

// oneByOne reports whether each worker waits for the answer to each add.
func (c *Config) oneByOne() bool {
	return c.Via == ViaSingle || c.Via == ViaAPI || c.Via == ViaClient || c.Via == ViaHTTP
}

// vias are the ways to add timers.
var vias = []string{ViaPublish, ViaBatch, ViaSingle, ViaAPI, ViaClient, ViaClientAsync, ViaClientBatch, ViaHTTP, ViaHTTPBatch}

// overHTTP reports whether timers are added over HTTP.
func (c *Config) overHTTP() bool { return c.Via == ViaHTTP || c.Via == ViaHTTPBatch }

func (c *Config) setDefaults() error {
	c.Size = cmp.Or(c.Size, DefaultSize)
	c.Via = cmp.Or(c.Via, ViaPublish)
	if !c.oneByOne() {
		c.Workers = cmp.Or(c.Workers, DefaultWorkers)
	}
	c.Workers = cmp.Or(c.Workers, DefaultSingles)
	c.Warmup = cmp.Or(c.Warmup, DefaultWarmup)
	c.Shards = cmp.Or(c.Shards, schemas.DefaultShards)
	c.Services = cmp.Or(c.Services, 1)
	c.Profile = cmp.Or(c.Profile, app.ProfileSafe)
	if c.System == NATSSchedules {
		c.On = cmp.Or(c.On, OnServer)
	}
	c.On = cmp.Or(c.On, OnEmbedded)
	switch {
	case c.Size < 0 || c.Size > schemas.DefaultLimitPayload:
		return bad("size is %d; it must be 1 to %d bytes", c.Size, schemas.DefaultLimitPayload)
	case c.Workers < 1 || c.Workers > maxWorkers:
		return bad("workers is %d; it must be 1 to %d", c.Workers, maxWorkers)
	case c.Services < 1 || c.Services > maxServices:
		return bad("services is %d; it must be 1 to %d", c.Services, maxServices)
	case c.Rate < 0 || c.Seconds < 0 || c.Lead < 0 || c.Beside < 0:
		return bad("rate, seconds, lead and beside cannot be negative")
	case c.Every < 0 || c.Daily < 0 || c.Instant < 0 || c.Daily > maxCount || c.Instant > maxCount:
		return bad("every, daily and instant cannot be negative; daily and instant are at most %d", maxCount)
	case c.Every > 0 && c.Every < time.Second:
		return bad("every is %s; it must be 1s or more", c.Every)
	case c.Keys < 0 || c.Keys > maxCount:
		return bad("keys is %d; it must be 0 to %d", c.Keys, maxCount)
	case c.Daily > 0 && c.Instant > 0:
		return bad("daily and instant are two measurements: give only one of them")
	case c.Count < 0 || c.Count > maxCount:
		return bad("count is %d; it must be 1 to %d", c.Count, maxCount)
	case c.Callers < 0 || c.Callers > maxWorkers:
		return bad("callers is %d; it must be 1 to %d", c.Callers, maxWorkers)
	case !slices.Contains(vias, c.Via):
		return bad("via %.40q does not exist; it is one of %s", c.Via, strings.Join(vias, ", "))
	case c.overHTTP() && c.NATSURL != "":
		return bad("via %s uses the HTTP address of a node that the tool starts: leave out nats-url", c.Via)
	case c.Callback != "" && c.Callback != CallbackHTTP && c.Callback != CallbackNATS:
		return bad("callback %.40q does not exist; it is %s or %s", c.Callback, CallbackHTTP, CallbackNATS)
	case c.On != OnEmbedded && c.On != OnServer && c.On != OnCluster:
		return bad("on %.40q does not exist; it is %s, %s or %s", string(c.On), OnEmbedded, OnServer, OnCluster)
	case c.NATSURL != "" && c.On != OnEmbedded:
		return bad("on %s starts servers, and nats-url uses a running server: give only one of them", c.On)
	case c.InProcess && c.NATSURL != "":
		return bad("in-process starts a new node: leave out nats-url")
	case (c.CPUProfile != "" || c.MemProfile != "") && !c.InProcess && c.NATSURL == "":
		return bad("cpuprofile and memprofile are of this process, and the node has its own: add in-process")
	case c.Retention != 0 && (c.Retention < minRetention || c.NATSURL != ""):
		return bad("retention configures a new node: leave out nats-url, and give %s or more", minRetention)
	case c.Idle && (c.InProcess || c.NATSURL != ""):
		return bad("idle measures a node in a process of its own: leave out in-process and nats-url")
	case c.Raw < 0 || c.Raw > maxCount:
		return bad("raw is %d; it must be 0 to %d", c.Raw, maxCount)
	}
	return c.checkPeer()
}

// checkPeer checks what a system other than Belfry does not allow.
func (c *Config) checkPeer() error {
	switch {
	case c.peer() && c.System != NATSSchedules && c.System != Floor:
		return bad("system %.40q does not exist; it is %s, %s or %s", string(c.System), Belfry, NATSSchedules, Floor)
	case !c.peer():
		return nil
	case c.System == Floor && c.On != OnEmbedded:
		return bad("the floor always has an embedded server: leave out on")
	case c.System == NATSSchedules && c.On == OnEmbedded:
		return bad("%s run on a server of their own: on is %s or %s", c.System, OnServer, OnCluster)
	case c.Profile != app.ProfileSafe && c.Profile != app.ProfileFast:
		return bad("profile %.40q does not exist; it is %s or %s", string(c.Profile), app.ProfileSafe, app.ProfileFast)
	case c.Via != ViaPublish && c.Via != ViaBatch && c.Via != ViaSingle:
		return bad("via %s is for Belfry; %s takes %s, %s and %s", c.Via, c.System, ViaPublish, ViaBatch, ViaSingle)
	case c.NATSURL != "" || c.InProcess || c.Callback != "" || c.Retention != 0 || c.Raw != 0 || c.Keys != 0 || c.Every != 0 || c.Daily != 0 || c.Instant != 0:
		return bad("nats-url, in-process, callback, retention, raw, keys, every, daily and instant are for Belfry: leave them out")
	}
	return nil
}
