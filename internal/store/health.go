package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Look opens a store to look at it: nothing is made, changed or checked, and only
// ReadCluster and the calls of this file work. timeout bounds each request; 0 is
// the default. The connection stays the caller's.
func Look(nc *jet.Conn, timeout time.Duration) (*Store, error) {
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	c, err := jet.New(nc, jet.Options{Timeout: timeout, Window: 1, MapError: MapError})
	if err != nil {
		return nil, err
	}
	s := &Store{
		jet: c, cfg: Config{Timeout: timeout, Level: NewestLevel}, log: zerolog.Nop(), background: newBackground(context.Background()),
		DamageReports: DamageReports{jet: c}, Health: Health{jet: c},
		Nodes: newNodes(c, "", NewestLevel), Shards: newShards(c, schemas.Geometry{}),
	}
	layout := layoutRecord{jet: c, log: s.log}
	s.Levels = newLevels(s.Nodes, layout, s.log) // never run: what is written has the oldest format
	s.Clocks = newClocks(c, s.Shards, s.Nodes, layout, s.log, s.DamageReports.of(newDecoder(s.Shards, NewestLevel, s.log)))
	s.FiredShare = newFiredShare(c, s.log, s.Nodes.first.Load, s.Nodes.carriedMs)
	s.LetterCounts = &LetterCounts{jet: c}
	return s, nil
}

// Replica is one copy of a stream besides its leader's.
type Replica struct {
	Server string `json:"server"`
	// Current is false while it is behind, or not known to be up to date.
	Current bool `json:"current"`
	Offline bool `json:"offline,omitempty"`
	// Lag is how many operations it is behind.
	Lag uint64 `json:"lag,omitempty"`
}

// StreamHealth is what a stream's leader says of it.
type StreamHealth struct {
	Name     string `json:"name"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
	MaxBytes int64  `json:"max_bytes"`
	// Removed is how many messages have left the stream since it was made.
	Removed  uint64 `json:"removed"`
	Replicas int    `json:"replicas"`
	// Leader is empty on a server without a cluster, and while there is none.
	Leader string    `json:"leader,omitempty"`
	Others []Replica `json:"others,omitempty"`
	// Clustered tells the two meanings of an empty Leader apart.
	Clustered bool `json:"clustered,omitempty"`
	// Now is the answering server's clock when it answered.
	Now time.Time `json:"-"`
	// Config is as the server has it.
	Config jet.StreamConfig `json:"-"`
}

// ConsumerHealth is what a consumer's leader says of it.
type ConsumerHealth struct {
	Stream string `json:"stream"`
	Name   string `json:"name"`
	// Belfry tells its own consumers from those of others.
	Belfry bool   `json:"belfry"`
	Leader string `json:"leader,omitempty"`
	// Pending waits for delivery; InFlight is delivered and not concluded, of
	// which Redelivered more than once.
	Pending     uint64 `json:"pending"`
	InFlight    int    `json:"in_flight"`
	Redelivered int    `json:"redelivered"`
	// Pulls are requests that wait for messages.
	Pulls int `json:"pulls"`
}

// Health reads the state of streams and consumers from the server. It reads nothing that
// Belfry has stored, so it works on a damaged store, too. Safe for concurrent use.
type Health struct{ jet *jet.Client }

// Streams lists Belfry's streams and buckets by name.
func (h Health) Streams(ctx context.Context) ([]StreamHealth, error) {
	var out []StreamHealth
	err := h.jet.Streams(ctx, func(info *jet.StreamInfo) {
		if ours(info.Config.Name) {
			out = append(out, streamHealth(info))
		}
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b StreamHealth) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// ours reports whether a stream is one of the layout.
func ours(name string) bool {
	switch name {
	case schemas.StreamAdd, schemas.StreamFired, schemas.StreamRetry, schemas.StreamDead, schemas.StreamRejected, clockStream, servicesStream:
		return true
	}
	return strings.HasPrefix(name, strings.TrimSuffix("KV_"+schemas.BucketTimers(0), "0"))
}

func streamHealth(info *jet.StreamInfo) StreamHealth {
	h := StreamHealth{
		Name: info.Config.Name, Messages: info.State.Msgs, Bytes: info.State.Bytes, MaxBytes: info.Config.MaxBytes, Removed: info.State.LastSeq - info.State.Msgs,
		Replicas: info.Config.Replicas, Now: info.TimeStamp, Config: info.Config,
	}
	if c := info.Cluster; c != nil && c.Name != "" {
		h.Clustered, h.Leader = true, c.Leader
		for _, r := range c.Replicas {
			h.Others = append(h.Others, Replica{Server: r.Name, Current: r.Current, Offline: r.Offline, Lag: r.Lag})
		}
	}
	return h
}

// Consumers lists the consumers of the streams that have any, those of others on
// timers.fired and timers.dead, too.
func (h Health) Consumers(ctx context.Context) ([]ConsumerHealth, error) {
	var out []ConsumerHealth
	for _, name := range []string{schemas.StreamAdd, schemas.StreamFired, schemas.StreamRetry, schemas.StreamDead, schemas.StreamRejected} {
		err := h.jet.Consumers(ctx, name, func(info *jet.ConsumerInfo) {
			c := ConsumerHealth{
				Stream: name, Name: info.Name, Pending: info.NumPending, InFlight: info.NumAckPending, Redelivered: info.NumRedelivered, Pulls: info.NumWaiting,
				Belfry: name == schemas.StreamAdd && info.Name == RouterConsumer || strings.HasPrefix(info.Name, serviceConsumerPrefix),
			}
			if info.Cluster != nil {
				c.Leader = info.Cluster.Leader
			}
			out = append(out, c)
		})
		if err != nil && !errors.Is(err, jet.ErrNoStream) { // Streams reports a missing stream
			return nil, err
		}
	}
	return out, nil
}

// Difference is one setting of a stream that is not as a configuration wants it.
type Difference struct {
	Stream, Setting string
	Have, Want      any
	// Missing: there is no such stream.
	Missing bool
	// Fatal: a node with that configuration does not start. What is not fatal it
	// changes when it starts.
	Fatal bool
}

// Differences compares streams with what a configuration would make of a store
// of so many shards.
func Differences(have []StreamHealth, cfg Config, shards int) ([]Difference, error) {
	if cfg.Node == "" {
		cfg.Node = "look"
	}
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, shrink: 1, Shards: newShards(nil, schemas.Geometry{Shards: shards})}
	wanted := []jet.StreamConfig{s.clockConfig(), s.servicesConfig(), s.addConfig(), s.firedConfig(), s.retryConfig(), s.deadConfig(), s.rejectedConfig()}
	for n := range shards {
		wanted = append(wanted, s.shardConfig(n))
	}
	var out []Difference
	for _, want := range wanted {
		i := slices.IndexFunc(have, func(h StreamHealth) bool { return h.Name == want.Name })
		if i < 0 {
			out = append(out, Difference{Stream: want.Name, Missing: true})
			continue
		}
		out = append(out, differences(have[i].Config, want, cfg.FiredMaxPerService)...)
	}
	return out, nil
}

func differences(have, want jet.StreamConfig, perService int) []Difference {
	var out []Difference
	differ := func(setting string, is, should any, fatal bool) {
		if fmt.Sprint(is) != fmt.Sprint(should) {
			out = append(out, Difference{Stream: want.Name, Setting: setting, Have: is, Want: should, Fatal: fatal})
		}
	}
	differ("storage", have.Storage, want.Storage, true)
	differ("retention", have.Retention, want.Retention, true)
	if want.Name == schemas.StreamFired && have.MaxBytes != want.MaxBytes && perService == 0 {
		// A share of bytes that were fitted to the server.
		want.MaxMsgsPerSubject = (&Store{}).perService(have.MaxBytes)
	}
	differ("messages a subject", max(have.MaxMsgsPerSubject, 0), want.MaxMsgsPerSubject, want.Name != schemas.StreamFired)
	differ("discard", have.Discard, want.Discard, true)
	differ("subjects", have.Subjects, want.Subjects, !sharesRejected(have, want))
	differ("replicas", have.Replicas, want.Replicas, false)
	differ("maximum age", have.MaxAge, want.MaxAge, false)
	differ("dedup window", have.Duplicates, want.Duplicates, false)
	differ("bytes of a message", have.MaxMsgSize, want.MaxMsgSize, false)
	differ("direct gets", have.AllowDirect, true, false)
	differ("TTLs", have.AllowMsgTTL, want.AllowMsgTTL, false)
	return out
}

// LeaderNow is the clock of the server that leads the clocks' stream.
func (h Health) LeaderNow(ctx context.Context) (time.Time, error) {
	info, err := h.jet.Stream(ctx, clockStream)
	return info.TimeStamp, err
}
