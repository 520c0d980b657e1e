package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"

	gooidc "github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"
)

const (
	// keysMaxAge is the age at which the next token makes the verifier read the keys again.
	keysMaxAge = 5 * time.Minute
	// keysMaxStale is the age up to which keys are used while the provider does not answer.
	keysMaxStale = time.Hour
	// minFetch is the minimum time between two requests for keys. For that long a token may be
	// refused whose key is new at the provider.
	minFetch = 5 * time.Second
	// fetchTimeout bounds one request. It must stay below the time-out of an HTTP request.
	fetchTimeout = 5 * time.Second
	// maxDocumentBytes bounds an answer of the provider.
	maxDocumentBytes = 1 << 20
	// maxKeys bounds the keys that are used.
	maxKeys = 100
	// maxWaiting bounds the tokens that wait for a request to the provider. Others are refused at
	// once, so a provider that does not answer takes few of the places of HTTP requests.
	maxWaiting = 64
)

// errForm is the error of a token that is not a JSON Web Token with exactly one signature of an
// accepted algorithm.
var errForm = fmt.Errorf("it is not a JSON Web Token with one signature of one of the algorithms %s", strings.Join(algorithms, ", "))

// errSignature is the error of a token that no key of the provider has signed.
var errSignature = errors.New("no key of the provider has signed it")

// errUnavailable is the error of every token while there are no keys. It leaves the reason to the
// log, because the reason may name hosts that a caller must not learn.
var errUnavailable = errors.New("the keys of the OpenID Connect provider cannot be read now; the log of this node has the reason: try again")

// keys reads and keeps the keys of a provider. It replaces the RemoteKeySet of go-oidc, which never
// forgets a withdrawn key, and which asks the provider for each token with a wrong signature.
type keys struct {
	issuer string
	client *http.Client
	log    zerolog.Logger
	now    func() time.Time

	// fetching has an entry while a request is under way. Its holder alone may change the fields
	// below, with mu held. waiting has an entry for each token that waits for it.
	fetching, waiting chan struct{}

	mu    sync.Mutex
	url   string // of the keys; "" before the discovery
	set   []jose.JSONWebKey
	read  time.Time // when set was read; zero for never
	tried time.Time // when the last request ended
}

func newKeys(issuer string, client *http.Client, log zerolog.Logger) *keys {
	return &keys{issuer: issuer, client: client, log: log, now: time.Now, fetching: make(chan struct{}, 1), waiting: make(chan struct{}, maxWaiting)}
}

// payload returns the payload of a token that one of the keys has signed. Errors: errForm,
// errSignature, errUnavailable.
func (k *keys) payload(ctx context.Context, text string) ([]byte, error) {
	var accepted []jose.SignatureAlgorithm
	for _, a := range algorithms {
		accepted = append(accepted, jose.SignatureAlgorithm(a))
	}
	jws, err := jose.ParseSigned(text, accepted)
	if err != nil || len(jws.Signatures) != 1 {
		return nil, errForm
	}
	if age := k.age(); age >= keysMaxAge {
		k.refresh(ctx, age >= keysMaxStale)
	}
	if payload, ok := k.verify(jws); ok {
		return payload, nil
	}
	// The provider may have a new key.
	if k.refresh(ctx, true) {
		if payload, ok := k.verify(jws); ok {
			return payload, nil
		}
	}
	if k.age() >= keysMaxStale {
		return nil, errUnavailable
	}
	return nil, errSignature
}

// age returns the time since the keys were read, or more than keysMaxStale without keys.
func (k *keys) age() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.read.IsZero() {
		return keysMaxStale + keysMaxAge
	}
	return k.now().Sub(k.read)
}

// verify checks a signature with the keys that are not too old.
func (k *keys) verify(jws *jose.JSONWebSignature) ([]byte, bool) {
	if k.age() >= keysMaxStale {
		return nil, false
	}
	k.mu.Lock()
	set := k.set
	k.mu.Unlock()
	header := jws.Signatures[0].Header
	for i := range set {
		key := &set[i]
		if header.KeyID != "" && key.KeyID != header.KeyID || key.Algorithm != "" && key.Algorithm != header.Algorithm {
			continue
		}
		if payload, err := jws.Verify(key); err == nil {
			return payload, true
		}
	}
	return nil, false
}

// refresh reads the keys, unless the last request ended less than minFetch ago. With wait it waits
// for a request in progress. It reports whether the keys were read after the call began.
func (k *keys) refresh(ctx context.Context, wait bool) bool {
	called := k.now()
	if !k.begin(ctx, wait) {
		return false
	}
	defer func() { <-k.fetching }()
	k.mu.Lock()
	address, read, tried := k.url, k.read, k.tried
	k.mu.Unlock()
	if !tried.IsZero() && k.now().Sub(tried) < minFetch {
		return !read.Before(called)
	}
	// The caller may leave; others wait for the same keys.
	ctx = context.WithoutCancel(ctx)
	var set []jose.JSONWebKey
	var err error
	if address == "" {
		address, err = k.discoverKeys(ctx)
	}
	if err == nil {
		set, err = k.fetch(ctx, address)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tried = k.now()
	if err != nil {
		k.log.Warn().Err(err).Str("issuer", k.issuer).Msg("the keys of the OpenID Connect provider cannot be read; a later token makes the next try")
		k.url = "" // the provider may have moved them
		return false
	}
	k.url, k.set, k.read = address, set, k.now()
	return true
}

// begin takes the permit fetching, with wait within ctx. It returns false if another request has the
// permit, and with wait if maxWaiting tokens wait for it already or ctx has ended.
func (k *keys) begin(ctx context.Context, wait bool) bool {
	select {
	case k.fetching <- struct{}{}:
		return true
	default:
	}
	if !wait {
		return false
	}
	select {
	case k.waiting <- struct{}{}:
		defer func() { <-k.waiting }()
	default:
		return false
	}
	select {
	case k.fetching <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// document is a part of the discovery document of a provider.
type document struct {
	Keys        string   `json:"jwks_uri"`
	Authorize   string   `json:"authorization_endpoint"`
	Token       string   `json:"token_endpoint"`
	AuthMethods []string `json:"token_endpoint_auth_methods_supported"`
	// NamesIssuer says that answers to a login name their issuer (RFC 9207).
	NamesIssuer bool `json:"authorization_response_iss_parameter_supported"`
}

// discover reads the discovery document.
func (k *keys) discover(ctx context.Context) (doc document, err error) {
	p, err := gooidc.NewProvider(gooidc.ClientContext(ctx, k.client), k.issuer)
	if err == nil {
		err = p.Claims(&doc)
	}
	return doc, err
}

// discoverKeys returns the URL of the keys.
func (k *keys) discoverKeys(ctx context.Context) (string, error) {
	doc, err := k.discover(ctx)
	if err != nil {
		return "", err
	}
	return doc.Keys, checkURL("jwks_uri", doc.Keys)
}

// checkURL returns an error for a URL of the discovery document that is not secure.
func checkURL(name, address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" || u.Scheme != "https" && (u.Scheme != "http" || !loopback(u.Hostname())) {
		return fmt.Errorf("%s %.200q of its discovery document is not an https URL", name, address)
	}
	return nil
}

// fetch reads the public keys for signatures.
func (k *keys) fetch(ctx context.Context, address string) ([]jose.JSONWebKey, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	resp, err := k.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // nothing is lost if closing fails
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s: status %d", address, resp.StatusCode)
	}
	var doc struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
		return nil, fmt.Errorf("GET %s: %w", address, err)
	}
	var set []jose.JSONWebKey
	for _, raw := range doc.Keys {
		var key jose.JSONWebKey
		// Keys of other kinds are skipped: a provider may have them for other programs.
		if json.Unmarshal(raw, &key) != nil || !key.IsPublic() || !key.Valid() || key.Use != "" && key.Use != "sig" ||
			key.Algorithm != "" && !slices.Contains(algorithms, key.Algorithm) {
			continue
		}
		if set = append(set, key); len(set) == maxKeys {
			break
		}
	}
	if len(set) == 0 {
		return nil, fmt.Errorf("GET %s: no key for signatures with the algorithms %v", address, algorithms)
	}
	return set, nil
}

// bounded is a transport whose answers have at most maxDocumentBytes.
type bounded struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxDocumentBytes)
	}
	return resp, err
}

// noRedirect refuses redirects: the keys come from the hosts that the settings and the discovery name.
func noRedirect(*http.Request, []*http.Request) error {
	return http.ErrUseLastResponse
}
