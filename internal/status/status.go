// Package status reads the state of all nodes, shards, streams and consumers at one moment, and finds
// conditions that an operator should check. It only reads, and needs no node.
package status

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Thresholds for PROBLEMS.
const (
	// lagLimit is the lag of a shard's low watermark, or the age of its clock, above which
	// status reports a problem. A fail-over takes less.
	lagLimit = 10 * time.Second
	// fullLimit is the used part of a stream's bytes above which status reports a problem.
	fullLimit = 0.9
	// rejectedFor is the time after the last rejection in which PROBLEMS lists rejections.
	// Without this limit they would stay there, because nobody can repair a rejected add.
	rejectedFor = 24 * time.Hour
	// mostCircuits is the number of open circuits that PROBLEMS names.
	mostCircuits = 10
)

// Status is the state of all nodes, shards and streams at one moment. Its JSON is part of the
// interface.
type Status struct {
	Time time.Time `json:"time"` // the JetStream leader's
	// Clock is what the clock of a development node shows; zero in any other store. Timers and
	// low watermarks follow it.
	Clock   time.Time `json:"clock,omitzero"`
	Server  string    `json:"server"`
	Version string    `json:"nats_version"`
	// Problems lists conditions that an operator should check; it is empty if all is well.
	Problems []string `json:"problems"`
	Nodes    []Node   `json:"nodes"`
	// Formats is the format level that the nodes write, and the nodes that hold it back.
	Formats   store.Formats          `json:"formats"`
	Shards    []Shard                `json:"shards"`
	Totals    Totals                 `json:"totals"`
	Dead      map[string]uint64      `json:"dead_by_service"`
	Streams   []store.StreamHealth   `json:"streams"`
	Consumers []store.ConsumerHealth `json:"consumers"`
	// Overtaken lists consumers that lose events unread.
	Overtaken []store.Overtaken `json:"overtaken,omitempty"`
	// Trimmed lists services that lost events early within the last 24 hours, since they
	// filled TIMERS_FIRED.
	Trimmed []store.Trimmed `json:"trimmed,omitempty"`
	// Damage lists the shards with damaged records or lost messages.
	Damage []store.ShardDamage `json:"damage,omitempty"`
	// Paused lists the paused flow keys, services and groups. Their callbacks wait.
	Paused []Paused `json:"paused,omitempty"`
}

// Paused is a pause of a flow key, service or group by a user.
type Paused struct {
	Key   string    `json:"key"`
	Since time.Time `json:"since"`
	By    string    `json:"by,omitempty"`
	Note  string    `json:"note,omitempty"`
}

// Node is a node that has sent heartbeats.
type Node struct {
	Node      string   `json:"node"`
	Version   string   `json:"version,omitempty"`
	Roles     []string `json:"roles,omitempty"`
	Scheduler string   `json:"scheduler,omitempty"`
	Shards    int      `json:"shards"`
	// Shared is true if several processes use the name of the node; see store.Presence.
	Shared bool `json:"shared,omitempty"`
	// Reads is the format level that the node reads.
	Reads store.FormatLevel `json:"reads"`
	// Zones is the release of the time zone data that it uses.
	Zones string `json:"zones,omitempty"`
	// Search is the state of its search index; nil without one.
	Search   *store.SearchState `json:"search,omitempty"`
	InFlight int                `json:"in_flight"`
	Started  time.Time          `json:"started,omitzero"`
	// SilentMs is the time since the node's last heartbeat.
	SilentMs int64 `json:"silent_ms"`
}

// Shard is a shard with its clock.
type Shard struct {
	Shard int    `json:"shard"`
	Owner string `json:"owner"`
	Epoch uint64 `json:"epoch"`
	// Mark is the low watermark: every timer due before it has been fired.
	Mark time.Time `json:"mark"`
	// LagMs is the time from Mark to the cluster's time, in a development store to Clock. SilentMs is the time since the last
	// write of the clock.
	LagMs    int64 `json:"lag_ms"`
	SilentMs int64 `json:"silent_ms"`
	// Pending is the number of timers in state pending or paused. It is absent while the number
	// is unknown, as after the death of an owner.
	Pending *int64 `json:"pending,omitempty"`
	// Damage is the reason why the clock cannot be decoded. The fields above are then the
	// values from which a node would resume.
	Damage string `json:"damage,omitempty"`
}

// Totals are sums over all shards, nodes and streams.
type Totals struct {
	// Pending is the sum over all shards; absent while the number of one shard is.
	Pending  *int64 `json:"pending,omitempty"`
	InFlight int    `json:"in_flight"`
	Dead     uint64 `json:"dead"`
	Rejected uint64 `json:"rejected"`
	// DeadExpired counts dead letters that left their stream by age or size without a
	// replay or discard, RejectedExpired rejected adds that left theirs.
	DeadExpired     uint64 `json:"dead_expired"`
	RejectedExpired uint64 `json:"rejected_expired"`
	// LastRejected is the time of the newest rejection in the stream.
	LastRejected time.Time `json:"last_rejected,omitzero"`
	// Adds is the number of adds that wait for a router.
	Adds uint64 `json:"adds_waiting"`
}

// Read reads the status with some requests; it changes nothing. look is a view of the store on conn.
// Errors: schemas.ErrUnavailable.
func Read(ctx context.Context, conn *jet.Conn, look *store.View) (*Status, error) {
	cluster, err := look.ReadCluster(ctx)
	if err == nil && len(cluster.Clocks) == 0 || errors.Is(err, jet.ErrNoResponders) {
		return nil, schemas.Errorf(schemas.CodeUnavailable, "found no Belfry store at %s: no Belfry has run there yet, or JetStream is not available", schemas.RedactURL(conn.ConnectedUrl()))
	}
	if err != nil {
		return nil, err
	}
	st := &Status{Server: schemas.RedactURL(conn.ConnectedUrl()), Version: conn.ConnectedServerVersion(), Problems: []string{}}
	if st.Streams, err = look.Streams(ctx); err != nil {
		return nil, err
	}
	if st.Consumers, err = look.Consumers(ctx); err != nil {
		return nil, err
	}
	if st.Overtaken, err = look.OvertakenConsumers(ctx); err != nil {
		return nil, err
	}
	if st.Trimmed, err = look.ReadTrimmed(ctx); err != nil {
		return nil, err
	}
	loss, err := look.DeadCounts(ctx)
	if err != nil {
		return nil, err
	}
	st.Dead, st.Totals.DeadExpired = loss.Dead, loss.DeadExpired
	st.Totals.Rejected, st.Totals.RejectedExpired, st.Totals.LastRejected = loss.Rejected, loss.RejectedExpired, loss.LastRejected
	if st.Damage, err = look.ReadDamage(ctx); err != nil {
		return nil, err
	}
	calendars, err := look.ReadCalendars(ctx)
	if err != nil {
		return nil, err
	}
	moved, err := look.ReadMovedClock(ctx)
	if err != nil {
		return nil, err
	}
	st.fill(cluster, moved)
	now := moved.At(st.Time.UnixMilli()) * int64(time.Millisecond)
	st.findProblems()
	st.Problems = append(st.Problems, calendars.Problems(cluster.Nodes)...)
	flows, err := look.ReadFlows(ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range flows.Paused() {
		st.Paused = append(st.Paused, Paused{Key: l.Pattern, Since: schemas.TimeOf(l.PausedMs), By: l.PausedBy, Note: l.Note})
	}
	for _, node := range flows.IgnoredBy(cluster.Nodes) {
		st.problem("node %s obeys no flow limits, because its version is too old: upgrade or stop it", node)
	}
	for _, node := range flows.AddsIgnoredBy(cluster.Nodes) {
		st.problem("node %s obeys no limits of adds, because its version is too old: upgrade or stop it", node)
	}
	open := flows.OpenCircuits(now)
	for i, h := range open {
		if i == mostCircuits {
			st.problem("%d more flow keys cannot be reached: see belfry flow ls", len(open)-i)
			break
		}
		st.problem("flow key %s cannot be reached since %s (%s): its callbacks wait for an answer to a probe", h.Key, time.Unix(0, h.Hold.OpenNs).UTC().Format(time.RFC3339), h.Reason)
	}
	for _, node := range flows.TurnsIgnoredBy(cluster.Nodes) {
		st.problem("node %s may take no turns with parallel calls, because its version is too old: the events of one node can wait long; upgrade or stop it", node)
	}
	for _, node := range flows.HoldsIgnoredBy(cluster.Nodes, now) {
		st.problem("node %s calls targets that asked for a pause (Retry-After) or cannot be reached, because its version is too old: upgrade or stop it", node)
	}
	for _, node := range flows.TargetsIgnoredBy(cluster.Nodes) {
		st.problem("node %s obeys no rates that targets allow, because its version is too old: upgrade or stop it", node)
	}
	return st, nil
}

// fill adds the clocks and presences. It reads the server's time after the clocks, so that no
// clock has a time in the future.
func (st *Status) fill(cluster store.Cluster, moved store.MovedClock) {
	for _, h := range st.Streams {
		if strings.HasSuffix(h.Name, "_"+schemas.BucketClock) {
			st.Time = h.Now.UTC()
		}
	}
	newest := st.Time.UnixMilli()
	for _, c := range cluster.Clocks {
		newest = max(newest, c.StoredMs)
	}
	st.Time = time.UnixMilli(newest).UTC()
	now := moved.At(newest)
	if moved != (store.MovedClock{}) {
		st.Clock = time.UnixMilli(now).UTC()
	}
	owned := map[string]int{}
	pending, unknown := int64(0), false
	for _, key := range cluster.Alien {
		st.problem("key %s of bucket clock is not Belfry's", key)
	}
	for _, c := range cluster.Clocks {
		owned[c.Clock.Owner]++
		sh := Shard{
			Shard: c.Shard, Owner: c.Clock.Owner, Epoch: c.Clock.Epoch, Mark: time.UnixMilli(c.Clock.TimeMs).UTC(),
			LagMs: max(now-c.Clock.TimeMs, 0), SilentMs: max(newest-c.StoredMs, 0),
		}
		if newest-moved.ServerMs < lagLimit.Milliseconds() { // its owner follows a move with its next writes
			sh.LagMs = sh.SilentMs
		}
		if c.Clock.PendingUnknown {
			unknown = true
		} else {
			sh.Pending = &c.Clock.Pending
			pending += c.Clock.Pending
		}
		if c.Err != nil {
			sh.Damage = c.Err.Error()
		}
		st.Shards = append(st.Shards, sh)
	}
	if !unknown {
		st.Totals.Pending = &pending
	}
	st.Formats = store.FormatsOf(cluster.Nodes)
	for _, n := range cluster.Nodes {
		p := n.Presence
		st.Totals.InFlight += p.InFlight
		st.Nodes = append(st.Nodes, Node{
			Node: n.Node, Version: p.Release, Roles: p.Roles, Scheduler: p.Scheduler, Shards: owned[n.Node], Shared: p.Shared, Reads: p.Reads, Zones: p.Zones, Search: p.Search, InFlight: p.InFlight, Started: p.Started,
			SilentMs: max(newest-n.StoredMs, 0),
		})
	}
	for _, n := range st.Dead {
		st.Totals.Dead += n
	}
	for _, h := range st.Streams {
		if h.Name == schemas.StreamAdd {
			st.Totals.Adds = h.Messages
		}
	}
}

func (st *Status) problem(format string, args ...any) {
	st.Problems = append(st.Problems, fmt.Sprintf(format, args...))
}

func (st *Status) findProblems() {
	alive := 0
	roles := map[string]bool{}
	for _, n := range st.Nodes {
		if ms := time.Duration(n.SilentMs) * time.Millisecond; ms > lagLimit {
			st.problem("node %s has sent no heartbeat for %s", n.Node, ms.Round(time.Second))
			continue
		}
		alive++
		if n.Shared {
			st.problem("several processes use the node name %s, and only one of them fires the shards of that name: give each process its own --node", n.Node)
		}
		if n.Search != nil {
			if text := n.Search.Problem(n.Node); text != "" {
				st.problem("%s", text)
			}
		}
		for _, r := range n.Roles {
			roles[r] = true
		}
	}
	if alive == 0 {
		st.problem("no node is alive")
	}
	for _, r := range []string{"router", "scheduler", "functions"} {
		if alive > 0 && !roles[r] {
			st.problem("no live node runs the %s", r)
		}
	}
	for _, sh := range st.Shards {
		switch silent, lag := time.Duration(sh.SilentMs)*time.Millisecond, time.Duration(sh.LagMs)*time.Millisecond; {
		case sh.Damage != "":
			st.problem("shard %d is suspended: %s", sh.Shard, sh.Damage)
		case sh.Owner == "":
			st.problem("shard %d has no owner", sh.Shard)
		case silent > lagLimit:
			st.problem("the clock of shard %d has not changed for %s; its owner is %s", sh.Shard, silent.Round(time.Second), sh.Owner)
		case lag > lagLimit:
			st.problem("the low watermark of shard %d is %s behind", sh.Shard, lag.Round(time.Second))
		}
	}
	for _, d := range st.Damage {
		st.Problems = append(st.Problems, d.Problems()...)
	}
	for _, h := range st.Streams {
		st.streamProblems(h)
	}
	if text := store.ClocksDiffer(st.Streams); text != "" {
		st.problem("%s", text)
	}
	st.lossProblems()
	for _, o := range st.Overtaken {
		st.problem("%s", o.Problem())
	}
	for _, t := range st.Trimmed {
		st.problem("%s", t.Problem())
	}
	for _, c := range st.Consumers {
		if text := c.Problem(); text != "" {
			st.problem("%s", text)
		}
		if c.Belfry && c.Pulls == 0 && c.Pending > 0 && c.InFlight == 0 {
			st.problem("%d messages wait in consumer %s of %s, and no client pulls them", c.Pending, c.Name, c.Stream)
		}
	}
}

// lossProblems reports dead letters and rejected adds.
func (st *Status) lossProblems() {
	if n := st.Totals.Dead; n > 0 {
		st.problem("dead letters: %d (see belfry dead ls)", n)
	}
	if n, age := st.Totals.Rejected, st.Time.Sub(st.Totals.LastRejected); n > 0 && age < rejectedFor {
		st.problem("rejected adds: %d, the last %s ago (see belfry rejected ls)", n, max(age, 0).Round(time.Second))
	}
}

func (st *Status) streamProblems(h store.StreamHealth) {
	if h.Clustered && h.Leader == "" {
		st.problem("stream %s has no leader", h.Name)
	}
	for _, r := range h.Others {
		switch {
		case r.Offline:
			st.problem("stream %s: the replica on %s is offline", h.Name, r.Server)
		case !r.Current:
			st.problem("stream %s: the replica on %s is behind by %d", h.Name, r.Server, r.Lag)
		}
	}
	if h.MaxBytes > 0 && float64(h.Bytes) > fullLimit*float64(h.MaxBytes) {
		st.problem("stream %s is %d %% full", h.Name, 100*h.Bytes/uint64(h.MaxBytes))
	}
}
