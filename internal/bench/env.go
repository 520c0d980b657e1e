package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

// Env is the environment of one run: servers, connections, folders and settings. It is not safe
// for concurrent use.
type Env struct {
	Config
	node *app.App // the node in this process; nil before Start, and if the node is elsewhere
	// deployed has the separate processes of servers and node, or is nil.
	deployed *deployment
	url      string // URL of the deployed servers, if the node is one of the processes
	conns    []*nats.Conn
	clean    []func() error
	lost     context.CancelCauseFunc // ends the run with the reason if a process ends; may be nil
	js       jetstream.JetStream
	shard    int // number of shards of the store
	// flowKey is that of the adders that the run makes.
	flowKey func(n int) string
}

// Start starts the servers of Config.On and the system under test, or connects to the Belfry at
// NATSURL. Then it fires Warmup timers, which are not measured.
func (e *Env) Start(ctx context.Context) error {
	if e.NATSURL != "" {
		return e.begin(ctx)
	}
	if !e.InProcess {
		return e.startApart(ctx)
	}
	o := app.Options{
		HTTP: app.NoHTTP, Shards: e.Shards, Node: "bench", AllowLoopback: true, Retention: e.Retention, FiredMaxPerService: keptPerService,
		// Lower levels would break the progress line. The error of a run says why it failed.
		Log: zerolog.New(os.Stderr).With().Timestamp().Logger().Level(zerolog.ErrorLevel),
	}
	if e.overHTTP() {
		o.HTTP = "127.0.0.1:0"
	}
	var err error
	if e.On == OnEmbedded {
		if o.Data, err = e.TempDir(); err != nil {
			return err
		}
		o.NATSListen, o.Profile = "127.0.0.1:0", e.Profile
		if e.NoSearchIndex {
			o.Roles = app.SharedRoles()
		}
	} else {
		if e.deployed, err = e.deploy(false); err != nil {
			return err
		}
		if _, err := e.deployed.start(ctx); err != nil {
			return err
		}
		o.NATSURL, o.Replicas = e.deployed.url, e.deployed.replicas
	}
	if e.node, err = app.New(o); err != nil {
		return err
	}
	if err := e.node.Start(ctx); err != nil {
		return err
	}
	return e.begin(ctx)
}

// begin opens the run's connection (attach) and fires the Warmup timers.
func (e *Env) begin(ctx context.Context) error {
	if err := e.attach(ctx); err != nil {
		return err
	}
	return e.warm(ctx)
}

// warm adds timers and waits until they have fired, so that connections, pools and files exist
// before the measurement.
func (e *Env) warm(ctx context.Context) error {
	if e.Warmup <= 0 {
		return nil
	}
	p := e.progress()
	defer p.end()
	p.show("warming up with %d timers", e.Warmup)
	a, err := e.NewAdder("bench_warm")
	if err != nil {
		return err
	}
	due := make([]int64, e.Warmup)
	now := time.Now().UnixMilli()
	for n := range due {
		due[n] = now
	}
	w, err := e.Watch(ctx, a, due)
	if err != nil {
		return err
	}
	if err := a.Add(ctx, len(due), func(int) int64 { return now }, nil, nil); err != nil {
		return err
	}
	if err := w.Wait(ctx, patience, func(seen int) { p.show("warming up: %d of %d fired", seen, len(due)) }); err != nil {
		return err
	}
	_, err = e.drained(ctx, p)
	return err
}

// attach opens the connection on which the run reads streams and records.
func (e *Env) attach(ctx context.Context) error {
	nc, err := e.Connect("belfry bench")
	if err != nil {
		return err
	}
	if e.js, err = jetstream.New(nc); err != nil {
		return err
	}
	return e.sut().attach(ctx)
}

// countShards counts the shards of the Belfry that the run has connected to.
func (e *Env) countShards(ctx context.Context) error {
	for e.shard = 0; ; e.shard++ {
		_, err := e.js.Stream(ctx, "KV_"+schemas.BucketTimers(e.shard))
		switch {
		case err == nil:
		case errors.Is(err, jetstream.ErrStreamNotFound) && e.shard > 0:
			return nil
		default:
			return fmt.Errorf("no Belfry answers at %s: %w", schemas.RedactURLs(e.js.Conn().ConnectedUrl()), err)
		}
	}
}

// httpAddr returns the address of the node's HTTP API; "" for none.
func (e *Env) httpAddr() string {
	switch {
	case e.node != nil:
		return e.node.HTTPAddr()
	case e.deployed != nil:
		return e.deployed.http
	}
	return ""
}

// Connect opens another connection, which the end of the Env closes.
func (e *Env) Connect(name string) (*nats.Conn, error) {
	var nc *nats.Conn
	var err error
	if e.node != nil {
		nc, err = e.node.Connect(name)
	} else {
		opts := []nats.Option{nats.Name(name), nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond)}
		if e.Creds != "" {
			opts = append(opts, nats.UserCredentials(e.Creds))
		}
		url := cmp.Or(e.url, e.NATSURL)
		if nc, err = nats.Connect(url, opts...); err != nil {
			err = fmt.Errorf("NATS server %s cannot be reached: %w", schemas.RedactURLs(url), err)
		}
	}
	if err == nil {
		e.conns = append(e.conns, nc)
	}
	return nc, err
}

// TempDir creates a folder. The end of the Env removes it, unless Keep is set.
func (e *Env) TempDir() (string, error) {
	dir, err := os.MkdirTemp(e.Dir, "belfry-bench-")
	if err != nil {
		return "", err
	}
	if !e.Keep {
		e.onClose(func() error { return os.RemoveAll(dir) })
	} else if e.Progress != nil {
		_, err = fmt.Fprintf(e.Progress, "data is kept in %s\n", dir)
	}
	return dir, err
}

func (e *Env) onClose(f func() error) { e.clean = append(e.clean, f) }

// disconnect closes the connections, for a workload that changes the server.
func (e *Env) disconnect() {
	for _, nc := range e.conns {
		nc.Close()
	}
	e.conns = nil
}

func (e *Env) close(ctx context.Context) error {
	e.disconnect()
	var err error
	if e.node != nil {
		ctx, cancel := context.WithTimeout(ctx, app.StopTimeout)
		defer cancel()
		err = e.node.Stop(ctx)
	}
	for len(e.clean) > 0 {
		last := len(e.clean) - 1
		err = errors.Join(err, e.clean[last]())
		e.clean = e.clean[:last]
	}
	return err
}

// storePatience bounds the time in which no add is stored.
const storePatience = 30 * time.Second

// drained waits until every acknowledged add is a timer that can fire, and returns that time.
func (e *Env) drained(ctx context.Context, p *progress) (time.Time, error) {
	return e.waitStored(ctx, 0, 10*time.Millisecond, p)
}

// waitStored waits until at most most acknowledged adds are not timers that can fire, and returns that
// time. It asks every tick, and every againPause after an error, for example while a slow disk keeps the server from
// answering. It fails if the number does not fall for storePatience.
func (e *Env) waitStored(ctx context.Context, most uint64, tick time.Duration, p *progress) (time.Time, error) {
	least, fell := uint64(math.MaxUint64), time.Now()
	for {
		left, err := e.sut().unstored(ctx)
		if err != nil {
			if err := againAfter(ctx, err, fell, storePatience); err != nil {
				return time.Time{}, err
			}
			continue
		}
		now := time.Now()
		switch {
		case left <= most:
			return now, nil
		case left < least:
			least, fell = left, now
		case now.Sub(fell) > storePatience:
			err := fmt.Errorf("%d adds are not stored as timers, and none was stored for %s", left, storePatience)
			if !e.peer() {
				err = fmt.Errorf("%w: does a node with the role router run, and are the shards full (see GET /v1/status)?", err)
			}
			return now, err
		}
		p.show("%d adds wait for the router", left)
		if !pause.For(ctx, tick) {
			return now, context.Cause(ctx)
		}
	}
}
