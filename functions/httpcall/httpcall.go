// Package httpcall invokes callbacks over HTTP: one POST of the fired event, in
// the binary or the structured content mode of the CloudEvents HTTP binding.
//
// # Guarantees
//
// The invoker connects only to addresses that its Guard allows, checked on the resolved
// address when it is dialled. It follows no redirect, uses no proxy from the environment,
// keeps no cookies, and reads a bounded part of any answer: status line and headers up to
// maxHeaderBytes, the body up to Config.ReadLimit and for at most Config.BodyWait after the
// headers. The status alone decides the outcome; a body that is too long or too slow is cut
// off.
//
// One Invoke is one call of the target: a POST of which something was written is not repeated.
//
// Credentials in the URL are sent as basic authentication. Neither they nor the
// configured headers appear in an error, a log, or the excerpt of an answer that
// repeats them.
//
// # Outcomes
//
//	2xx                           success
//	a status in Config.Permanent  permanent; by default only 410
//	429, 503 with Retry-After     "not now": retryable after the delay that the callee named
//	every other status            retryable; Retry-After is honoured
//	time-out, broken connection   retryable
//	untrusted certificate         retryable
//	address refused by the guard  retryable
//
// A status such as 401, 404 or 302 often comes from a deployment or a rotated credential, and
// a refused address from a setting. An operator can correct these while the timer is retried.
//
// # Handshake
//
// With Config.Origin, Ask sends the validation request of the CloudEvents webhook specification
// (handshake.go), and every POST names the origin.
//
// # Signature
//
// With a secret, every request has the headers webhook-id (the idempotency key),
// webhook-timestamp and webhook-signature of Standard Webhooks. The signature covers id,
// timestamp and body. In structured mode the body is the whole event, so the signature covers
// the event's id, source and type. In binary mode it does not cover the ce- headers.
package httpcall

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cloudevents/sdk-go/v2/types"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/schemas"
)

// Config configures the invoker of one service. The zero value of a field means its default.
type Config struct {
	Guard Guard
	// MaxConns bounds the connections to one host; default 64. Each service has
	// an invoker, and so connections, of its own.
	MaxConns int
	// ReadLimit bounds the bytes of an answer's body that are read; default 64 KiB.
	ReadLimit int64
	// BodyWait bounds the wait for the body after the headers; default 2 s.
	BodyWait time.Duration
	// DialTimeout bounds connecting and the TLS handshake, each; default 10 s.
	DialTimeout time.Duration
	// Secrets sign each request; several while one is being replaced. Each is whsec_ followed
	// by 24 to 64 bytes in base64.
	Secrets []string
	// Structured sends the whole event as JSON in the body, instead of its data with
	// the attributes in headers. An event whose data is an event by itself is always sent this way.
	Structured bool
	// Headers are added to every request, by canonical name; see CheckHeader. A value
	// is a secret.
	Headers map[string]string
	// Permanent are the statuses, 300 to 599, after which no other attempt follows; nil for
	// DefaultPermanent.
	Permanent []int
	// Origin is the DNS name by which Belfry introduces itself to callees, in the header
	// WebHook-Request-Origin of every request; empty for none. See Ask.
	Origin string
	// TLS is the TLS configuration to which PEM adds; nil for Go's default.
	TLS *tls.Config
	// PEM adds certificates to TLS.
	PEM PEM
	// Resolver resolves names; nil for the system's.
	Resolver *net.Resolver
	// UserAgent defaults to "belfry".
	UserAgent string
}

// PEM holds certificates in PEM form; an empty field adds nothing.
type PEM struct {
	// CA has certificate authorities to trust in addition to the system's.
	CA []byte
	// Cert and Key are the client certificate for servers that request one.
	Cert, Key []byte
}

// DefaultPermanent returns the default of Config.Permanent: 410 (Gone), the only status that
// means that the resource will not come back.
func DefaultPermanent() []int { return []int{http.StatusGone} }

// Defaults and bounds.
const (
	DefaultReadLimit   = 64 << 10
	DefaultMaxConns    = 64
	defaultBodyWait    = 2 * time.Second
	defaultDialTimeout = 10 * time.Second
	maxHeaderBytes     = 64 << 10
	idleConnTimeout    = 30 * time.Second
	minSecretBytes     = 24
	maxSecretBytes     = 64
)

// Invoker calls over HTTP. It is safe for concurrent use.
type Invoker struct {
	cfg       Config
	transport *http.Transport
	signers   []*standardwebhooks.Webhook
	// secrets are removed from the answers of callees.
	secrets []string

	mu     sync.Mutex
	calls  int  // running calls
	closed bool // Close was called
}

// New returns an invoker. Errors: schemas.CodeConfig for malformed secrets, headers, statuses
// and certificates; the texts contain no secrets.
func New(cfg Config) (*Invoker, error) {
	if cfg.MaxConns <= 0 {
		cfg.MaxConns = DefaultMaxConns
	}
	if cfg.ReadLimit <= 0 {
		cfg.ReadLimit = DefaultReadLimit
	}
	if cfg.BodyWait <= 0 {
		cfg.BodyWait = defaultBodyWait
	}
	if cfg.DialTimeout <= 0 {
		cfg.DialTimeout = defaultDialTimeout
	}
	if cfg.UserAgent == "" {
		cfg.UserAgent = "belfry"
	}
	i := &Invoker{cfg: cfg}
	for n, s := range cfg.Secrets {
		w, err := newSigner(s)
		if err != nil {
			return nil, schemas.Errorf(schemas.CodeConfig, "webhook secret %d: %v", n+1, err)
		}
		i.signers = append(i.signers, w)
	}
	for name, value := range cfg.Headers {
		if err := CheckHeader(name, value); err != nil {
			return nil, err
		}
		i.secrets = append(i.secrets, secretsOf(value)...)
	}
	if err := CheckOrigin(cfg.Origin); err != nil {
		return nil, err
	}
	if cfg.Permanent == nil {
		i.cfg.Permanent = DefaultPermanent()
	}
	for _, code := range cfg.Permanent {
		if code < 300 || code > 599 {
			return nil, schemas.Errorf(schemas.CodeConfig, "permanent status %d must be 300 to 599", code)
		}
	}
	tlsConfig, err := cfg.tls()
	if err != nil {
		return nil, err
	}
	dialer := &net.Dialer{Timeout: cfg.DialTimeout, Control: cfg.Guard.control, Resolver: cfg.Resolver}
	i.transport = &http.Transport{
		Proxy:                  nil, // a proxy from the environment would connect without the guard
		DialContext:            dialer.DialContext,
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    cfg.DialTimeout,
		ForceAttemptHTTP2:      true,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second},
		MaxConnsPerHost:        cfg.MaxConns,
		MaxIdleConnsPerHost:    cfg.MaxConns,
		IdleConnTimeout:        idleConnTimeout,
		MaxResponseHeaderBytes: maxHeaderBytes,
		DisableCompression:     true,
	}
	return i, nil
}

// tls returns the TLS configuration, nil for Go's default.
func (c *Config) tls() (*tls.Config, error) {
	out := c.TLS.Clone()
	if len(c.PEM.CA)+len(c.PEM.Cert)+len(c.PEM.Key) == 0 {
		return out, nil
	}
	if out == nil {
		out = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if len(c.PEM.CA) > 0 {
		roots := out.RootCAs
		if roots == nil {
			var err error
			if roots, err = x509.SystemCertPool(); err != nil {
				roots = x509.NewCertPool()
			}
		}
		out.RootCAs = roots.Clone()
		if !out.RootCAs.AppendCertsFromPEM(c.PEM.CA) {
			return nil, schemas.Errorf(schemas.CodeConfig, "tls-ca has no certificate in PEM form")
		}
	}
	if len(c.PEM.Cert)+len(c.PEM.Key) > 0 {
		pair, err := tls.X509KeyPair(c.PEM.Cert, c.PEM.Key)
		if err != nil {
			return nil, schemas.Errorf(schemas.CodeConfig, "tls-cert and tls-key: %w", err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}

// newSigner returns the signer of a secret. It accepts only the form that Standard Webhooks
// specifies.
func newSigner(secret string) (*standardwebhooks.Webhook, error) {
	rest, ok := strings.CutPrefix(secret, "whsec_")
	if !ok {
		return nil, errors.New("it must start with whsec_")
	}
	// 4 base64 characters hold 3 bytes.
	if n := len(strings.TrimRight(rest, "=")) * 3 / 4; n < minSecretBytes || n > maxSecretBytes {
		return nil, fmt.Errorf("it has %d bytes; it must have %d to %d", n, minSecretBytes, maxSecretBytes)
	}
	w, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		return nil, errors.New("it is not base64 after whsec_")
	}
	return w, nil
}

// Close closes the connections once no call runs. Calls continue, and may also begin later.
//
// It waits for the calls because http.Transport.CloseIdleConnections can close a connection
// that a call has just taken: the call then fails with "http: CloseIdleConnections called".
func (i *Invoker) Close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	i.closeUnused()
}

// closeUnused closes the connections if the invoker is closed and no call runs. i.mu is held.
func (i *Invoker) closeUnused() {
	if i.closed && i.calls == 0 {
		i.transport.CloseIdleConnections()
	}
}

func (i *Invoker) begin() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.calls++
}

func (i *Invoker) end() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.calls--
	i.closeUnused()
}

// Invoke implements callback.Invoker: it makes one POST.
func (i *Invoker) Invoke(ctx context.Context, r callback.Request) callback.Outcome {
	i.begin()
	defer i.end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, bad := i.request(ctx, r)
	if bad != nil {
		return *bad
	}
	resp, excerpt, bad := i.send(ctx, cancel, req, r) //nolint:bodyclose // send closes it
	if bad != nil {
		return *bad
	}
	return i.outcomeOf(resp, excerpt, r)
}

// send makes a request and reads the start of the answer; its body is closed. cancel ends ctx. It
// returns the outcome instead if there is no answer.
func (i *Invoker) send(ctx context.Context, cancel context.CancelFunc, req *http.Request, r callback.Request) (*http.Response, []byte, *callback.Outcome) {
	secrets := i.secrets
	if user, password, ok := req.BasicAuth(); ok {
		secrets = append(slices.Clip(secrets), secretsOf(req.Header.Get("Authorization"))...)
		secrets = append(secrets, cmp.Or(password, user)) // without a password the user name is the credential
	}
	// The transport is used without http.Client: no redirects, no cookies, and
	// errors that do not quote the URL.
	resp, err := i.transport.RoundTrip(req)
	if err != nil {
		out := failure(ctx, r, err)
		return nil, nil, &out
	}
	slow := time.AfterFunc(i.cfg.BodyWait, cancel)
	defer slow.Stop()
	return resp, i.readBody(resp, secrets), nil
}

// readBody reads up to the limit. Its errors do not matter: the status decides.
func (i *Invoker) readBody(resp *http.Response, secrets []string) []byte {
	defer func() { _ = resp.Body.Close() }() // nothing is lost if closing fails
	if resp.StatusCode == http.StatusSwitchingProtocols || resp.ContentLength == 0 {
		return nil
	}
	// Search beyond the excerpt, so that a secret at its end is found as a whole.
	size := schemas.MaxOutcomeResponse
	for _, secret := range secrets {
		size = max(size, schemas.MaxOutcomeResponse+len(secret))
	}
	buf := make([]byte, size)
	n, err := io.ReadFull(resp.Body, buf)
	if err == nil {
		// Read the rest, up to the limit, so that the connection can be reused.
		_, _ = io.CopyN(io.Discard, resp.Body, i.cfg.ReadLimit-int64(n))
	}
	return callback.Excerpt(scrub(buf[:n], secrets))
}

// request builds the POST, or returns the outcome if it cannot be built.
func (i *Invoker) request(ctx context.Context, r callback.Request) (*http.Request, *callback.Outcome) {
	structured := i.structured(r)
	data, err := body(r, structured)
	if err != nil {
		bad := callback.Permanent(callback.ReasonUndecodable, "the event cannot be sent over HTTP: "+err.Error())
		return nil, &bad
	}
	req, bad := i.plain(ctx, http.MethodPost, r.Target, bytes.NewReader(data))
	if bad != nil {
		return nil, bad
	}
	h := req.Header
	h[headerKey] = []string{r.Key}
	if structured {
		h.Set("Content-Type", contentStructured)
	} else if err := setEvent(h, r); err != nil {
		bad := callback.Permanent(callback.ReasonUndecodable, "the event cannot be sent over HTTP: "+err.Error())
		return nil, &bad
	}
	for k, v := range r.Trace {
		h.Set(k, headerSafe(v))
	}
	i.sign(h, r, data)
	return req, nil
}

// plain builds a request with the headers that do not depend on the event: credentials, the
// configured headers and the origin.
func (i *Invoker) plain(ctx context.Context, method, target string, body io.Reader) (*http.Request, *callback.Outcome) {
	u, err := url.Parse(target)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		// err quotes the URL, which may hold credentials: do not include it.
		bad := callback.Permanent(callback.ReasonBadTarget, "timercallback "+schemas.RedactURL(target)+" is not an http or https URL")
		return nil, &bad
	}
	user := u.User
	u.User, u.Fragment, u.RawFragment = nil, "", ""
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		bad := callback.Permanent(callback.ReasonBadTarget, "timercallback "+schemas.RedactURL(target)+" cannot be called")
		return nil, &bad
	}
	if user != nil {
		password, _ := user.Password()
		req.SetBasicAuth(user.Username(), password)
	}
	h := req.Header
	h.Set("User-Agent", i.cfg.UserAgent)
	for k, v := range i.cfg.Headers {
		h[k] = []string{v}
	}
	if i.cfg.Origin != "" {
		h.Set(headerRequestOrigin, i.cfg.Origin)
	}
	return req, nil
}

// headerKey is the header Idempotency-Key. HTTP ignores the case of header names, but http.Transport does
// not: if a request has the canonical name (Request.isReplayable, Go 1.26), the transport repeats the POST
// after each reused connection that breaks before an answer, so one attempt could call the target many
// times. With this name it repeats a POST over HTTP/1.1 only if nothing of it was written, for which it uses
// Request.GetBody.
//
// Over HTTP/2 the name does not matter. The transport repeats a request on a stream that the server refused
// unprocessed (REFUSED_STREAM, GOAWAY), and on a stream that the server reset with PROTOCOL_ERROR.
const headerKey = "idempotency-key"

// contentStructured is the content type of structured mode, HTTP binding 3.2.1.
const contentStructured = "application/cloudevents+json; charset=utf-8"

// structured reports whether a request is sent in structured mode. In binary mode the content type is that of
// the data: if the data is an event by itself, a receiver would take it for the event that has fired.
func (i *Invoker) structured(r callback.Request) bool {
	return i.cfg.Structured || schemas.IsEventContent(r.Event.DataContentType())
}

// body returns the body of the request, which the signature covers.
func body(r callback.Request, structured bool) ([]byte, error) {
	if !structured {
		return r.Event.Data(), nil
	}
	_, data, err := schemas.EncodeEvent(*r.Event, schemas.ModeStructured)
	return data, err
}

// setEvent writes the attributes as percent-encoded ce- headers (HTTP binding 1.0.2, section
// 3.1.3).
func setEvent(h http.Header, r callback.Request) error {
	e := r.Event
	if ct := e.DataContentType(); ct != "" {
		h.Set("Content-Type", headerSafe(ct))
	}
	set := func(name, value string) {
		if value != "" {
			h["Ce-"+strings.ToUpper(name[:1])+name[1:]] = []string{percentEncode(value)}
		}
	}
	set("specversion", e.SpecVersion())
	set("id", e.ID())
	set("source", e.Source())
	set("type", e.Type())
	set("subject", e.Subject())
	set("dataschema", e.DataSchema())
	if t := e.Time(); !t.IsZero() {
		set("time", types.FormatTime(t))
	}
	for name, v := range e.Extensions() {
		s, err := types.Format(v)
		if err != nil {
			return fmt.Errorf("attribute %s: %w", name, err)
		}
		set(name, s)
	}
	return nil
}

// percentEncode encodes the characters that the HTTP binding does not allow in a header:
// blank, double quote, percent, and everything that is not printable ASCII.
func percentEncode(s string) string {
	const hex = "0123456789ABCDEF"
	plain := true
	for k := 0; k < len(s); k++ {
		if mustEncode(s[k]) {
			plain = false
			break
		}
	}
	if plain {
		return s
	}
	b := make([]byte, 0, len(s)+16)
	for k := 0; k < len(s); k++ {
		if c := s[k]; mustEncode(c) {
			b = append(b, '%', hex[c>>4], hex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

func mustEncode(c byte) bool { return c <= ' ' || c >= 0x7f || c == '"' || c == '%' }

// headerSafe replaces the characters that a header value cannot contain.
func headerSafe(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r >= 0x7f {
			return ' '
		}
		return r
	}, s)
}

// sign adds the Standard Webhooks headers.
func (i *Invoker) sign(h http.Header, r callback.Request, data []byte) {
	if len(i.signers) == 0 {
		return
	}
	at := time.UnixMilli(r.NowMs)
	sigs := make([]string, 0, len(i.signers))
	for _, s := range i.signers {
		if sig, err := s.Sign(r.Key, at, data); err == nil { // Sign returns no error today
			sigs = append(sigs, sig)
		}
	}
	h.Set(standardwebhooks.HeaderWebhookID, r.Key)
	h.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(at.Unix(), 10))
	h.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(sigs, " "))
}

// outcomeOf turns an answer into an outcome.
func (i *Invoker) outcomeOf(resp *http.Response, excerpt []byte, r callback.Request) callback.Outcome {
	code := resp.StatusCode
	if code >= 200 && code < 300 {
		return callback.Outcome{Success: true, Code: int32(code), Response: excerpt}
	}
	text := "HTTP status " + strconv.Itoa(code)
	if t := http.StatusText(code); t != "" {
		text += " (" + t + ")"
	}
	reason := callback.ReasonStatus
	if code >= 300 && code < 400 {
		reason = callback.ReasonRedirect
		text += ": redirects are not followed"
		if to, err := resp.Location(); err == nil && (to.Scheme == "http" || to.Scheme == "https") {
			text += "; timercallback must be the final URL, not a URL that redirects to " + schemas.RedactURL(to.String())
		}
	}
	out := callback.Retry(reason, text)
	if slices.Contains(i.cfg.Permanent, code) {
		out = callback.Permanent(reason, text)
	} else if d, ok := callback.RetryAfter(resp.Header.Get("Retry-After"), resp.Header.Get("Date"), r.NowMs); ok {
		out.RetryAfter = d
		if code == http.StatusTooManyRequests || code == http.StatusServiceUnavailable {
			out.NotNow, out.Reason = true, callback.ReasonRetryLater
		}
	}
	out.Code, out.Response = int32(code), excerpt
	return out
}

// failure turns the error of a call without an answer into an outcome.
func failure(ctx context.Context, r callback.Request, err error) callback.Outcome {
	var blocked *BlockedError
	if errors.As(err, &blocked) {
		return callback.Retry(callback.ReasonAddressRefused, blocked.Error())
	}
	target := schemas.RedactURL(r.Target)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return callback.Retry(callback.ReasonTimeout, fmt.Sprintf("%s did not answer within the time-out of %s (timertimeout)", target, r.Timeout))
	}
	var (
		unknown  x509.UnknownAuthorityError
		invalid  x509.CertificateInvalidError
		hostname x509.HostnameError
		verify   *tls.CertificateVerificationError
		record   tls.RecordHeaderError
	)
	if errors.As(err, &unknown) || errors.As(err, &invalid) || errors.As(err, &hostname) || errors.As(err, &verify) || errors.As(err, &record) {
		return callback.Retry(callback.ReasonTLS, "TLS with "+target+" failed: "+err.Error())
	}
	out := callback.Retry(callback.ReasonConnection, "calling "+target+" failed: "+err.Error())
	out.Cause = "calling it failed: " + err.Error()
	return out
}
