package bench

import (
	"cmp"
	"io"
	"os/exec"
	"time"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/schemas"
)

// Config says what to measure, and on what. The zero value of a field means its
// default, which may be the workload's own.
type Config struct {
	// NATSURL is a server on which Belfry runs; empty starts what On says, in new
	// folders that are removed afterwards.
	NATSURL string
	// Creds is a NATS credentials file for NATSURL.
	Creds string
	// On says on what server the node runs that is measured; default OnEmbedded.
	On Topology
	// Dir is where the servers' folders are made; default the system's for
	// temporary files. It should be on the disk that is to be measured.
	Dir string
	// Keep leaves the folders behind and writes their paths to Progress.
	Keep bool
	// Profile is that of the servers; default safe.
	Profile app.Profile
	// LoadFast lets the pending workload add its timers in the fast profile,
	// whatever Profile is: then only what is measured afterwards is of Profile.
	LoadFast bool
	// Shards of the store; default schemas.DefaultShards.
	Shards int
	// Apart runs the node in a process of its own, too, so that its CPU, memory and disk
	// can be measured without those of the clients. It takes no HTTP callbacks.
	Apart bool
	// Idle watches it for Seconds after the run, with Apart.
	Idle bool

	// Rate is how many timers are due a second; for single adders how many are
	// begun a second, 0 for as many as there can be.
	Rate int
	// Seconds is how long timers are due, or how long idleness is watched.
	Seconds int
	// Count is how many timers there are, where Rate does not say.
	Count int
	// Beside is how many timers are due a second, for Seconds, while the timers of the
	// pending workload wait; 0 for none.
	Beside int
	// Size is the size of the event's data, in bytes; default DefaultSize.
	Size int
	// Workers add, or cancel, at the same time, each on a connection of its own;
	// the default is DefaultWorkers for a window of publishes, DefaultSingles for
	// one request at a time.
	Workers int
	// Via is how timers are added; default ViaPublish.
	Via string
	// Callback is what timers call back: CallbackHTTP, CallbackNATS, or nothing.
	Callback string
	// Services is how many services the timers of steady, burst, day and callback
	// are for, in turn; default 1. If there are several, each has had a timer before
	// anything is measured.
	Services int
	// Lead is how far ahead of its due time a timer is added; 0 lets the workload
	// choose.
	Lead time.Duration
	// Retention is how long the node keeps the records of timers that are concluded;
	// 0 for its default. The records are read beside the run then, so that each is
	// seen before it is gone.
	Retention time.Duration
	// Ahead lets the steady workload add all of its timers before the first is due,
	// so that only firing them is measured.
	Ahead bool
	// Warmup is how many timers are added and fired before anything is measured;
	// 0 is DefaultWarmup, less than 0 none.
	Warmup int

	// Raw is how many raw JetStream operations of each kind are measured on the
	// same server after the run; 0 for none.
	Raw int
	// CPUProfile is a file for a CPU profile of what is measured, of the first run.
	CPUProfile string
	// MemProfile is a file for a profile of what was allocated until the first run
	// was measured.
	MemProfile string

	// Progress takes a line while it runs; nil for none. Live says that it is a
	// terminal, where the line is drawn over.
	Progress io.Writer
	Live     bool
	// Child makes the command of a process that calls RunChild with the spec. It is
	// needed for nats-server processes, and for nodes in processes of their own.
	Child func(spec string) *exec.Cmd
}

// Topology says on what a node runs.
type Topology string

// The topologies.
const (
	OnEmbedded Topology = "embedded" // a server in the node's process
	OnServer   Topology = "server"   // a nats-server process
	OnCluster  Topology = "cluster"  // three nats-server processes, three replicas
)

// How timers are added.
const (
	ViaPublish = "publish" // timers.add, a window of publishes under way
	ViaBatch   = "batch"   // timers.add, an atomic batch of 500 at a time and worker, as the client's AddBatch
	ViaSingle  = "single"  // timers.add, one publish at a time and worker
	ViaAPI     = "api"     // timers.api.add, one request at a time and worker
	ViaClient  = "client"  // the Go client's Add, one call at a time and worker
)

// What timers call back.
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
	minRetention   = 30 * time.Second // to read the records at leisure
	replicas       = 3
)

func bad(format string, args ...any) error {
	return schemas.Errorf(schemas.CodeConfig, format, args...)
}

// oneByOne reports whether each worker waits for the answer to each add.
func (c *Config) oneByOne() bool {
	return c.Via == ViaSingle || c.Via == ViaAPI || c.Via == ViaClient
}

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
	case c.Count < 0 || c.Count > maxCount:
		return bad("count is %d; it must be 1 to %d", c.Count, maxCount)
	case c.Via != ViaPublish && c.Via != ViaBatch && !c.oneByOne():
		return bad("via %.40q does not exist; it is %s, %s, %s, %s or %s", c.Via, ViaPublish, ViaBatch, ViaSingle, ViaAPI, ViaClient)
	case c.Callback != "" && c.Callback != CallbackHTTP && c.Callback != CallbackNATS:
		return bad("callback %.40q does not exist; it is %s or %s", c.Callback, CallbackHTTP, CallbackNATS)
	case c.On != OnEmbedded && c.On != OnServer && c.On != OnCluster:
		return bad("there is no %.40q to run on; it is %s, %s or %s", string(c.On), OnEmbedded, OnServer, OnCluster)
	case c.NATSURL != "" && c.On != OnEmbedded:
		return bad("on %s starts servers, and nats-url names a server that runs: give one of them", c.On)
	case c.Apart && (c.NATSURL != "" || c.Callback == CallbackHTTP):
		return bad("apart starts a node, which makes no HTTP callbacks to this machine: leave out nats-url and callback %s", CallbackHTTP)
	case c.Retention != 0 && (c.Retention < minRetention || c.NATSURL != ""):
		return bad("retention is of a node that is started, and %s or more", minRetention)
	case c.Idle && !c.Apart:
		return bad("only a node that is apart is watched when idle")
	case c.Raw < 0 || c.Raw > maxCount:
		return bad("raw is %d; it must be 0 to %d", c.Raw, maxCount)
	}
	return nil
}
