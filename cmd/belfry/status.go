package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Thresholds for PROBLEMS.
const (
	// statusLag is the lag of a shard's low watermark, or the age of its clock, above which
	// status reports a problem. A fail-over takes less.
	statusLag = 10 * time.Second
	// statusFull is the used part of a stream's bytes above which status reports a problem.
	statusFull = 0.9
	// statusRejected is the time after the last rejection in which PROBLEMS lists rejections.
	// Without this limit they would stay there, because nobody can repair a rejected add.
	statusRejected = 24 * time.Hour
	// mostCircuits is the number of open circuits that PROBLEMS names.
	mostCircuits = 10
	// watchEvery is the interval of --watch.
	watchEvery = 2 * time.Second
)

// status is the state of all nodes, shards and streams at one moment. Its JSON is part of the
// interface.
type status struct {
	Time    time.Time `json:"time"` // the JetStream leader's
	Server  string    `json:"server"`
	Version string    `json:"nats_version"`
	// Problems lists conditions that an operator should check; it is empty if all is well.
	Problems []string     `json:"problems"`
	Nodes    []statusNode `json:"nodes"`
	// Formats is the format level that the nodes write, and the nodes that hold it back.
	Formats   store.Formats          `json:"formats"`
	Shards    []statusShard          `json:"shards"`
	Totals    statusTotals           `json:"totals"`
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
	Paused []statusPaused `json:"paused,omitempty"`
}

// statusPaused is a pause by a user.
type statusPaused struct {
	Key   string    `json:"key"`
	Since time.Time `json:"since"`
	By    string    `json:"by,omitempty"`
	Note  string    `json:"note,omitempty"`
}

type statusNode struct {
	Node      string   `json:"node"`
	Version   string   `json:"version,omitempty"`
	Roles     []string `json:"roles,omitempty"`
	Scheduler string   `json:"scheduler,omitempty"`
	Shards    int      `json:"shards"`
	// Reads is the format level that the node reads.
	Reads store.FormatLevel `json:"reads"`
	// Zones is the release of the time zone data that it uses.
	Zones    string    `json:"zones,omitempty"`
	InFlight int       `json:"in_flight"`
	Started  time.Time `json:"started,omitzero"`
	// SilentMs is the time since the node's last heartbeat.
	SilentMs int64 `json:"silent_ms"`
}

type statusShard struct {
	Shard int    `json:"shard"`
	Owner string `json:"owner"`
	Epoch uint64 `json:"epoch"`
	// Mark is the low watermark: every timer due before it has been fired.
	Mark time.Time `json:"mark"`
	// LagMs is the time from Mark to the cluster's time. SilentMs is the time since the last
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

type statusTotals struct {
	// Pending is the sum over all shards; absent while the number of one shard is.
	Pending  *int64 `json:"pending,omitempty"`
	InFlight int    `json:"in_flight"`
	Dead     uint64 `json:"dead"`
	Rejected uint64 `json:"rejected"`
	// DeadExpired counts dead letters that left their stream by age or size without a
	// replay, RejectedExpired rejected adds that left theirs.
	DeadExpired     uint64 `json:"dead_expired"`
	RejectedExpired uint64 `json:"rejected_expired"`
	// LastRejected is the time of the newest rejection in the stream.
	LastRejected time.Time `json:"last_rejected,omitzero"`
	// Adds is the number of adds that wait for a router.
	Adds uint64 `json:"adds_waiting"`
}

func (c *cli) statusCommand() *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show nodes, shards, clocks, counts, streams and consumers",
		Long: `Show the state of Belfry: the nodes, the owner and the lag of each shard, the numbers
of waiting timers, running callbacks and dead letters, and the streams and consumers.
The command only reads.

PROBLEMS lists conditions that you should check; "belfry doctor" shows how to fix them.`,
		Example: `  belfry status
  belfry status --watch
  belfry status -o json | jq .totals`,
		Args: exactly(0),
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show the status every "+schemas.FormatDuration(watchEvery)+" until interrupted")
	return c.following(cmd, func([]string) error { return nil }, func(ctx context.Context, s session) error {
		look, err := store.Look(s.Conn(), s.flags.requestTimeout())
		if err != nil {
			return err
		}
		defer look.Close()
		if watch {
			return c.watchStatus(ctx, s, look)
		}
		return c.showStatus(ctx, s, look)
	})
}

func (c *cli) showStatus(ctx context.Context, s session, look *store.View) error {
	ctx, cancel := s.call(ctx)
	defer cancel()
	st, err := readStatus(ctx, s, look)
	if err != nil {
		return err
	}
	if c.json() {
		return c.printJSON(st)
	}
	return c.printStatus(st)
}

// watchStatus prints the status repeatedly. It continues after a failed request, because
// users watch the status while parts fail.
func (c *cli) watchStatus(ctx context.Context, s session, look *store.View) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		if isTerminal(c.out) {
			if _, err := fmt.Fprint(c.out, "\x1b[H\x1b[2J"); err != nil {
				return err
			}
		}
		if err := c.showStatus(ctx, s, look); err != nil && ctx.Err() == nil {
			c.report(err)
		}
		select {
		case <-ctx.Done():
			return nil // the user interrupted the command
		case <-tick.C:
		}
	}
}

func readStatus(ctx context.Context, s session, look *store.View) (*status, error) {
	cluster, err := look.ReadCluster(ctx)
	if err == nil && len(cluster.Clocks) == 0 || errors.Is(err, nats.ErrNoResponders) {
		return nil, schemas.Errorf(schemas.CodeUnavailable, "found no Belfry store at %s: no Belfry has run there yet, or JetStream is not available", schemas.RedactURL(s.Conn().ConnectedUrl()))
	}
	if err != nil {
		return nil, err
	}
	st := &status{Server: schemas.RedactURL(s.Conn().ConnectedUrl()), Version: s.Conn().ConnectedServerVersion(), Problems: []string{}}
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
	st.fill(cluster)
	st.findProblems()
	st.Problems = append(st.Problems, calendars.Problems(cluster.Nodes)...)
	flows, err := look.ReadFlows(ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range flows.Paused() {
		st.Paused = append(st.Paused, statusPaused{Key: l.Pattern, Since: schemas.TimeOf(l.PausedMs), By: l.PausedBy, Note: l.Note})
	}
	for _, node := range flows.IgnoredBy(cluster.Nodes) {
		st.problem("node %s obeys no flow limits, because its version is too old: upgrade or stop it", node)
	}
	for _, node := range flows.AddsIgnoredBy(cluster.Nodes) {
		st.problem("node %s obeys no limits of adds, because its version is too old: upgrade or stop it", node)
	}
	open := flows.OpenCircuits(st.Time.UnixNano())
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
	for _, node := range flows.HoldsIgnoredBy(cluster.Nodes, st.Time.UnixNano()) {
		st.problem("node %s calls targets that asked for a pause (Retry-After) or cannot be reached, because its version is too old: upgrade or stop it", node)
	}
	for _, node := range flows.TargetsIgnoredBy(cluster.Nodes) {
		st.problem("node %s obeys no rates that targets allow, because its version is too old: upgrade or stop it", node)
	}
	return st, nil
}

// fill adds the clocks and presences. It reads the server's time after the clocks, so that no
// clock has a time in the future.
func (st *status) fill(cluster store.Cluster) {
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
	owned := map[string]int{}
	pending, unknown := int64(0), false
	for _, key := range cluster.Alien {
		st.problem("key %s of bucket clock is not Belfry's", key)
	}
	for _, c := range cluster.Clocks {
		owned[c.Clock.Owner]++
		sh := statusShard{
			Shard: c.Shard, Owner: c.Clock.Owner, Epoch: c.Clock.Epoch, Mark: time.UnixMilli(c.Clock.TimeMs).UTC(),
			LagMs: max(newest-c.Clock.TimeMs, 0), SilentMs: max(newest-c.StoredMs, 0),
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
		st.Nodes = append(st.Nodes, statusNode{
			Node: n.Node, Version: p.Release, Roles: p.Roles, Scheduler: p.Scheduler, Shards: owned[n.Node], Reads: p.Reads, Zones: p.Zones, InFlight: p.InFlight, Started: p.Started,
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

func (st *status) problem(format string, args ...any) {
	st.Problems = append(st.Problems, fmt.Sprintf(format, args...))
}

func (st *status) findProblems() {
	alive := 0
	roles := map[string]bool{}
	for _, n := range st.Nodes {
		if ms := time.Duration(n.SilentMs) * time.Millisecond; ms > statusLag {
			st.problem("node %s has sent no heartbeat for %s", n.Node, ms.Round(time.Second))
			continue
		}
		alive++
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
		case silent > statusLag:
			st.problem("the clock of shard %d has not changed for %s; its owner is %s", sh.Shard, silent.Round(time.Second), sh.Owner)
		case lag > statusLag:
			st.problem("the low watermark of shard %d is %s behind", sh.Shard, lag.Round(time.Second))
		}
	}
	for _, d := range st.Damage {
		st.Problems = append(st.Problems, d.Problems()...)
	}
	for _, h := range st.Streams {
		st.streamProblems(h)
	}
	st.lossProblems()
	for _, o := range st.Overtaken {
		st.problem("%s", o.Problem())
	}
	for _, t := range st.Trimmed {
		st.problem("%s", t.Problem())
	}
	for _, c := range st.Consumers {
		if c.Belfry && c.Pulls == 0 && c.Pending > 0 && c.InFlight == 0 {
			st.problem("%d messages wait in consumer %s of %s, and no client pulls them", c.Pending, c.Name, c.Stream)
		}
	}
}

// lossProblems reports dead letters and rejected adds.
func (st *status) lossProblems() {
	if n := st.Totals.Dead; n > 0 {
		st.problem("dead letters: %d (see belfry dead ls)", n)
	}
	if n, age := st.Totals.Rejected, st.Time.Sub(st.Totals.LastRejected); n > 0 && age < statusRejected {
		st.problem("rejected adds: %d, the last %s ago (see belfry rejected ls)", n, max(age, 0).Round(time.Second))
	}
}

func (st *status) streamProblems(h store.StreamHealth) {
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
	if h.MaxBytes > 0 && float64(h.Bytes) > statusFull*float64(h.MaxBytes) {
		st.problem("stream %s is %d %% full", h.Name, 100*h.Bytes/uint64(h.MaxBytes))
	}
}

// kept formats the number of messages in a stream, and the number that it has dropped.
func kept(n, expired uint64) string {
	if expired == 0 {
		return strconv.FormatUint(n, 10)
	}
	return fmt.Sprintf("%d (and %d expired)", n, expired)
}

func (c *cli) printStatus(st *status) error {
	p := &page{}
	p.line("%s  nats-server %s  %s", st.Server, st.Version, st.Time.Format("2006-01-02T15:04:05.000Z"))
	p.line("pending %s  in flight %d  dead %s  rejected %s  adds waiting %d", orUnknown(st.Totals.Pending), st.Totals.InFlight,
		kept(st.Totals.Dead, st.Totals.DeadExpired), kept(st.Totals.Rejected, st.Totals.RejectedExpired), st.Totals.Adds)
	p.line("formats: level %d, records of format %d%s", st.Formats.Level, st.Formats.Record, heldBack(st.Formats))
	columns(p, "NODE\tVERSION\tROLES\tSCHEDULER\tSHARDS\tIN FLIGHT\tUP\tHEARTBEAT", st.Nodes, func(n statusNode) []any {
		up := "?"
		if !n.Started.IsZero() {
			up = max(st.Time.Sub(n.Started), 0).Round(time.Second).String()
		}
		return []any{n.Node, cmp.Or(n.Version, "?"), strings.Join(n.Roles, ","), cmp.Or(n.Scheduler, "-"), n.Shards, n.InFlight, up, ago(n.SilentMs)}
	})
	columns(p, "SHARD\tOWNER\tEPOCH\tCLOCK\tLAG\tMOVED\tPENDING", st.Shards, func(s statusShard) []any {
		return []any{s.Shard, cmp.Or(s.Owner, "-"), s.Epoch, s.Mark.Format("15:04:05.000Z"), fmt.Sprintf("%.1fs", float64(s.LagMs)/1000), ago(s.SilentMs), orUnknown(s.Pending)}
	})
	columns(p, "STREAM\tMESSAGES\tBYTES\tOF\tREPLICAS\tLEADER", st.Streams, func(h store.StreamHealth) []any {
		current := 1
		for _, r := range h.Others {
			if r.Current && !r.Offline {
				current++
			}
		}
		return []any{h.Name, h.Messages, bytesText(int64(h.Bytes)), bytesText(h.MaxBytes), fmt.Sprintf("%d/%d", min(current, h.Replicas), h.Replicas), cmp.Or(h.Leader, "-")}
	})
	columns(p, "CONSUMER\tSTREAM\tPENDING\tIN FLIGHT\tREDELIVERED\tPULLS\tLEADER", st.Consumers, func(h store.ConsumerHealth) []any {
		return []any{h.Name, h.Stream, h.Pending, h.InFlight, h.Redelivered, h.Pulls, cmp.Or(h.Leader, "-")}
	})
	services := make([]string, 0, len(st.Dead))
	for svc := range st.Dead {
		services = append(services, svc)
	}
	slices.Sort(services)
	columns(p, "DEAD LETTERS OF\tCOUNT", services, func(svc string) []any { return []any{svc, st.Dead[svc]} })
	columns(p, "PAUSED\tSINCE\tBY\tNOTE", st.Paused, func(k statusPaused) []any {
		return []any{k.Key, k.Since.UTC().Format(time.RFC3339), cmp.Or(k.By, "-"), cmp.Or(k.Note, "-")}
	})
	p.line("")
	p.line("PROBLEMS: %s", cmp.Or(strings.Join(st.Problems, "; "), "none"))
	_, err := p.WriteTo(c.out)
	return err
}

// heldBack names the nodes that keep the others from a newer format level.
func heldBack(f store.Formats) string {
	if len(f.HeldBackBy) == 0 {
		return ""
	}
	return fmt.Sprintf("; level %d is held back by %s", f.Newest, strings.Join(f.HeldBackBy, ", "))
}

// orUnknown formats a count, or "?" for nil.
func orUnknown(n *int64) string {
	if n == nil {
		return "?"
	}
	return strconv.FormatInt(*n, 10)
}
