// Package doctor checks the NATS installation that Belfry runs on, and describes how to fix each
// problem. It only reads.
//
// A server reports its settings only to its system account. A check without the necessary
// permissions has the result Unknown, never OK.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Level is the severity of a finding.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Unknown Level = "unknown" // the user lacks the permissions for the check
	Warning Level = "warning" // Belfry works, but less well or less safely than it should
	Error   Level = "error"   // Belfry does not work, or breaks a guarantee
)

// Finding is the result of one check.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Text  string `json:"text"`
	// Do is the advice for the operator; empty if there is nothing to do.
	Do string `json:"do,omitempty"`
}

// Options of an examination.
type Options struct {
	Conn *nats.Conn // of the account that Belfry uses; required
	// Sys is a connection of the system account, nil for none.
	Sys *nats.Conn
	// Loopback is true if Conn is connected to an embedded server that listens only on
	// loopback addresses.
	Loopback bool
	// Store is the configuration of the nodes.
	Store store.Config
	// Safe is true for the safe profile: acknowledged writes must survive power loss.
	Safe bool
	// NodesDecide makes Safe only a default: if every live node announces the fast profile,
	// the examination assumes that profile.
	NodesDecide bool
	// Timeout bounds each request.
	Timeout time.Duration
}

// Thresholds of the checks.
const (
	// minMajor and minMinor are the oldest nats-server version that Belfry supports.
	minMajor, minMinor = 2, 11
	// clockOffset is the largest normal difference between a host's clock and the leader's.
	clockOffset = time.Second
	// offsetTries is the number of readings of the leader's clock; the fastest counts.
	offsetTries = 5
	// maxPayload is the max_payload for events of the default size limit, in bytes.
	maxPayload = 1 << 20
	// longFailing is the time for which the head of an ordering key may fail before it is reported.
	longFailing = time.Hour
	// silent is the age from which a clock or a node's presence counts as stale.
	silent = 10 * time.Second
)

// examination is one run.
type examination struct {
	o        Options
	js       jetstream.JetStream
	look     *store.View
	findings []Finding
	servers  []Server
	streams  []store.StreamHealth
	cluster  store.Cluster
	moved    store.MovedClock
}

// Examine runs every check and returns a finding for each. It returns an error only if it
// could not run the checks.
func Examine(ctx context.Context, o Options) ([]Finding, error) {
	if o.Timeout == 0 {
		o.Timeout = store.DefaultTimeout
	}
	js, err := jetstream.New(o.Conn, jetstream.WithDefaultTimeout(o.Timeout))
	if err != nil {
		return nil, fmt.Errorf("doctor: %w", err)
	}
	look, err := store.Look(o.Conn, o.Timeout)
	if err != nil {
		return nil, err
	}
	defer look.Close()
	e := &examination{o: o, js: js, look: look}
	e.version()
	e.found("zones", OK, "", "time zone data %s, embedded: every node of this version uses it, and no other", calendar.ZoneDataVersion)
	account := e.jetStream(ctx)
	if account == nil {
		return e.findings, ctx.Err()
	}
	found := e.readStore(ctx)
	e.limits(account)
	e.permissions(ctx)
	e.boundary(ctx)
	if found {
		e.clock(ctx)
		e.streamSettings()
		e.health()
		e.addsInFlight(ctx)
		e.overtaken(ctx)
		e.trimmed(ctx)
		e.damage(ctx)
		e.calendars(ctx)
		e.flows(ctx)
		e.orders(ctx)
		e.replicas()
	}
	e.askServers(ctx)
	e.sync()
	return e.findings, ctx.Err()
}

func (e *examination) found(check string, level Level, do, format string, args ...any) {
	e.findings = append(e.findings, Finding{Check: check, Level: level, Text: fmt.Sprintf(format, args...), Do: do})
}

func (e *examination) version() {
	v := e.o.Conn.ConnectedServerVersion()
	var major, minor int
	if n, err := fmt.Sscanf(v, "%d.%d", &major, &minor); n != 2 || err != nil {
		e.found("version", Unknown, "", "nats-server reports the version %q", v)
		return
	}
	if major < minMajor || major == minMajor && minor < minMinor {
		e.found("version", Error, "upgrade every nats-server", "nats-server is %s; Belfry needs %d.%d or later", v, minMajor, minMinor)
		return
	}
	e.found("version", OK, "", "nats-server is %s", v)
	if n := e.o.Conn.MaxPayload(); n < maxPayload {
		e.found("payload", Warning, "set max_payload: 1MB in the server's config", "the server accepts messages of up to %d bytes; Belfry rejects larger timers", n)
	}
}

// jetStream checks that JetStream is enabled, and describes the account; nil if it is not.
func (e *examination) jetStream(ctx context.Context) *jetstream.AccountInfo {
	info, err := e.js.AccountInfo(ctx)
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, nats.ErrNoResponders):
		e.found("jetstream", Error, "start nats-server with -js, or with a jetstream block in its config", "JetStream is not enabled on the server")
		return nil
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		e.found("jetstream", Error, "connect as a user of Belfry's account. If this is to be Belfry's account, enable JetStream for it (accounts { NAME { jetstream: enabled } }, or in its JWT); do not enable it in an account of users", "JetStream is not enabled for this account")
		return nil
	case err != nil:
		e.found("jetstream", Error, "wait until the servers have elected a leader, and read their logs; check that the user may publish to $JS.API.INFO", "JetStream does not answer: %v", err)
		return nil
	}
	e.found("jetstream", OK, "", "JetStream is enabled: %d streams, %d consumers, %d bytes stored", info.Streams, info.Consumers, info.Store)
	return info
}

// limits checks JetStream's limits for the account.
func (e *examination) limits(info *jetstream.AccountInfo) {
	shards := cmp.Or(len(e.cluster.Clocks), e.o.Store.Geometry.Shards, schemas.DefaultShards)
	l, bad := info.Limits, false
	tell := func(level Level, do, format string, args ...any) {
		bad = true
		e.found("limits", level, do, format, args...)
	}
	others := max(info.Streams-len(e.streams), 0)
	if need := store.StreamCount(shards, len(e.o.Store.TenantFired) > 0); l.MaxStreams > 0 && l.MaxStreams < need+others {
		tell(Error, fmt.Sprintf("allow the account %d streams or more (max_streams in nats-server's config)", need+others), "the account may have %d streams; Belfry creates %d, and the account has %d others", l.MaxStreams, need, others)
	}
	if l.MaxConsumers > 0 && l.MaxConsumers < fewConsumers {
		tell(Warning, "allow the account two consumers for each service with callbacks, and one for each node and shard", "the account may have %d consumers", l.MaxConsumers)
	}
	if l.MaxStore > 0 && info.Store > uint64(l.MaxStore)/10*9 {
		tell(Warning, "raise the account's storage, or shorten retention and fired-max-age", "%d of the account's %d bytes are used", info.Store, l.MaxStore)
	}
	if !bad {
		e.found("limits", OK, "", "the account's limits suffice (streams %s, consumers %s, bytes %s)", limit(int64(l.MaxStreams)), limit(int64(l.MaxConsumers)), limit(l.MaxStore))
	}
}

// fewConsumers is a limit of consumers that a few services and nodes reach already.
const fewConsumers = 64

func limit(n int64) string {
	if n <= 0 {
		return "unlimited"
	}
	return fmt.Sprint(n)
}

// clock compares this host's clock with the clock of the server that leads the stream of
// bucket clock.
func (e *examination) clock(ctx context.Context) {
	var best, offset time.Duration
	for range offsetTries {
		sent := time.Now()
		at, err := e.look.LeaderNow(ctx)
		took := time.Since(sent)
		if err != nil {
			e.found("clock", Unknown, "", "the leader's clock cannot be read: %v", err)
			return
		}
		if best == 0 || took < best {
			best, offset = took, sent.Add(took/2).Sub(at)
		}
	}
	margin := best / 2
	if text := store.ClocksDiffer(e.streams); text != "" {
		e.found("clock", Error, "synchronise the servers' clocks (NTP): when another server leads, timers fire too late or too early by this time", "%s", text)
	}
	switch {
	case offset.Abs() > clockOffset+margin:
		e.found("clock", Warning, "synchronise the hosts' clocks (NTP): timers follow the leader's clock, people and clients their own", "this host's clock is %s %s the JetStream leader's", offset.Abs().Round(time.Millisecond), aheadOf(offset))
	default:
		within := max((offset.Abs() + margin).Round(time.Millisecond), time.Millisecond)
		e.found("clock", OK, "", "this host's clock is within %s of the JetStream leader's", within)
	}
}

func aheadOf(d time.Duration) string {
	if d > 0 {
		return "ahead of"
	}
	return "behind"
}

// readStore reports false if no Belfry has run here.
func (e *examination) readStore(ctx context.Context) bool {
	var err error
	if e.streams, err = e.look.Streams(ctx); err != nil {
		e.found("streams", Error, "give the user the right to publish to $JS.API.STREAM.LIST, or look at the servers' logs", "the streams cannot be listed: %v", err)
		return false
	}
	if err := e.look.CheckRestored(ctx); schemas.CodeOf(err) == schemas.CodeConfig {
		e.found("restore", Error, "", "the store is not complete: %v", err)
	}
	if len(e.streams) == 0 {
		e.found("streams", OK, "", "there are no streams yet: the first \"belfry serve\" creates them")
		return false
	}
	if e.cluster, err = e.look.ReadCluster(ctx); err != nil {
		e.found("nodes", Error, "give the user the right to publish to $JS.API.DIRECT.GET.KV_clock, or look at the servers' logs", "the clocks cannot be read: %v", err)
		return false
	}
	if e.moved, err = e.look.ReadMovedClock(ctx); err != nil {
		e.found("nodes", Error, "restart \"belfry dev\"", "the clock of the development node cannot be read: %v", err)
		return false
	}
	return true
}

func (e *examination) streamSettings() {
	shards := max(len(e.cluster.Clocks), 1)
	want := e.o.Store.Geometry.Shards
	other := want > 0 && want != shards
	if other {
		e.found("streams", Error, fmt.Sprintf("leave shards out, or set it to %d: it is fixed at the first start", shards), "the store has %d shards, and the settings ask for %d", shards, want)
	}
	settings := e.o.Store
	if e.moved != (store.MovedClock{}) {
		settings.DedupWindow = store.DevelopmentDedupWindow
	}
	diffs, err := store.Differences(e.streams, settings, shards)
	if err != nil {
		e.found("streams", Error, "correct the setting", "%v", err)
		return
	}
	for _, d := range diffs {
		switch {
		case d.Missing:
			e.found("streams", Error, "restore a backup if there is one (see docs/operations.md): the stream's messages are lost. A node that starts creates the stream again, empty", "stream %s is missing", d.Stream)
		case d.Fatal:
			e.found("streams", Error, "give Belfry another account, in which it creates its streams itself. Remove this stream only if it has no messages of Belfry, because that loses its messages", "stream %s has %s %v; Belfry needs %v", d.Stream, d.Setting, d.Have, d.Want)
		default:
			e.found("streams", Warning, "restart the nodes with these settings: they change the stream", "stream %s has %s %v; the settings say %v", d.Stream, d.Setting, d.Have, d.Want)
		}
	}
	if len(diffs) == 0 && !other {
		e.found("streams", OK, "", "%d streams match the settings", len(e.streams))
	}
}

// newest returns the latest timestamp of the leader that this examination has read, in Unix
// milliseconds.
func (e *examination) newest() int64 {
	newest := int64(0)
	for _, h := range e.streams {
		newest = max(newest, h.Now.UnixMilli())
	}
	return newest
}

// now is newest, moved in a development store: the time that timers and flow keys follow, in Unix
// milliseconds.
func (e *examination) now() int64 { return e.moved.At(e.newest()) }

// alive returns the nodes whose presence is recent.
func (e *examination) alive() []store.Member {
	newest := e.newest()
	var out []store.Member
	for _, n := range e.cluster.Nodes {
		if newest-n.StoredMs < silent.Milliseconds() {
			out = append(out, n)
		}
	}
	return out
}

// health checks nodes and clocks.
func (e *examination) health() {
	newest := e.newest()
	if alive := len(e.alive()); alive == 0 {
		e.found("nodes", Error, "start \"belfry serve\"", "no node is alive")
	} else {
		e.found("nodes", OK, "", "nodes alive: %d", alive)
	}
	for _, n := range e.alive() {
		if n.Presence.Shared {
			e.found("nodes", Error, "give each process its own --node", "several processes use the node name %s: only one of them fires the shards of that name", n.Node)
		}
	}
	e.differences()
	e.zones()
	e.search()
	bad := 0
	for _, c := range e.cluster.Clocks {
		still := time.Duration(newest-c.StoredMs) * time.Millisecond
		if c.Err != nil {
			bad++
			do := "a node with the role scheduler writes it again within seconds; if this stays, look at the nodes' logs, run \"belfry repair\", and see who may publish to $KV.clock.>"
			if errors.Is(c.Err, schemas.ErrNewer) {
				do = "start a node of the newer version, or upgrade these"
			}
			e.found("shards", Error, do, "shard %d is suspended: %v", c.Shard, c.Err)
			continue
		}
		if c.Clock.Owner == "" || still > silent {
			bad++
			e.found("shards", Error, "see that a node with the role scheduler runs, and look at its log", "shard %d has owner %q, and its clock moved %s ago", c.Shard, c.Clock.Owner, still.Round(time.Second))
		}
	}
	for _, key := range e.cluster.Alien {
		e.found("shards", Warning, "remove it with a KV client, and see who may publish to $KV.clock.>", "key %s of bucket clock is not Belfry's", key)
	}
	if bad == 0 {
		e.found("shards", OK, "", "all %d shards have an owner and a clock that moves", len(e.cluster.Clocks))
	}
}

// differences compares the settings that live nodes announce.
func (e *examination) differences() {
	alive := e.alive()
	values, differ := map[string]string{}, map[string]bool{}
	level := store.NewestLevel
	var older []string
	for _, n := range alive {
		if level = min(level, n.Presence.Reads); n.Presence.Reads < store.NewestLevel {
			older = append(older, n.Node)
		}
		for name, v := range n.Presence.Settings {
			if was, known := values[name]; known && was != v {
				differ[name] = true
			}
			values[name] = v
		}
	}
	for _, name := range slices.Sorted(maps.Keys(differ)) {
		var say []string
		for _, n := range alive {
			if v, ok := n.Presence.Settings[name]; ok {
				say = append(say, n.Node+" "+v)
			}
		}
		e.found("settings", Warning, "give all nodes of a store the same "+name, "nodes differ in %s: %s", name, strings.Join(say, ", "))
	}
	if level < store.NewestLevel {
		e.found("formats", Warning, "upgrade these nodes: "+strings.Join(older, ", "), "nodes of an older version are alive (format level %d; this program reads %d), so %s", level, store.NewestLevel, withoutLevel(level))
	}
}

// withoutLevel names the functions that a store lacks while its nodes write this format level.
func withoutLevel(level store.FormatLevel) string {
	lacks := "timers that are due in hours do not share index entries"
	if level < store.LevelTenantFlow {
		lacks += ", tenants have no flow keys"
	}
	if level < store.LevelQuota {
		lacks += ", no limits of schedules, services and bytes can be set"
	}
	if level < store.LevelWebhook {
		lacks += ", these nodes ask no targets for their permission (webhook-origin), and obey no rates that targets allow"
	}
	if level < store.LevelPending {
		lacks += ", no limits of pending timers can be set"
	}
	if level < store.LevelAdds {
		lacks += ", no limits of adds can be set"
	}
	if level < store.LevelTenants {
		lacks += ", no timers of tenants can be added"
	}
	if level < store.LevelFlow {
		lacks += ", no limits of flow keys can be changed"
	}
	if level < store.LevelSchedules {
		lacks += ", no schedules can be added"
	}
	if level < store.LevelRestingServices {
		lacks += ", services without work keep their consumers"
	}
	if level < store.LevelRecord2 {
		lacks += ", and records are written in the older format, without checksum and history"
	}
	return lacks
}

// zones compares the time zone data of live nodes with this program's. Nodes with
// different data plan the same schedule for different times.
func (e *examination) zones() {
	var differ []string
	for _, n := range e.alive() {
		if z := n.Presence.Zones; z != "" && z != calendar.ZoneDataVersion {
			differ = append(differ, n.Node+" "+z)
		}
	}
	if len(differ) > 0 {
		e.found("zones", Warning, "run the same version of belfry on all nodes", "nodes use other time zone data than this program's %s: %s", calendar.ZoneDataVersion, strings.Join(differ, ", "))
	}
}

// search checks that the search indexes of live nodes keep up.
func (e *examination) search() {
	for _, n := range e.alive() {
		if s := n.Presence.Search; s != nil {
			if text := s.Problem(n.Node); text != "" {
				e.found("search", Warning, "look at belfry_visibility_… of the node, or run the role visibility on another node", "%s", text)
			}
		}
	}
}

// addsInFlight reports adds that are delivered and not stored, before they stop the adds of all shards.
func (e *examination) addsInFlight(ctx context.Context) {
	all, err := e.look.Consumers(ctx)
	if err != nil {
		e.found("adds", Unknown, "", "the consumers cannot be listed: %v", err)
		return
	}
	for _, c := range all {
		if text := c.Problem(); text != "" {
			e.found("adds", Error, "see which shard has no leader, a full bucket or a dead server (belfry status), and the routers' logs", "%s", text)
		}
	}
}

// overtaken checks for consumers that lose unread events.
func (e *examination) overtaken(ctx context.Context) {
	all, err := e.look.OvertakenConsumers(ctx)
	switch {
	case err != nil:
		e.found("consumers", Unknown, "", "cannot find out whether consumers of %s lose events: %v", schemas.StreamFired, err)
	case len(all) == 0:
		e.found("consumers", OK, "", "no consumer of %s has lost unread events", schemas.StreamFired)
	}
	for _, o := range all {
		do := "run its reader, or remove it with: nats consumer rm " + o.Stream + " " + o.Consumer
		if o.Belfry {
			do = "let the service make more callbacks at once (concurrency), or keep more of its events (" + o.Why + ")"
		}
		e.found("consumers", Warning, do, "%s", o.Problem())
	}
}

// trimmed checks for services that fill TIMERS_FIRED.
func (e *examination) trimmed(ctx context.Context) {
	all, err := e.look.ReadTrimmed(ctx)
	switch {
	case err != nil:
		e.found("fired events", Unknown, "", "cannot find out whether a service fills %s: %v", schemas.StreamFired, err)
	case len(all) == 0:
		e.found("fired events", OK, "", "no service fills %s", schemas.StreamFired)
	}
	for _, t := range all {
		e.found("fired events", Warning, "give "+schemas.StreamFired+" more bytes, or have service "+t.Service+" fire less or smaller events", "%s", t.Problem())
	}
}

// damage reports the damage that the owners of shards have found.
func (e *examination) damage(ctx context.Context) {
	shards, err := e.look.ReadDamage(ctx)
	switch {
	case err != nil:
		e.found("damage", Unknown, "", "cannot read the nodes' reports of damaged records: %v", err)
	case len(shards) == 0:
		e.found("damage", OK, "", "no node has found damaged records or lost messages")
	}
	for _, d := range shards {
		do := "run \"belfry repair\", and see who may publish to the buckets ($KV.>)"
		if d.Loss != nil {
			do = "check the disk and its file system; run \"belfry repair\", add the missing timers again or restore a backup, and take note of the loss with --apply"
		}
		for _, text := range d.Problems() {
			e.found("damage", Error, do, "%s", text)
		}
	}
}

// orders checks for ordering keys that wait for an event that keeps failing.
func (e *examination) orders(ctx context.Context) {
	all, more, err := e.look.FailingOrders(ctx, e.now(), longFailing, mostPaused)
	if err != nil {
		e.found("order", Unknown, "", "cannot find out whether events of ordering keys keep failing: %v", err)
		return
	}
	for _, f := range all {
		e.found("order", Warning, "repair its target, or run \"belfry cancel "+f.Timer.String()+"\": then the next event of the key is called", "%s", f.Problem())
	}
	switch {
	case more:
		e.found("order", Warning, "run \"belfry order ls -n 0\"", "there may be more ordering keys with an event that has failed for more than an hour: not all were looked at")
	case len(all) == 0:
		e.found("order", OK, "", "no ordering key waits for an event that has failed for more than an hour")
	}
}

// calendars checks that the calendars of excluded dates can be read.
func (e *examination) calendars(ctx context.Context) {
	set, err := e.look.ReadCalendars(ctx)
	if err != nil {
		e.found("calendars", Unknown, "", "cannot read the calendars of excluded dates: %v", err)
		return
	}
	problems := set.Problems(e.cluster.Nodes)
	for _, text := range problems {
		e.found("calendars", Error, "put a calendar that is damaged or does not exist with \"belfry calendar put\"; for a damaged one, see who may publish to its bucket ($KV.>); for one of a newer version, upgrade the nodes", "%s", text)
	}
	if len(problems) == 0 {
		e.found("calendars", OK, "", "%d calendars of excluded dates can be read", len(set.Names()))
	}
}

// replicas compares the streams' replicas with the number of servers, and checks for
// replicas that are behind.
func (e *examination) replicas() {
	var behind []string
	clustered, have := false, 1
	for _, h := range e.streams {
		clustered = clustered || h.Clustered
		have = max(have, h.Replicas)
		if h.Clustered && h.Leader == "" {
			e.found("replicas", Error, "start the servers that are down: a majority of a stream's replicas must run", "stream %s has no leader", h.Name)
		}
		for _, r := range h.Others {
			if !r.Current || r.Offline {
				behind = append(behind, h.Name+" on "+r.Server)
			}
		}
	}
	if len(behind) > 0 {
		e.found("replicas", Warning, "start the servers that are down, and wait until servers that have just started have caught up", "replicas are behind or offline: %s", strings.Join(behind, ", "))
	}
	switch {
	case clustered && have == 1:
		e.found("replicas", Warning, "run every node with replicas 3: a node changes the streams when it starts", "the streams have 1 replica on a cluster: while its server is down timers wait, and if its disk is lost they are lost")
	case have > 1 && len(behind) == 0:
		e.found("replicas", OK, "", "every stream has its %d replicas", have)
	case have == 1:
		e.found("replicas", OK, "", "one server, one replica: while it is down nothing fires, and all data is on one disk")
	}
}
