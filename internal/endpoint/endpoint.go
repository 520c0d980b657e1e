// Package endpoint serves requests as a NATS micro service, and answers only to inbox
// subjects.
//
// The protocol is that of package micro of nats.go: PING, INFO and STATS on $SRV, the
// queue group "q", errors in headers. That package answers PING, INFO and STATS to any
// reply subject that a request names, and has no hook to prevent it. A request with the
// reply subject $KV.clock.clock.0 would make it write to Belfry's bucket, on behalf of a
// client that has no permission to. Here a request whose reply subject is not an inbox
// (schemas.Inboxes) is neither carried out nor answered. A request without a reply subject
// is carried out.
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
	// Inboxes are prefixes of reply subjects in addition to _INBOX….
	Inboxes schemas.Inboxes
	// Refused is called with each request that is refused because of its reply subject. It
	// must not block. Required.
	Refused func(*Request)
}

// Conn is a connection to serve on.
type Conn struct{ nc *nats.Conn }

// On returns the Conn of a connection, which stays the caller's.
func On(nc *nats.Conn) Conn { return Conn{nc} }

// Request is one request of a client.
type Request struct {
	// Subject is the subject of the request; Reply is its reply subject, or empty.
	Subject, Reply string
	Header         map[string][]string
	Data           []byte

	nc *nats.Conn
}

// Respond answers the request, unless it has no reply subject. Once the connection is
// closed it does nothing.
func (r *Request) Respond(data []byte) error { return r.respond(nil, data) }

// Fail answers the request with an error, in the headers of the micro protocol: text must be
// one line. It is like Respond otherwise.
func (r *Request) Fail(code, text string, data []byte) error {
	return r.respond(nats.Header{micro.ErrorHeader: {text}, micro.ErrorCodeHeader: {code}}, data)
}

func (r *Request) respond(hdr nats.Header, data []byte) error {
	if r.Reply == "" {
		return nil
	}
	err := r.nc.PublishMsg(&nats.Msg{Subject: r.Reply, Header: hdr, Data: data})
	if errors.Is(err, nats.ErrConnectionClosed) {
		return nil
	}
	return err
}

// Service is a micro service.
type Service struct {
	cfg     Config
	nc      *nats.Conn
	id      string
	started time.Time

	mu   sync.Mutex
	subs []*nats.Subscription
	ends []*stats
}

// stats are the statistics of one endpoint.
type stats struct {
	micro.EndpointInfo
	requests int
	took     time.Duration
}

// Serve registers a service without endpoints.
func (c Conn) Serve(cfg Config) (*Service, error) {
	s := &Service{cfg: cfg, nc: c.nc, id: nuid.Next(), started: time.Now().UTC()}
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

// control answers a verb on its three subjects: of all services, of services with this name,
// and of this service.
func (s *Service) control(verb micro.Verb, answer func() any) error {
	for _, of := range [][2]string{{"", ""}, {s.cfg.Name, ""}, {s.cfg.Name, s.id}} {
		subject, err := micro.ControlSubject(verb, of[0], of[1])
		if err != nil {
			return fmt.Errorf("endpoint: %w", err)
		}
		err = s.subscribe(subject, "", func(r *Request) {
			if b, err := json.Marshal(answer()); err == nil {
				_ = r.Respond(b) // fails only if the answer exceeds max_payload
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// subscribe passes requests to h, except those whose reply subject is not an inbox.
func (s *Service) subscribe(subject, queue string, h func(*Request)) error {
	sub, err := s.nc.QueueSubscribe(subject, queue, func(m *nats.Msg) {
		r := &Request{Subject: m.Subject, Reply: m.Reply, Header: m.Header, Data: m.Data, nc: s.nc}
		if r.Reply != "" && !s.cfg.Inboxes.Allow(r.Reply) {
			s.cfg.Refused(r)
			return
		}
		h(r)
	})
	if err != nil {
		return fmt.Errorf("endpoint: subscribe to %s: %w", subject, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subs = append(s.subs, sub)
	return nil
}

// MaxReply returns the size of the largest answer that the server currently accepts, in
// bytes, including headers.
func (s *Service) MaxReply() int { return int(s.nc.MaxPayload()) }

// Add serves a subject. h is called for one request at a time.
func (s *Service) Add(name, subject string, metadata map[string]string, h func(*Request)) error {
	e := &stats{EndpointInfo: micro.EndpointInfo{Name: name, Subject: subject, QueueGroup: micro.DefaultQueueGroup, Metadata: metadata}}
	s.mu.Lock()
	s.ends = append(s.ends, e)
	s.mu.Unlock()
	return s.subscribe(subject, micro.DefaultQueueGroup, func(r *Request) {
		begun := time.Now()
		h(r)
		s.mu.Lock()
		defer s.mu.Unlock()
		e.requests++
		e.took += time.Since(begun)
	})
}

// Stop drains the subscriptions: handlers may be called after it returns, with requests that
// have arrived before. A closed connection has ended them already.
func (s *Service) Stop() error {
	s.mu.Lock()
	subs := s.subs
	s.subs = nil
	s.mu.Unlock()
	var failed error
	for _, sub := range subs {
		if err := sub.Drain(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
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
