package bench

import (
	"io"
	"os/exec"
	"time"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/schemas"
)

// Config says what to measure, and on what. The zero value of a field means its
// default, which may be the workload's own.
type Config struct {
	// NATSURL is a server on which Belfry runs; empty starts an embedded one in
	// this process, in a new folder that is removed afterwards.
	NATSURL string
	// Creds is a NATS credentials file for NATSURL.
	Creds string
	// Dir is where the embedded server's folder is made; default the system's for
	// temporary files. It should be on the disk that is to be measured.
	Dir string
	// Profile is that of the embedded server; default safe.
	Profile app.Profile
	// Shards of the embedded server; default schemas.DefaultShards.
	Shards int

	// Rate is how many timers are due a second.
	Rate int
	// Seconds is how long timers are due, or how long idleness is watched.
	Seconds int
	// Count is how many timers there are, where Rate does not say.
	Count int
	// Size is the size of the event's data, in bytes; default 128.
	Size int
	// Workers add at the same time, each on a connection of its own; default 2.
	Workers int
	// Via is how timers are added: ViaPublish (default) or ViaAPI.
	Via string
	// Lead is how far ahead of its due time a timer is added; 0 lets the workload
	// choose.
	Lead time.Duration

	// Progress takes a line while it runs; nil for none. Live says that it is a
	// terminal, where the line is drawn over.
	Progress io.Writer
	Live     bool
	// Serve makes the command of a Belfry of its own process, for the workloads
	// that kill it: it serves the data folder, NATS and HTTP at these addresses.
	Serve func(data, nats, http string) *exec.Cmd
}

// How timers are added.
const (
	ViaPublish = "publish" // timers.add, acknowledged by JetStream
	ViaAPI     = "api"     // timers.api.add, one request at a time and worker
)

// Defaults and bounds of Config.
const (
	DefaultSize    = 128
	DefaultWorkers = 2
	maxWorkers     = 256
	maxCount       = 100_000_000
)

func bad(format string, args ...any) error {
	return schemas.Errorf(schemas.CodeConfig, format, args...)
}

func (c *Config) setDefaults() error {
	orInt := func(p *int, d int) {
		if *p == 0 {
			*p = d
		}
	}
	orInt(&c.Size, DefaultSize)
	orInt(&c.Workers, DefaultWorkers)
	orInt(&c.Shards, schemas.DefaultShards)
	if c.Profile == "" {
		c.Profile = app.ProfileSafe
	}
	if c.Via == "" {
		c.Via = ViaPublish
	}
	switch {
	case c.Size < 0 || c.Size > schemas.DefaultLimitPayload:
		return bad("size is %d; it must be 1 to %d bytes", c.Size, schemas.DefaultLimitPayload)
	case c.Workers < 1 || c.Workers > maxWorkers:
		return bad("workers is %d; it must be 1 to %d", c.Workers, maxWorkers)
	case c.Rate < 0 || c.Seconds < 0 || c.Lead < 0:
		return bad("rate, seconds and lead cannot be negative")
	case c.Count < 0 || c.Count > maxCount:
		return bad("count is %d; it must be 1 to %d", c.Count, maxCount)
	case c.Via != ViaPublish && c.Via != ViaAPI:
		return bad("via %.40q does not exist; it is %s or %s", c.Via, ViaPublish, ViaAPI)
	}
	return nil
}
