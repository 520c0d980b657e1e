package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Replica is one copy of a stream, other than the leader's.
type Replica struct {
	Server string `json:"server"`
	// Current is false while the copy is behind, or not known to be up to date.
	Current bool `json:"current"`
	Offline bool `json:"offline,omitempty"`
	// Lag is the number of operations that the copy is behind.
	Lag uint64 `json:"lag,omitempty"`
}

// StreamHealth is the state of a stream, as reported by its leader.
type StreamHealth struct {
	Name     string `json:"name"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
	MaxBytes int64  `json:"max_bytes"`
	// Removed is the number of messages that have left the stream since it was made.
	Removed  uint64 `json:"removed"`
	Replicas int    `json:"replicas"`
	// Leader is empty on a server without a cluster, and while the stream has no leader.
	Leader string    `json:"leader,omitempty"`
	Others []Replica `json:"others,omitempty"`
	// Clustered is true on a server of a cluster: an empty Leader then means that the stream
	// has no leader.
	Clustered bool `json:"clustered,omitempty"`
	// Now is the answering server's clock when it answered.
	Now time.Time `json:"-"`
	// Config is the stream's configuration on the server.
	Config jet.StreamConfig `json:"-"`
}

// ConsumerHealth is the state of a consumer, as reported by its leader.
type ConsumerHealth struct {
	Stream string `json:"stream"`
	Name   string `json:"name"`
	// Belfry is true for a consumer that Belfry made.
	Belfry bool   `json:"belfry"`
	Leader string `json:"leader,omitempty"`
	// Pending messages wait for delivery. InFlight messages are delivered and not
	// acknowledged; Redelivered of them were delivered more than once.
	Pending     uint64 `json:"pending"`
	InFlight    int    `json:"in_flight"`
	Redelivered int    `json:"redelivered"`
	// Pulls is the number of requests that wait for messages.
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
	case schemas.StreamAdd, schemas.StreamFired, schemas.StreamRetry, schemas.StreamDead, schemas.StreamRejected, schemas.StreamOverdue, schemas.StreamTenantFired, clockStream, servicesStream, calendarsStream, flowsStream:
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

// clocksApart is a difference of the servers' clocks that is reported. It is more than the time between the
// first and the last answer to one listing of the streams.
const clocksApart = time.Minute

// ClocksDiffer returns what is wrong if the clocks of the servers that lead the streams of one call of Streams
// differ by more than a minute; "" otherwise.
func ClocksDiffer(streams []StreamHealth) string {
	var first, last StreamHealth
	for _, h := range streams {
		if h.Clustered && h.Leader == "" || h.Now.IsZero() {
			continue
		}
		if first.Name == "" || h.Now.Before(first.Now) {
			first = h
		}
		if last.Name == "" || h.Now.After(last.Now) {
			last = h
		}
	}
	d := last.Now.Sub(first.Now)
	if d <= clocksApart {
		return ""
	}
	return fmt.Sprintf("the clock of server %s, which leads %s, is %s ahead of that of server %s, which leads %s", last.Leader, last.Name, d.Round(time.Second), first.Leader, first.Name)
}

// Consumers lists all consumers of Belfry's streams, also those of other programs.
func (h Health) Consumers(ctx context.Context) ([]ConsumerHealth, error) {
	var out []ConsumerHealth
	for _, name := range []string{schemas.StreamAdd, schemas.StreamFired, schemas.StreamRetry, schemas.StreamDead, schemas.StreamRejected, schemas.StreamOverdue, schemas.StreamTenantFired} {
		err := h.jet.Consumers(ctx, name, func(info *jet.ConsumerInfo) {
			c := ConsumerHealth{
				Stream: name, Name: info.Name, Pending: info.NumPending, InFlight: info.NumAckPending, Redelivered: info.NumRedelivered, Pulls: info.NumWaiting,
				Belfry: name == schemas.StreamAdd && (info.Name == RouterConsumer || info.Name == TenantConsumer) || strings.HasPrefix(info.Name, serviceConsumerPrefix),
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

// Problem returns what is wrong if so many adds of timers.add are delivered and not stored that the server soon
// delivers no more; "" otherwise. That happens if one shard, or the bucket of the services, stores nothing for long.
func (c *ConsumerHealth) Problem() string {
	if !c.Belfry || c.Stream != schemas.StreamAdd || c.InFlight < RouterMaxAckPending/10*9 {
		return ""
	}
	return fmt.Sprintf("%d adds are delivered to the routers and not stored; at %d the adds of all shards wait: either a shard or bucket stores nothing, or the adds wait for a limit: the logs of the routers have the reason", c.InFlight, RouterMaxAckPending)
}

// LeaderNow returns the time of the server that leads the stream of the clocks.
func (h Health) LeaderNow(ctx context.Context) (time.Time, error) {
	info, err := h.jet.Stream(ctx, clockStream)
	return info.TimeStamp, err
}
