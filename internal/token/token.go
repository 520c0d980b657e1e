// Package token checks the bearer tokens of HTTP requests.
//
// A token is 256 random bits with the prefix "bfy_". The client that calls Belfry keeps it. The
// file of the setting http-tokens has its hash, with a name, scopes, a tenant and the end of its
// validity:
//
//   - {name: ci, hash: sha256:9f86…, scopes: [read, write], tenant: acme, expires: 2027-01-31T00:00:00Z}
//
// A file may have several tokens for one caller, so that a token can be replaced without a
// refused request: add the new line, give the new token to the caller, remove the old line.
//
// A Set has the tokens of a file, and the token of the setting http-token-file. Set.Authorize
// decides about a request. The package does no I/O.
package token

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/schemas"
)

const (
	// prefix begins every token, so that people and scanners for leaked secrets recognise it.
	prefix = "bfy_"
	// hashPrefix begins a hash in the file, and names its algorithm.
	hashPrefix = "sha256:"
	// randomBytes is the size of the random part of a token.
	randomBytes = 32
)

// encoding of the random part. It has no character that ends a word, so a double click selects
// a token whole.
var encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Generate returns a new token.
func Generate() string {
	b := make([]byte, randomBytes)
	_, _ = rand.Read(b) // never fails
	return prefix + encoding.EncodeToString(b)
}

// generated reports whether a text has the form of the tokens that Generate returns. The hash of
// a password that a person chose therefore never admits anybody.
func generated(text string) bool {
	random, ok := strings.CutPrefix(text, prefix)
	if !ok || len(random) != encoding.EncodedLen(randomBytes) {
		return false
	}
	_, err := encoding.DecodeString(random)
	return err == nil
}

// Hash is the SHA-256 hash of a token. A slow hash with a salt, as for passwords, would add
// nothing: it makes guessing expensive, and nobody can guess 256 random bits.
type Hash [sha256.Size]byte

// HashOf returns the hash of a token.
func HashOf(text string) Hash { return sha256.Sum256([]byte(text)) }

// String returns the hash as in the file.
func (h Hash) String() string { return hashPrefix + hex.EncodeToString(h[:]) }

// parseHash is the inverse of Hash.String. Its errors never contain the text, which may be a
// token.
func parseHash(text string) (h Hash, err error) {
	digits, ok := strings.CutPrefix(text, hashPrefix)
	if strings.HasPrefix(text, prefix) {
		return h, fmt.Errorf("this is a token; the file has its hash: %s and 64 hexadecimal digits, as belfry token new prints it", hashPrefix)
	}
	if !ok || hex.DecodedLen(len(digits)) != len(h) {
		return h, fmt.Errorf("must be %s and 64 hexadecimal digits, as belfry token new prints it", hashPrefix)
	}
	if _, err := hex.Decode(h[:], []byte(digits)); err != nil {
		return h, fmt.Errorf("must be %s and 64 hexadecimal digits, as belfry token new prints it", hashPrefix)
	}
	return h, nil
}

// The scopes.
const (
	// ScopeRead allows to read timers, lists and metrics, without the data of events.
	ScopeRead = "read"
	// ScopeWrite allows to add, change and cancel timers.
	ScopeWrite = "write"
	// ScopeAdmin allows everything but ScopePayload. A token without a tenant sees the timers of
	// all tenants.
	ScopeAdmin = "admin"
	// ScopePayload allows to read what an event carries for its callee, such as its data and the
	// path of its callback, and what the callee answers.
	ScopePayload = "payload"
)

// AllScopes returns all scopes, in their usual order.
func AllScopes() Scopes { return Scopes{ScopeRead, ScopeWrite, ScopeAdmin, ScopePayload} }

// Scopes are the scopes of a token.
type Scopes []string

// Has reports whether the scopes allow what needs a scope.
func (s Scopes) Has(scope string) bool {
	if slices.Contains(s, scope) {
		return true
	}
	return slices.Contains(s, ScopeAdmin) && (scope == ScopeRead || scope == ScopeWrite)
}

// check returns an error for an unknown, a missing or a repeated scope.
func (s Scopes) check() error {
	if len(s) == 0 {
		return fmt.Errorf("scopes: must have at least one of %s", strings.Join(AllScopes(), ", "))
	}
	for i, scope := range s {
		switch {
		case !slices.Contains(AllScopes(), scope):
			return fmt.Errorf("scopes: scope %.40q does not exist; the scopes are %s", scope, strings.Join(AllScopes(), ", "))
		case slices.Contains(s[:i], scope):
			return fmt.Errorf("scopes: duplicate scope %s", scope)
		}
	}
	return nil
}

// Token is a token as the file describes it, without the secret.
type Token struct {
	// Name is 1 to 64 letters, digits, '.', '_' or '-', and begins with a letter or a digit. It
	// is unique in the file. Errors and the history of timers show it.
	Name   string
	Hash   Hash
	Scopes Scopes
	// Tenant is the tenant whose timers the token reaches; "" for the default tenant.
	Tenant string
	// Expires is the time from which the token is refused; the zero time for never.
	Expires time.Time
	// Line is the line of the file, from 1; 0 for a token that no file has.
	Line int
}

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Check returns an error for values that the file cannot have.
func (t *Token) Check() error {
	if generated(t.Name) {
		return errors.New("name: this is the text of a token, which only its owner may have: write a name of your choice, such as deploy")
	}
	if !validName.MatchString(t.Name) || t.Name == AdminName {
		return fmt.Errorf("name %.80q must be 1 to 64 letters, digits, '.', '_' or '-', begin with a letter or a digit, and not be %s", t.Name, AdminName)
	}
	if t.Tenant != "" && !schemas.ValidTenant(t.Tenant) {
		return fmt.Errorf("tenant %.80q must be 1 to %d lower-case letters, digits or '-'", t.Tenant, schemas.MaxTenantLength)
	}
	return t.Scopes.check()
}

// Expired reports whether the token has expired.
func (t *Token) Expired(now time.Time) bool { return !t.Expires.IsZero() && !now.Before(t.Expires) }

// String returns the line of the file.
func (t *Token) String() string {
	line := fmt.Sprintf("- {name: %s, hash: %s, scopes: [%s]", t.Name, t.Hash, strings.Join(t.Scopes, ", "))
	if t.Tenant != "" {
		line += ", tenant: " + t.Tenant
	}
	if !t.Expires.IsZero() {
		line += ", expires: " + t.Expires.UTC().Format(time.RFC3339)
	}
	return line + "}"
}
