package schemas

import (
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// NATSScheme is the prefix of a callback over NATS request/reply: nats:<subject>.
const NATSScheme = "nats:"

// WorkSubjectPrefix and a service make the subject on which workers serve the timers of
// that service. It is the only subject below timers that a callback may name, and only
// with the timer's own service.
const WorkSubjectPrefix = "timers.work."

// ownToken is the first token of every subject of Belfry.
const ownToken = "timers"

// CheckCallback returns an error, of CodeInvalidAttribute, for an invalid timercallback of
// a timer of service. It checks the syntax, and that the subject is not reserved.
// CallbackRules.Check checks the configuration.
func CheckCallback(s, service string) error {
	bad := func(format string, args ...any) error { return Errorf(CodeInvalidAttribute, format, args...) }
	if subject, ok := strings.CutPrefix(s, NATSScheme); ok {
		return CheckSubject(subject, service)
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return bad("not a URL")
	case isPath(s):
		return checkPath(u)
	case u.Scheme != "http" && u.Scheme != "https":
		return bad("must be https://…, http://…, nats:<subject>, or a /path below the service's base-url")
	case u.Opaque != "":
		return bad("the URL has no // before its host")
	case u.Hostname() == "":
		return bad("the URL has no host")
	case !validPort(u.Port()):
		return bad("the URL's port must be 1 to 65535")
	case u.Fragment != "":
		return bad("a URL to call has no #fragment")
	}
	return nil
}

// isPath reports whether a callback is a path below the service's base URL. A URL that
// begins with // names a host and is not a path.
func isPath(s string) bool { return strings.HasPrefix(s, "/") && !strings.HasPrefix(s, "//") }

// checkPath returns an error for an invalid path. A segment . or .., also
// percent-encoded, could leave the path of the base URL.
func checkPath(u *url.URL) error {
	if u.Fragment != "" {
		return Errorf(CodeInvalidAttribute, "remove the #fragment: a callback path must have none")
	}
	for segment := range strings.SplitSeq(u.Path, "/") {
		if segment == "." || segment == ".." {
			return Errorf(CodeInvalidAttribute, "remove the segment . or ..: a callback path must have none")
		}
	}
	return nil
}

func validPort(s string) bool {
	if s == "" {
		return true
	}
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// CheckSubject returns an error, of CodeInvalidAttribute, if a callback of a timer of
// service must not publish to the NATS subject s. Belfry's connection has more permissions
// than the author of a timer. CheckSubject therefore rejects subjects of the server ($JS,
// $KV, $SYS …), inboxes (_INBOX…, _R_, _GR_) and Belfry's own: every subject whose first
// token begins with $ or _, or is timers. The only exception is WorkSubjectPrefix with the
// timer's own service.
func CheckSubject(s, service string) error {
	bad := func(format string, args ...any) error { return Errorf(CodeInvalidAttribute, format, args...) }
	if s == "" {
		return bad("nats: needs a subject")
	}
	if strings.HasPrefix(s, "//") {
		return bad("write nats:<subject>, without //")
	}
	for t := range strings.SplitSeq(s, ".") {
		if t == "" {
			return bad("the subject has an empty token")
		}
		if strings.ContainsAny(t, "*>") {
			return bad("a callback's subject has no wildcards")
		}
		if strings.ContainsFunc(t, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
			return bad("the subject has a blank")
		}
	}
	switch first, _, _ := strings.Cut(s, "."); {
	case s == WorkSubjectPrefix+service:
		return nil
	case strings.HasPrefix(s, WorkSubjectPrefix):
		return bad("workers of another service cannot be called: the timer's own service is %s", service)
	case first[0] == '$' || first[0] == '_' || first == ownToken:
		return bad("subjects below %s are reserved and not for callbacks", first)
	}
	return nil
}

// CallbackRules lists the callbacks that the configuration allows for one service. The
// zero value allows every subject and every host, and has no base URL.
//
// The router applies the rules to each add and rejects adds that violate them. Functions
// applies them again to each attempt, because the configuration may have changed. There a
// violation is a failed attempt, so a wrong setting delays timers but does not end them.
type CallbackRules struct {
	// Services lists the services of a tenant that may have timers, see TenantAllowance; nil
	// allows all. It is nil for the default tenant.
	Services []string
	// Subjects lists NATS wildcard patterns; nil allows all subjects that are not reserved.
	Subjects []string
	// Hosts lists patterns, see CheckHostPattern; nil allows all hosts.
	Hosts []string
	// OwnSubjects and OwnHosts are true if the lists are settings of the service itself
	// (subjects, hosts) rather than callback-subjects and callback-hosts. Errors name them.
	OwnSubjects, OwnHosts bool
	// HTTPSOnly restricts patterns without a scheme to https: the service has
	// credentials that must not be sent unencrypted.
	HTTPSOnly bool
	// BaseURL resolves callbacks that are a path; nil for none.
	BaseURL *url.URL
	// tenant is true for rules of a tenant other than the default one, and unknown for a
	// tenant that is not configured. Errors say so.
	tenant, unknown bool
}

// CallbackPolicy holds the rules of all services. Do not change it while it is in use. A
// nil policy allows the default tenant everything, and other tenants nothing.
type CallbackPolicy struct {
	// Common applies to services of the default tenant that are not in Services.
	Common   CallbackRules
	Services map[string]CallbackRules
	// Tenants has the rules of the services of each tenant; see TenantRules.
	Tenants map[string]CallbackRules
}

// Check applies the rules of service to a callback; see CallbackRules.Check.
func (p *CallbackPolicy) Check(callback, service string) error {
	if p == nil {
		p = &CallbackPolicy{}
	}
	if tenant := TenantOf(service); tenant != "" {
		rules, ok := p.Tenants[tenant]
		if !ok {
			rules = NoCallbacks()
		}
		return rules.Check(callback, service)
	}
	rules, ok := p.Services[service]
	if !ok {
		rules = p.Common
	}
	return rules.Check(callback, service)
}

// Resolve returns the URL or subject to call: the callback itself or, for a path, the
// base URL with that path. Errors are of CodeInvalidAttribute.
func (r *CallbackRules) Resolve(callback, service string) (string, error) {
	if !isPath(callback) {
		return callback, nil
	}
	if r.BaseURL == nil {
		return "", Errorf(CodeInvalidAttribute, "it is a path, but service %s has no base-url: set base-url or use a whole URL", service)
	}
	ref, err := url.Parse(callback)
	if err != nil {
		return "", Errorf(CodeInvalidAttribute, "not a path")
	}
	if err := checkPath(ref); err != nil {
		return "", err
	}
	u := r.BaseURL.JoinPath(ref.EscapedPath())
	u.RawQuery = ref.RawQuery
	return u.String(), nil
}

// Check returns an error if the rules do not allow a callback that CheckCallback accepts.
// Errors are of CodeInvalidAttribute and name the setting.
func (r *CallbackRules) Check(callback, service string) error {
	bad := func(format string, args ...any) error { return Errorf(CodeInvalidAttribute, format, args...) }
	tenant, service := SplitService(service)
	if r.unknown {
		return bad("tenant %s is not in the configuration, so it has no callbacks", tenant)
	}
	if err := r.checkService(tenant, service); err != nil {
		return err
	}
	if subject, ok := strings.CutPrefix(callback, NATSScheme); ok {
		if r.Subjects == nil || subject == WorkSubjectPrefix+service || slices.ContainsFunc(r.Subjects, func(p string) bool { return subjectMatches(p, subject) }) {
			return nil
		}
		switch {
		case r.tenant:
			return bad("the setting subjects of tenant %s does not allow this subject: %s", tenant, askOperator)
		case r.OwnSubjects:
			return bad("the setting subjects of service %s does not allow this subject", service)
		}
		return bad("the setting callback-subjects does not allow this subject for service %s", service)
	}
	target, err := r.Resolve(callback, service)
	if err != nil {
		return err
	}
	if r.Hosts == nil && !r.HTTPSOnly {
		return nil
	}
	u, err := url.Parse(target)
	if err != nil {
		return bad("not a URL")
	}
	if !slices.ContainsFunc(r.Hosts, func(p string) bool { return r.hostMatches(p, u) }) {
		switch {
		case r.tenant:
			return bad("the setting hosts of tenant %s does not allow %s://%s: %s", tenant, u.Scheme, u.Host, askOperator)
		case r.OwnHosts:
			return bad("the setting hosts of service %s does not allow %s://%s", service, u.Scheme, u.Host)
		case r.HTTPSOnly && u.Scheme != "https":
			return bad("service %s has credentials, so neither its setting hosts nor callback-hosts allows %s://%s: use https, or list the host with its scheme", service, u.Scheme, u.Host)
		}
		return bad("the setting callback-hosts does not allow %s://%s for service %s", u.Scheme, u.Host, service)
	}
	return nil
}

// CheckSubjectPattern returns an error, of CodeConfig, for an invalid pattern of allowed
// subjects. A pattern is a NATS subject with wildcards: a token may be *, and the last
// token may be >.
func CheckSubjectPattern(p string) error {
	tokens := strings.Split(p, ".")
	for i, t := range tokens {
		switch {
		case t == "*" || t == ">" && i == len(tokens)-1:
		case t == "" || strings.ContainsAny(t, "*>") || strings.ContainsFunc(t, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }):
			return Errorf(CodeConfig, "%.100q is not a NATS subject or wildcard such as orders.> or *.expired", p)
		}
	}
	if first := tokens[0]; first[0] == '$' || first[0] == '_' || first == ownToken {
		return Errorf(CodeConfig, "%.100q: subjects below %s are reserved and never for callbacks", p, first)
	}
	return nil
}

// subjectMatches reports whether a subject matches a NATS wildcard pattern.
func subjectMatches(pattern, subject string) bool {
	for {
		p, restP, moreP := strings.Cut(pattern, ".")
		s, restS, moreS := strings.Cut(subject, ".")
		switch {
		case p == ">":
			return true
		case p != "*" && p != s, moreP != moreS:
			return false
		case !moreP:
			return true
		}
		pattern, subject = restP, restS
	}
}

// hostPattern is a parsed pattern. Empty parts match everything.
type hostPattern struct{ scheme, host, port string }

// CheckHostPattern returns an error, of CodeConfig, for an invalid pattern of allowed
// hosts. A pattern is [scheme://]host[:port]. The host is a name, an address, *.example.com
// for every name below example.com, or * for every host. A pattern without a scheme
// matches http and https; a pattern without a port matches every port.
func CheckHostPattern(p string) error {
	h, ok := readHostPattern(p)
	bad := func() error {
		return Errorf(CodeConfig, "%.100q is not a host such as api.example.com, *.example.com, https://api.example.com:8443, 10.0.0.7 or *", p)
	}
	if !ok || h.scheme != "" && h.scheme != "http" && h.scheme != "https" || !validPort(h.port) {
		return bad()
	}
	name := strings.TrimPrefix(h.host, "*.")
	if h.host == "*" {
		return nil
	}
	if _, err := netip.ParseAddr(name); err == nil {
		if name != h.host {
			return bad()
		}
		return nil
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return bad()
		}
	}
	return nil
}

func readHostPattern(p string) (h hostPattern, ok bool) {
	rest := p
	if scheme, after, has := strings.Cut(p, "://"); has {
		h.scheme, rest = strings.ToLower(scheme), after
	}
	h.host, h.port = rest, ""
	switch i := strings.LastIndexByte(rest, ':'); {
	case strings.HasPrefix(rest, "["):
		end := strings.IndexByte(rest, ']')
		if end < 0 {
			return h, false
		}
		after := rest[end+1:]
		h.host = rest[1:end]
		if after != "" && (after[0] != ':' || len(after) == 1) {
			return h, false
		}
		h.port = strings.TrimPrefix(after, ":")
	case i >= 0 && strings.Count(rest, ":") == 1:
		h.host, h.port = rest[:i], rest[i+1:]
		if h.port == "" {
			return h, false
		}
	}
	if strings.HasSuffix(h.host, "*.") {
		return h, false
	}
	h.host = canonicalHost(h.host)
	return h, h.host != ""
}

// canonicalHost normalises a host name or address for comparison.
func canonicalHost(host string) string {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.WithZone("").Unmap().String()
	}
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

func (r *CallbackRules) hostMatches(pattern string, u *url.URL) bool {
	p, ok := readHostPattern(pattern)
	if !ok {
		return false
	}
	host, port := canonicalHost(u.Hostname()), portOf(u)
	switch {
	case p.scheme != "" && p.scheme != u.Scheme, p.scheme == "" && r.HTTPSOnly && u.Scheme != "https":
		return false
	case p.port != "" && p.port != port:
		return false
	case p.host == "*":
		return true
	}
	if below, ok := strings.CutPrefix(p.host, "*"); ok { // below is .example.com
		return len(host) > len(below) && strings.HasSuffix(host, below)
	}
	return host == p.host
}

// portOf returns the URL's port, or the default port of its scheme.
func portOf(u *url.URL) string {
	switch p := u.Port(); {
	case p != "":
		return p
	case u.Scheme == "http":
		return "80"
	}
	return "443"
}

// HostPatternOf returns the pattern that matches exactly the scheme, host and port of a URL.
func HostPatternOf(u *url.URL) string {
	host := u.Hostname()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return u.Scheme + "://" + host + ":" + portOf(u)
}
