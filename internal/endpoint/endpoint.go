// Package endpoint serves requests as a NATS micro service, and answers only to inbox
// subjects.
//
// The protocol is that of package micro of nats.go: PING, INFO and STATS on $SRV, the
// queue group "q", errors in headers. That package answers PING, INFO and STATS to any
// reply subject that a request names, and has no hook to prevent it. A request with the
// reply subject $KV.clock.clock.0 would have it write to Belfry's bucket, on behalf of
// somebody who may not. Here a request whose reply subject is no inbox
// (schemas.Inboxes) is neither carried out nor answered. A request without a reply
// subject is carried out.
package endpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/nats-io/nuid"

	"github.com/belfryio/belfry/schemas"
)

// Config describes a service.
type Config struct {
	Name, Version, Description string
	// Inboxes are prefixes of reply subjects besides _INBOX….
	Inboxes schemas.Inboxes
	// Refused is called with each request that is refused for its reply subject. It must
	// not block. Required.
	Refused func(m *nats.Msg)
}

// Service is a micro service on a connection that stays the caller's.
type Service struct {
	cfg     Config
	nc      *nats.Conn
	id      string
	started time.Time

	mu   sync.Mutex
	subs []*nats.Subscription
	ends []*stats
}

// stats are those of one endpoint.
type stats struct {
	micro.EndpointInfo
	requests int
	took     time.Duration
}

// New registers a service without endpoints.
func New(nc *nats.Conn, cfg Config) (*Service, error) {
	s := &Service{cfg: cfg, nc: nc, id: nuid.Next(), started: time.Now().UTC()}
	for verb, answer := range map[micro.Verb]func() any{
		micro.PingVerb:  func() any { return micro.Ping{ServiceIdentity: s.identity(), Type: micro.PingResponseType} },
		micro.InfoVerb:  func() any { return s.info() },
		micro.StatsVerb: func() any { return s.stats() },
	} {
		if err := s.control(verb, answer); err != nil {
			return nil, errors.Join(err, s.Stop())
		}
	}
	return s, nil
}

// control answers a verb on its three subjects: of all services, of those with this
// name, and of this one.
func (s *Service) control(verb micro.Verb, answer func() any) error {
	for _, of := range [][2]string{{"", ""}, {s.cfg.Name, ""}, {s.cfg.Name, s.id}} {
		subject, err := micro.ControlSubject(verb, of[0], of[1])
		if err != nil {
			return fmt.Errorf("endpoint: %w", err)
		}
		err = s.subscribe(subject, "", func(m *nats.Msg) {
			if m.Reply == "" {
				return
			}
			b, err := json.Marshal(answer())
			if err == nil {
				// It fails only when the connection is closed.
				_ = s.nc.Publish(m.Reply, b)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// subscribe hands requests to h, except those with a reply subject that is no inbox.
func (s *Service) subscribe(subject, queue string, h nats.MsgHandler) error {
	sub, err := s.nc.QueueSubscribe(subject, queue, func(m *nats.Msg) {
		if m.Reply != "" && !s.cfg.Inboxes.Allow(m.Reply) {
			s.cfg.Refused(m)
			return
		}
		h(m)
	})
	if err != nil {
		return fmt.Errorf("endpoint: subscribe to %s: %w", subject, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subs = append(s.subs, sub)
	return nil
}

// Add serves a subject. h is called for one request at a time.
func (s *Service) Add(name, subject string, metadata map[string]string, h nats.MsgHandler) error {
	e := &stats{EndpointInfo: micro.EndpointInfo{Name: name, Subject: subject, QueueGroup: micro.DefaultQueueGroup, Metadata: metadata}}
	s.mu.Lock()
	s.ends = append(s.ends, e)
	s.mu.Unlock()
	return s.subscribe(subject, micro.DefaultQueueGroup, func(m *nats.Msg) {
		begun := time.Now()
		h(m)
		s.mu.Lock()
		defer s.mu.Unlock()
		e.requests++
		e.took += time.Since(begun)
	})
}

// Stop drains the subscriptions: requests that have arrived are still handed out after
// it returns.
func (s *Service) Stop() error {
	s.mu.Lock()
	subs := s.subs
	s.subs = nil
	s.mu.Unlock()
	var failed error
	for _, sub := range subs {
		if err := sub.Drain(); err != nil {
			failed = errors.Join(failed, fmt.Errorf("endpoint: stop serving %s: %w", sub.Subject, err))
		}
	}
	return failed
}

func (s *Service) identity() micro.ServiceIdentity {
	return micro.ServiceIdentity{Name: s.cfg.Name, ID: s.id, Version: s.cfg.Version, Metadata: map[string]string{}}
}

func (s *Service) info() micro.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := micro.Info{ServiceIdentity: s.identity(), Type: micro.InfoResponseType, Description: s.cfg.Description}
	for _, e := range s.ends {
		i.Endpoints = append(i.Endpoints, e.EndpointInfo)
	}
	return i
}

func (s *Service) stats() micro.Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := micro.Stats{ServiceIdentity: s.identity(), Type: micro.StatsResponseType, Started: s.started}
	for _, e := range s.ends {
		n := &micro.EndpointStats{Name: e.Name, Subject: e.Subject, QueueGroup: e.QueueGroup, NumRequests: e.requests, ProcessingTime: e.took}
		if e.requests > 0 {
			n.AverageProcessingTime = e.took / time.Duration(e.requests)
		}
		out.Endpoints = append(out.Endpoints, n)
	}
	return out
}
