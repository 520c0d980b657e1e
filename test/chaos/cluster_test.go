//go:build unix

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/chaos/check"
	"github.com/belfryio/belfry/test/proc"
)

// Sizes and bounds of the cluster.
const (
	serverCount, nodeCount, replicas = 3, 3, 3
	lease                            = 3 * time.Second
	// wellBound bounds the recovery of the cluster after a fault.
	wellBound = 60 * time.Second
	// smallDisk is the size of the disk that can be filled, in memory. It suffices for
	// half an hour.
	smallDisk = 1 << 30
	// clusterSweepDelay is longer than any add waits while no router works. The sweeper
	// could not distinguish an add that is stored later, behind the low watermark, from a
	// missed timer. It is the dedup window, the least value that a node accepts.
	clusterSweepDelay = store.DefaultDedupWindow
)

// member is a node with its own network link to each server.
type member struct {
	*proc.Node
	title string // node1, …: the name in the report
	name  string // the node's name since its last start
	links []*proc.Link
}

// cluster is three servers and three nodes, all real processes.
type cluster struct {
	t       *testing.T
	rec     *check.Recorder
	servers []*proc.Server
	nodes   []*member
	js      jetstream.JetStream

	mu     sync.Mutex
	clocks map[int]seenClock // the newest clock of each shard
	told   map[string]bool   // advisories that were recorded
}

// seenClock is a clock and its revision.
type seenClock struct {
	store.Clock
	rev uint64
}

// clusterServices is the number of services in addition to the first.
const clusterServices = 8

// clusterConfig is the configuration of a node. Services rest soon, and some have
// settings of their own.
func clusterConfig(retention time.Duration) string {
	return fmt.Sprintf(`replicas: %d
lease: %s
allow-loopback: true
retention: %s
sweep-delay: %s
service-idle: 1s
services:
  chaos:
    secret: %s
  chaos-1:
    concurrency: 2
  chaos-3:
    mode: structured
  %s:
    concurrency: 8
`, replicas, lease, retention, clusterSweepDelay, webhookSecret, workService)
}

func newCluster(t *testing.T, rec *check.Recorder, retention time.Duration) *cluster {
	t.Helper()
	c := &cluster{t: t, rec: rec, servers: proc.NewServers(t, serverCount), clocks: map[int]seenClock{}, told: map[string]bool{}}
	// If the machine permits, one server has a disk that can be filled.
	if err := c.servers[serverCount-1].SmallDisk(smallDisk); err != nil {
		t.Logf("THE FAULT %s IS LEFT OUT: this machine gives no disk that can be filled: %v", diskFull, err)
	}
	for i := range nodeCount {
		m := &member{title: "node" + strconv.Itoa(i+1)}
		var urls []string
		for _, s := range c.servers {
			k := proc.NewLink(t, s.Address())
			m.links = append(m.links, k)
			urls = append(urls, "nats://"+k.Address())
		}
		m.Node = proc.New(t, proc.Options{
			NATSURL: strings.Join(urls, ","),
			Config:  clusterConfig(retention),
		})
		c.nodes = append(c.nodes, m)
	}
	return c
}

// start starts all processes and waits until they work.
func (c *cluster) start() {
	c.t.Helper()
	for _, s := range c.servers {
		s.Start()
	}
	c.serversWell()
	js, err := jetstream.New(dial(c.t, c.url()))
	if err != nil {
		c.t.Fatal(err)
	}
	c.js = js
	for _, m := range c.nodes {
		m.Start()
	}
	for _, s := range c.servers {
		c.watch(s)
	}
	c.well()
}

// well waits until servers and nodes are ready and every shard has fired all that is due.
func (c *cluster) well() {
	c.t.Helper()
	c.serversWell()
	c.nodesWell()
	c.passed(time.Now())
}

// passed waits until every shard has fired all that was due at a time.
func (c *cluster) passed(at time.Time) {
	c.t.Helper()
	eventually(c.t, wellBound, "every shard past now", func(context.Context) (bool, error) { return c.past(at) })
}

// url lists all servers, without the nodes' links.
func (c *cluster) url() string {
	var urls []string
	for _, s := range c.servers {
		urls = append(urls, s.URL())
	}
	return strings.Join(urls, ",")
}

func (c *cluster) serversWell() {
	c.t.Helper()
	for _, s := range c.servers {
		if err := s.WaitHealthy(c.t.Context(), wellBound); err != nil {
			c.t.Fatalf("server %s: %v", s.Name, err)
		}
	}
}

func (c *cluster) nodesWell() {
	c.t.Helper()
	for _, m := range c.nodes {
		c.up(m)
	}
}

// up waits until a node serves. A node that exits during its start, because no server
// answers, is started again, as systemd would do.
func (c *cluster) up(m *member) {
	c.t.Helper()
	until := time.Now().Add(wellBound)
	for {
		err := m.WaitReady(c.t.Context(), time.Until(until))
		if err == nil {
			break
		}
		if !errors.Is(err, proc.ErrEnded) || time.Now().After(until) {
			c.t.Fatalf("%s: %v; its log:\n%s", m.title, err, m.LogTail())
		}
		c.rec.Put(check.Event{Kind: check.Start, Target: m.title, Note: "again: it ended while it started"})
		pause.For(c.t.Context(), 200*time.Millisecond)
		m.Start()
	}
	name, err := m.Name(c.t.Context())
	if err != nil {
		c.t.Fatalf("%s: %v", m.title, err)
	}
	m.name = name
}

// watch records every write of a shard's clock that one server delivers. The time of a
// write is the server's timestamp.
func (c *cluster) watch(s *proc.Server) {
	nc := dial(c.t, s.URL())
	if _, err := nc.Subscribe(electedAdvisory+">", c.elected); err != nil {
		c.t.Fatal(err)
	}
	var done sync.WaitGroup
	ctx, cancel := context.WithCancel(c.t.Context())
	c.t.Cleanup(func() { cancel(); done.Wait() })
	for shard := range schemas.DefaultShards {
		done.Go(func() {
			for pause.For(ctx, 100*time.Millisecond) {
				m, err := nc.Request(fmt.Sprintf("$JS.API.DIRECT.GET.KV_%s.$KV.%s.clock.%d", schemas.BucketClock, schemas.BucketClock, shard), nil, 400*time.Millisecond)
				if err == nil {
					c.saw(shard, m)
				}
			}
		})
	}
}

const electedAdvisory = "$JS.EVENT.ADVISORY.STREAM.LEADER_ELECTED."

// elected records an election. Each connection receives the advisory.
func (c *cluster) elected(m *nats.Msg) {
	var a struct {
		ID, Stream, Leader string
		Timestamp          time.Time
	}
	if err := json.Unmarshal(m.Data, &a); err != nil {
		c.t.Error(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.told[a.ID] {
		c.told[a.ID] = true
		c.rec.Put(check.Event{Kind: check.Elected, Name: a.Stream, Target: a.Leader, TimeNs: a.Timestamp.UnixNano()})
	}
}

func (c *cluster) saw(shard int, m *nats.Msg) {
	rev, err := strconv.ParseUint(m.Header.Get("Nats-Sequence"), 10, 64)
	if err != nil {
		return // a status, such as "not found": no clock
	}
	at, err := time.Parse(time.RFC3339Nano, m.Header.Get("Nats-Time-Stamp"))
	if err != nil {
		c.t.Error(err)
		return
	}
	var clock store.Clock
	if err := json.Unmarshal(m.Data, &clock); err != nil {
		c.t.Error(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if rev <= c.clocks[shard].rev {
		return // already recorded, or a replica is behind
	}
	c.clocks[shard] = seenClock{clock, rev}
	c.rec.Put(check.Event{Kind: check.Clock, Shard: shard, Owner: clock.Owner, Epoch: clock.Epoch, Sequence: rev, TimeNs: at.UnixNano(), DueMs: clock.TimeMs, Tail: clock.Tail})
}

// past reports whether every shard has an owner whose low watermark has passed a time.
func (c *cluster) past(then time.Time) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for shard := range schemas.DefaultShards {
		clock := c.clocks[shard]
		if watermark := time.UnixMilli(clock.TimeMs); clock.Owner == "" || watermark.Before(then) {
			return false, fmt.Errorf("shard %d: owner %q, low watermark %s", shard, clock.Owner, watermark)
		}
	}
	return true, nil
}

// shardsOf returns the shards that a node owns.
func (c *cluster) shardsOf(name string) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []int
	for shard := range schemas.DefaultShards {
		if c.clocks[shard].Owner == name {
			out = append(out, shard)
		}
	}
	return out
}

func allShards() []int {
	var out []int
	for shard := range schemas.DefaultShards {
		out = append(out, shard)
	}
	return out
}

// leader returns the server that leads a stream.
func (c *cluster) leader(stream string) (*proc.Server, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Second)
	defer cancel()
	s, err := c.js.Stream(ctx, stream)
	if err != nil {
		return nil, err
	}
	for _, srv := range c.servers {
		if info := s.CachedInfo(); info.Cluster != nil && info.Cluster.Leader == srv.Name {
			return srv, nil
		}
	}
	return nil, fmt.Errorf("%s has no leader", stream)
}

func shardStream(shard int) string { return "KV_" + schemas.BucketTimers(shard) }

const clockStream = "KV_" + schemas.BucketClock

// ledBy returns the shards that need a server: those whose bucket it leads, or all shards
// if it leads a stream that all of them need.
func (c *cluster) ledBy(srv *proc.Server) []int {
	for _, stream := range []string{clockStream, schemas.StreamFired} {
		if l, err := c.leader(stream); err == nil && l == srv {
			return allShards()
		}
	}
	var out []int
	for shard := range schemas.DefaultShards {
		if l, err := c.leader(shardStream(shard)); err == nil && l == srv {
			out = append(out, shard)
		}
	}
	return out
}
