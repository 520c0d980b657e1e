package store

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// Default byte limits. They are ceilings, not reservations, and are lowered to
// fit a server or account with less (fitBytes).
const (
	gib                  = 1 << 30
	defaultAddMaxBytes   = 8 * gib
	defaultFiredMaxBytes = 16 * gib
	defaultRetryMaxBytes = 4 * gib
	defaultDeadMaxBytes  = 4 * gib
	defaultShardsBytes   = 32 * gib // all shards together
	clockMaxBytes        = 16 << 20
	servicesMaxBytes     = 16 << 20
)

func (s *Store) stream(name, description string, maxBytes int64, subjects ...string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: name, Description: description, Subjects: subjects, Storage: jetstream.FileStorage,
		Replicas: s.cfg.Replicas, MaxBytes: maxBytes, MaxMsgSize: int32(s.cfg.MaxPayload), AllowDirect: true,
	}
}

func orDefault(n, def int64) int64 {
	if n == 0 {
		return def
	}
	return n
}

func (s *Store) addConfig() jetstream.StreamConfig {
	c := s.stream(schemas.StreamAdd, "Belfry: adds waiting for a router", orDefault(s.cfg.AddMaxBytes, defaultAddMaxBytes), schemas.SubjectAdd)
	c.Retention, c.Discard, c.Duplicates = jetstream.WorkQueuePolicy, jetstream.DiscardNew, s.cfg.DedupWindow
	return c
}

func (s *Store) firedConfig() jetstream.StreamConfig {
	c := s.stream(schemas.StreamFired, "Belfry: due events", orDefault(s.cfg.FiredMaxBytes, defaultFiredMaxBytes), schemas.SubjectFiredPrefix+"*")
	c.MaxAge, c.Duplicates, c.Discard = s.cfg.FiredMaxAge, s.cfg.DedupWindow, jetstream.DiscardOld
	return c
}

func (s *Store) retryConfig() jetstream.StreamConfig {
	c := s.stream(schemas.StreamRetry, "Belfry: retries for functions", orDefault(s.cfg.RetryMaxBytes, defaultRetryMaxBytes), schemas.SubjectRetryPrefix+"*")
	c.Retention, c.Discard, c.Duplicates = jetstream.WorkQueuePolicy, jetstream.DiscardNew, s.cfg.DedupWindow
	return c
}

func (s *Store) deadConfig() jetstream.StreamConfig {
	c := s.stream(schemas.StreamDead, "Belfry: dead letters and rejected adds", orDefault(s.cfg.DeadMaxBytes, defaultDeadMaxBytes), schemas.SubjectDeadPrefix+"*", schemas.SubjectRejected)
	c.MaxAge, c.Duplicates, c.Discard = s.cfg.DeadMaxAge, s.cfg.DedupWindow, jetstream.DiscardOld
	return c
}

// bucket is a KV bucket as nats.go would make it, with limits and TTLs.
func (s *Store) bucket(name, description string, maxBytes int64) jetstream.StreamConfig {
	c := s.stream("KV_"+name, description, maxBytes, "$KV."+name+".>")
	c.MaxMsgsPerSubject, c.Discard = 1, jetstream.DiscardNew
	c.AllowRollup, c.DenyDelete, c.AllowMsgTTL = true, true, true
	c.Duplicates = min(s.cfg.DedupWindow, 2*time.Minute)
	return c
}

func (s *Store) clockConfig() jetstream.StreamConfig {
	return s.bucket(schemas.BucketClock, "Belfry: clocks, nodes, layout", clockMaxBytes)
}

func (s *Store) servicesConfig() jetstream.StreamConfig {
	return s.bucket(schemas.BucketServices, "Belfry: services that have callbacks", servicesMaxBytes)
}

func (s *Store) shardConfig(n int) jetstream.StreamConfig {
	c := s.bucket(schemas.BucketTimers(n), "Belfry: timers of one shard", orDefault(s.cfg.ShardMaxBytes, defaultShardsBytes/int64(s.geo.Shards)))
	// A record holds a whole event besides its own fields.
	c.MaxMsgSize = int32(s.cfg.MaxPayload)
	return c
}

// ensure creates a stream, or checks and updates the one that is there. What
// cannot be changed harmlessly must match.
func (s *Store) ensure(ctx context.Context, want jetstream.StreamConfig) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	have, err := s.js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = s.createFitting(ctx, want)
		if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			return err
		}
		have, err = s.js.Stream(ctx, want.Name) // another node was faster
	}
	if err != nil {
		return mapError("look up stream "+want.Name, err)
	}
	got := have.CachedInfo().Config
	bad := func(what string, g, w any) error {
		return schemas.Errorf(schemas.CodeConfig, "stream %s exists with %s %v; Belfry needs %v: use another account, or remove the stream", want.Name, what, g, w)
	}
	switch {
	case got.Storage != want.Storage:
		return bad("storage", got.Storage, want.Storage)
	case got.Retention != want.Retention:
		return bad("retention", got.Retention, want.Retention)
	case got.MaxMsgsPerSubject > 0 != (want.MaxMsgsPerSubject > 0) || want.MaxMsgsPerSubject > 0 && got.MaxMsgsPerSubject != want.MaxMsgsPerSubject:
		return bad("messages a subject", got.MaxMsgsPerSubject, want.MaxMsgsPerSubject)
	case got.Discard != want.Discard:
		return bad("discard policy", got.Discard, want.Discard)
	case len(got.Subjects) != len(want.Subjects) || got.Subjects[0] != want.Subjects[0]:
		return bad("subjects", got.Subjects, want.Subjects)
	}
	if got.MaxAge == want.MaxAge && got.Duplicates == want.Duplicates && got.Replicas == want.Replicas && got.MaxMsgSize == want.MaxMsgSize &&
		got.AllowDirect && got.AllowMsgTTL == want.AllowMsgTTL && (got.MaxBytes == want.MaxBytes || !s.explicitBytes(want.Name)) {
		return nil
	}
	next := got
	next.MaxAge, next.Duplicates, next.Replicas, next.MaxMsgSize = want.MaxAge, want.Duplicates, want.Replicas, want.MaxMsgSize
	next.AllowDirect, next.AllowMsgTTL = true, want.AllowMsgTTL
	if s.explicitBytes(want.Name) {
		next.MaxBytes = want.MaxBytes
	}
	if _, err := s.js.UpdateStream(ctx, next); err != nil {
		return schemas.Errorf(schemas.CodeConfig, "stream %s cannot be changed to the configured limits: %w", want.Name, err)
	}
	return nil
}

// explicitBytes reports whether the stream's byte limit was configured, rather
// than a default that was fitted to the server when the stream was made.
func (s *Store) explicitBytes(name string) bool {
	switch name {
	case schemas.StreamAdd:
		return s.cfg.AddMaxBytes != 0
	case schemas.StreamFired:
		return s.cfg.FiredMaxBytes != 0
	case schemas.StreamRetry:
		return s.cfg.RetryMaxBytes != 0
	case schemas.StreamDead:
		return s.cfg.DeadMaxBytes != 0
	case clockStream, servicesStream:
		return false
	}
	return s.cfg.ShardMaxBytes != 0
}

// createFitting creates a stream, halving a default byte limit until the server
// or the account has room for it.
func (s *Store) createFitting(ctx context.Context, want jetstream.StreamConfig) error {
	const least = 1 << 20
	for {
		_, err := s.js.CreateStream(ctx, want)
		var api *jetstream.APIError
		full := errors.As(err, &api) && (api.ErrorCode == codeResources || api.ErrorCode == codeStorageExceeded)
		switch {
		case err == nil, errors.Is(err, jetstream.ErrStreamNameAlreadyInUse):
			return err
		case full && !s.explicitBytes(want.Name) && want.MaxBytes > least:
			want.MaxBytes /= 2
			continue
		case full:
			return schemas.Errorf(schemas.CodeStoreFull, "stream %s with %d bytes does not fit JetStream's storage limit: %w", want.Name, want.MaxBytes, err)
		case api != nil:
			return schemas.Errorf(schemas.CodeConfig, "stream %s cannot be made: %w", want.Name, err)
		}
		return mapError("create stream "+want.Name, err)
	}
}
