package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/gctune"
)

// childSpec is the specification of a child process. Exactly one field is set.
type childSpec struct {
	Node   *nodeSpec   `json:"node,omitempty"`
	Server *serverSpec `json:"server,omitempty"`
	Floor  *floorSpec  `json:"floor,omitempty"`
}

// nodeSpec has the settings of a node in a separate process.
type nodeSpec struct {
	// Data and NATSListen configure an embedded server, NATSURL and Replicas the use of an
	// external server.
	Data, NATSListen string
	NATSURL          string
	Replicas         int
	HTTP             string
	Profile          app.Profile
	Shards           int
	Retention        time.Duration // 0 for the default
	NoSearchIndex    bool
}

// command makes the command of a child process.
func (c *Config) command(spec childSpec) *exec.Cmd {
	text, err := json.Marshal(spec)
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	return c.Child(string(text))
}

// RunChild runs the process of a spec, which the parent passed to Config.Child: a node, a
// nats-server or the floor, until ctx or in ends. in ends when the parent process ends.
func RunChild(ctx context.Context, spec string, in io.Reader) error {
	var s childSpec
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		return bad("the spec of a child process is not JSON: %v", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		defer cancel()
		// Any error also means that the parent is gone.
		_, _ = io.Copy(io.Discard, in)
	}()
	switch {
	case s.Node != nil:
		return runNode(ctx, *s.Node)
	case s.Server != nil:
		return runServer(ctx, *s.Server)
	case s.Floor != nil:
		return runFloor(ctx, *s.Floor)
	}
	return fmt.Errorf("the spec of a child process names no node, server or floor")
}

// runNode runs a node like "belfry serve" without a config file: with the default settings, the
// same tuning of the garbage collector, and a log on standard error. It may call receivers on
// this machine, and keeps keptPerService events of a service.
func runNode(ctx context.Context, s nodeSpec) error {
	defer gctune.Start(ctx)()
	o := app.DefaultOptions()
	o.HTTP, o.Shards, o.AllowLoopback, o.FiredMaxPerService = s.HTTP, s.Shards, true, keptPerService
	o.Log = zerolog.New(zerolog.SyncWriter(os.Stderr)).Level(zerolog.InfoLevel).With().Timestamp().Logger()
	if s.Retention != 0 {
		o.Retention = s.Retention
	}
	if s.NoSearchIndex {
		o.Roles = app.SharedRoles()
	}
	if s.NATSURL != "" {
		o.NATSURL, o.Replicas = s.NATSURL, s.Replicas
	} else {
		o.Data, o.NATSListen, o.Profile = s.Data, s.NATSListen, s.Profile
	}
	a, err := app.New(o)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}
