package functions

import (
	"bytes"
	"maps"
	"net/url"
	"slices"
	"sync/atomic"

	"github.com/belfryio/belfry/functions/httpcall"
	"github.com/belfryio/belfry/schemas"
)

// Settings are the part of Options that Reconfigure replaces while callbacks run.
type Settings struct {
	// Subjects and Hosts are the patterns of subjects and hosts that callbacks may call, for
	// services without patterns of their own; see schemas.CallbackRules. nil allows all.
	Subjects, Hosts []string
	// Services has the settings of single services, by name.
	Services map[string]ServiceConfig
	// Tenants has, by its name, the allowance of each tenant, and its webhook origin. The other
	// settings are those of the default tenant.
	Tenants map[string]schemas.TenantAllowance
}

// ServiceConfig holds the settings of one service.
type ServiceConfig struct {
	// Concurrency replaces Options.Concurrency, unless it is 0.
	Concurrency int
	// Subjects replaces Settings.Subjects, unless it is nil.
	Subjects []string
	// Hosts replaces Settings.Hosts, unless it is nil. A service with Headers or a
	// client certificate must have Hosts or a BaseURL, because its credentials would
	// otherwise go to any host that a timer names.
	Hosts []string
	// BaseURL resolves callbacks that are a path. Its host is always allowed.
	BaseURL *url.URL
	// Secrets sign HTTP callbacks (whsec_…); two while a secret is being replaced.
	Secrets []string
	// Headers are sent with HTTP callbacks, by canonical name. A value is a secret.
	Headers map[string]string
	// Mode is the content mode of HTTP callbacks.
	Mode Mode
	// PermanentStatuses are the HTTP statuses that fail a timer without another attempt; nil
	// for httpcall.DefaultPermanent.
	PermanentStatuses []int
	// WebhookOrigin is the DNS name by which Belfry asks the target of each HTTP callback whether it
	// allows its calls, before the first one (see webhook.go); empty for no such handshake.
	WebhookOrigin string
	// PEM adds a private CA and a client certificate to HTTP callbacks.
	PEM httpcall.PEM
}

// Mode is the content mode of HTTP callbacks.
type Mode string

// The content modes.
const (
	// ModeDefault is ModeStructured for a service with a secret, else ModeBinary.
	ModeDefault    Mode = ""
	ModeBinary     Mode = "binary"
	ModeStructured Mode = "structured"
)

func (c *ServiceConfig) structured() bool {
	return c.Mode == ModeStructured || c.Mode == ModeDefault && len(c.Secrets) > 0
}

// credentials reports whether requests carry credentials, which must not reach hosts that
// the operator has not named.
func (c *ServiceConfig) credentials() bool { return len(c.Headers) > 0 || len(c.PEM.Cert) > 0 }

func (c *ServiceConfig) equal(o *ServiceConfig) bool {
	return c.Concurrency == o.Concurrency && c.Mode == o.Mode && c.WebhookOrigin == o.WebhookOrigin && slices.Equal(c.Secrets, o.Secrets) && maps.Equal(c.Headers, o.Headers) &&
		equalLists(c.PermanentStatuses, o.PermanentStatuses) &&
		bytes.Equal(c.PEM.CA, o.PEM.CA) && bytes.Equal(c.PEM.Cert, o.PEM.Cert) && bytes.Equal(c.PEM.Key, o.PEM.Key)
}

// equalLists compares lists in which nil and empty differ.
func equalLists[T comparable](a, b []T) bool { return slices.Equal(a, b) && (a == nil) == (b == nil) }

func equalRules(a, b *schemas.CallbackRules) bool {
	text := func(u *url.URL) string {
		if u == nil {
			return ""
		}
		return u.String()
	}
	return equalLists(a.Services, b.Services) && equalLists(a.Subjects, b.Subjects) && equalLists(a.Hosts, b.Hosts) && a.OwnSubjects == b.OwnSubjects && a.OwnHosts == b.OwnHosts &&
		a.HTTPSOnly == b.HTTPSOnly && text(a.BaseURL) == text(b.BaseURL)
}

// rulesOf returns the rules of a service of any tenant.
func (s *Settings) rulesOf(service string) schemas.CallbackRules {
	if tenant := schemas.TenantOf(service); tenant != "" {
		if allowed, ok := s.Tenants[tenant]; ok {
			return schemas.TenantRules(allowed)
		}
		return schemas.NoCallbacks()
	}
	c := s.Services[service]
	return s.rules(&c)
}

// configOf returns the configuration of a service of any tenant. A tenant has one for all its services.
func (s *Settings) configOf(service string) ServiceConfig {
	if tenant := schemas.TenantOf(service); tenant != "" {
		return ServiceConfig{WebhookOrigin: s.Tenants[tenant].WebhookOrigin}
	}
	return s.Services[service]
}

// rules returns the rules of a service of the default tenant with configuration c.
func (s *Settings) rules(c *ServiceConfig) schemas.CallbackRules {
	r := schemas.CallbackRules{Subjects: s.Subjects, Hosts: s.Hosts, BaseURL: c.BaseURL, HTTPSOnly: len(c.Headers) > 0}
	if c.Subjects != nil {
		r.Subjects, r.OwnSubjects = c.Subjects, true
	}
	switch {
	case c.Hosts != nil:
		r.Hosts, r.OwnHosts = c.Hosts, true
	case c.credentials():
		// Only the service's own setting can allow a host.
		r.Hosts, r.OwnHosts = []string{}, true
	}
	if c.BaseURL != nil && r.Hosts != nil {
		r.Hosts = append(slices.Clip(r.Hosts), schemas.HostPatternOf(c.BaseURL))
	}
	return r
}

// Policy returns what the callbacks of each service may call, for a router.
func (s *Settings) Policy() *schemas.CallbackPolicy {
	p := &schemas.CallbackPolicy{Common: s.rules(&ServiceConfig{}), Services: make(map[string]schemas.CallbackRules, len(s.Services))}
	for name, c := range s.Services {
		p.Services[name] = s.rules(&c)
	}
	if len(s.Tenants) > 0 {
		p.Tenants = make(map[string]schemas.CallbackRules, len(s.Tenants))
	}
	for name, allowed := range s.Tenants {
		p.Tenants[name] = schemas.TenantRules(allowed)
	}
	return p
}

// Check checks the settings. Errors have schemas.CodeConfig and contain no secrets.
func (s Settings) Check() error {
	for _, name := range slices.Sorted(maps.Keys(s.Services)) {
		c := s.Services[name]
		if !schemas.ValidService(name) {
			return schemas.Errorf(schemas.CodeConfig, "service %.80q must be 1 to %d letters, digits, '-' or '_'", name, schemas.MaxServiceLength)
		}
		if c.Concurrency < 0 {
			return schemas.Errorf(schemas.CodeConfig, "service %s: concurrency is %d; it must be 1 or more", name, c.Concurrency)
		}
		if c.Mode != ModeDefault && c.Mode != ModeBinary && c.Mode != ModeStructured {
			return schemas.Errorf(schemas.CodeConfig, "service %s: mode %.40q is not binary or structured", name, string(c.Mode))
		}
		if err := schemas.CheckCallbackPatterns("", c.Subjects, c.Hosts); err != nil {
			return schemas.Errorf(schemas.CodeConfig, "service %s: %w", name, err)
		}
		if err := c.checkBaseURL(); err != nil {
			return schemas.Errorf(schemas.CodeConfig, "service %s: %w", name, err)
		}
		i, err := httpcall.New(httpcall.Config{Secrets: c.Secrets, Headers: c.Headers, Permanent: c.PermanentStatuses, Origin: c.WebhookOrigin, PEM: c.PEM})
		if err != nil {
			return schemas.Errorf(schemas.CodeConfig, "service %s: %w", name, err)
		}
		i.Close()
	}
	for _, name := range slices.Sorted(maps.Keys(s.Tenants)) {
		allowed := s.Tenants[name]
		err := allowed.Check()
		if err == nil && allowed.WebhookOrigin != "" {
			err = httpcall.CheckOrigin(allowed.WebhookOrigin)
		}
		if err != nil {
			return schemas.Errorf(schemas.CodeConfig, "tenant %s: %w", name, err)
		}
	}
	return schemas.CheckCallbackPatterns("callback-", s.Subjects, s.Hosts)
}

func (c *ServiceConfig) checkBaseURL() error {
	u := c.BaseURL
	switch {
	case u == nil && c.Hosts == nil && c.credentials():
		return schemas.Errorf(schemas.CodeConfig, "headers and tls-cert need hosts or base-url: without them a timer could send these credentials to any host")
	case u == nil:
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Opaque != "":
		return schemas.Errorf(schemas.CodeConfig, "base-url must be https://host/path or http://host/path")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return schemas.Errorf(schemas.CodeConfig, "base-url has a user, a query or a fragment; credentials belong into headers")
	}
	return nil
}

// caller has the settings and the HTTP client of one service. A callback uses one caller
// from its beginning to its end.
type caller struct {
	config ServiceConfig
	rules  schemas.CallbackRules
	http   *httpcall.Invoker
	// webhook has the permissions of the targets; nil if they need none.
	webhook *webhook
}

// target returns the subject or the full URL of a callback, or why the rules do not allow it.
func (c *caller) target(callback, service string) (string, error) {
	if err := c.rules.Check(callback, service); err != nil {
		return "", err
	}
	return c.rules.Resolve(callback, service)
}

func (f *Functions) newCaller(c ServiceConfig, rules schemas.CallbackRules) (*caller, error) {
	h, err := httpcall.New(httpcall.Config{
		Guard:    httpcall.Guard{AllowLoopback: f.o.AllowLoopback, AllowPrivate: f.o.AllowPrivate, AllowPrefixes: f.o.AllowPrefixes},
		MaxConns: f.limitOf(c), ReadLimit: f.o.ReadLimit, Secrets: c.Secrets, Structured: c.structured(), Headers: c.Headers,
		Permanent: c.PermanentStatuses, Origin: c.WebhookOrigin, TLS: f.o.TLS, PEM: c.PEM, Resolver: f.o.Resolver, UserAgent: f.o.UserAgent,
	})
	if err != nil {
		return nil, err
	}
	return &caller{config: c, rules: rules, http: h, webhook: newWebhook(c.WebhookOrigin, f.o.WebhookPermission)}, nil
}

// limitOf returns how many callbacks of a service with this configuration run at once.
func (f *Functions) limitOf(c ServiceConfig) int {
	if c.Concurrency > 0 {
		return c.Concurrency
	}
	return f.o.Concurrency
}

// Reconfigure replaces the settings. Running callbacks keep the settings that they started
// with; callbacks that start later use the new settings. Error: schemas.CodeConfig, and
// then nothing has changed.
func (f *Functions) Reconfigure(s Settings) error {
	if err := s.Check(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	next := map[*service]*caller{}
	for name, svc := range f.services {
		c := s.configOf(name)
		rules, now := s.rulesOf(name), svc.caller.Load()
		if c.equal(&now.config) && equalRules(&rules, &now.rules) {
			continue
		}
		n, err := f.newCaller(c, rules)
		if err != nil {
			return schemas.Errorf(schemas.CodeConfig, "service %s: %w", name, err)
		}
		next[svc] = n
	}
	f.settings = s
	for svc, n := range next {
		old := svc.caller.Swap(n)
		old.http.Close()
		limit := f.limitOf(n.config)
		svc.limit.Store(int64(limit))
		f.semaphore.resize(svc.quota, limit)
	}
	return nil
}

// limit bounds the callbacks of a service that run at once.
type limit struct{ atomic.Int64 }

func (l *limit) n() int { return int(l.Load()) }
