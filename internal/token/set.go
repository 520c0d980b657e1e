package token

import (
	"context"
	"crypto/subtle"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Set has the tokens that a node accepts. It is immutable. A nil Set needs no token; a Set without
// tokens refuses every request.
type Set struct {
	tokens []Token
	// admin is the hash of the token of http-token-file; nil for none.
	admin *Hash
	// verify decides about tokens that the set does not have; nil if it refuses them.
	verify Verify
}

// Verify returns the owner of a token that a Set does not have. known is false if the text is not a
// token of the kind that the function verifies. The error is an *Error.
type Verify func(ctx context.Context, text string, now time.Time) (id Identity, known bool, err error)

// WithVerify returns the set with a function that verifies tokens that the set does not have. A nil set
// with a function also needs a token. A nil function does not change the set.
func (s *Set) WithVerify(v Verify) *Set {
	if v == nil {
		return s
	}
	out := &Set{verify: v}
	if s != nil {
		out.tokens, out.admin = s.tokens, s.admin
	}
	return out
}

// AdminName is the name of the token of http-token-file.
const AdminName = "http-token-file"

// WithAdmin returns the set with the token of http-token-file, which has all scopes and sees the
// timers of all tenants. "" is no token, and leaves the set as it is.
func (s *Set) WithAdmin(text string) *Set {
	if text == "" {
		return s
	}
	hash := HashOf(text)
	out := &Set{tokens: s.Tokens(), admin: &hash}
	if s != nil {
		out.verify = s.verify
	}
	return out
}

// Tokens returns the tokens of the file, in its order.
func (s *Set) Tokens() []Token {
	if s == nil {
		return nil
	}
	return slices.Clone(s.tokens)
}

// Identity is the caller of a request.
type Identity struct {
	// Name is the name of the token; "" if the node asks for none.
	Name string
	// Tenant is the tenant whose timers the caller reaches; "" for the default tenant.
	Tenant string
	Scopes Scopes
}

// AllTenants reports whether the caller sees the timers of all tenants.
func (i Identity) AllTenants() bool { return i.Tenant == "" && i.Scopes.Has(ScopeAdmin) }

// Error is the refusal of a request.
type Error struct {
	// Status is the HTTP status: 400 for a request that no token could help, 401 for a missing,
	// unknown or expired token, 403 for a token that does not allow the request, 503 for a token that
	// cannot be checked now.
	Status int
	// Scope is the scope that the token lacks, or "".
	Scope string
	// Reason describes the error and its remedy, without secrets.
	Reason string
	// code is the error code of RFC 6750; "" without a token.
	code string
}

func (e *Error) Error() string { return e.Reason }

// Challenge returns the value of the header WWW-Authenticate, as RFC 6750 defines it.
func (e *Error) Challenge() string {
	c := `Bearer realm="belfry"`
	if e.code != "" {
		c += fmt.Sprintf(`, error=%q, error_description=%q`, e.code, e.Reason)
	}
	if e.Scope != "" {
		c += fmt.Sprintf(`, scope=%q`, e.Scope)
	}
	return c
}

// Forbidden returns the refusal of a request that a token with the scope does not allow for
// another reason. The reason is ASCII without quotes and backslashes.
func Forbidden(reason string) *Error {
	return &Error{Status: http.StatusForbidden, Reason: reason, code: "insufficient_scope"}
}

// Invalid returns the refusal of a token that is not valid. The reason is as in Forbidden.
func Invalid(reason string) *Error {
	return &Error{Status: http.StatusUnauthorized, Reason: reason, code: "invalid_token"}
}

// Unavailable returns the refusal of a token that cannot be checked now.
func Unavailable(reason string) *Error {
	return &Error{Status: http.StatusServiceUnavailable, Reason: reason}
}

// Authorize returns the caller of a request that needs a scope. The error is an *Error.
func (s *Set) Authorize(r *http.Request, scope string, now time.Time) (Identity, error) {
	if s == nil {
		return Identity{Scopes: AllScopes()}, nil
	}
	text, err := bearer(r)
	if err != nil {
		return Identity{}, err
	}
	id, err := s.owner(r.Context(), text, now)
	if err != nil {
		return Identity{}, err
	}
	if !id.Scopes.Has(scope) {
		e := Forbidden(fmt.Sprintf("this needs scope %s; token %s has %s", scope, id.Name, strings.Join(id.Scopes, ", ")))
		e.Scope = scope
		return Identity{}, e
	}
	return id, nil
}

// owner returns the owner of a token.
func (s *Set) owner(ctx context.Context, text string, now time.Time) (Identity, error) {
	id, err := s.find(text, now)
	if err == nil || s.verify == nil || generated(text) {
		return id, err
	}
	if verified, known, failure := s.verify(ctx, text, now); known {
		return verified, failure
	}
	return id, err
}

// bearer returns the token in a request.
func bearer(r *http.Request) (string, error) {
	values := r.Header.Values("Authorization")
	if len(values) > 1 {
		return "", &Error{Status: http.StatusBadRequest, Reason: "the request has several Authorization headers; send one", code: "invalid_request"}
	}
	scheme, text, _ := strings.Cut(strings.Join(values, ""), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "", &Error{Status: http.StatusUnauthorized, Reason: "send Authorization: Bearer TOKEN with a token of http-tokens or http-token-file"}
	}
	return strings.TrimSpace(text), nil
}

// find returns the owner of a token. It compares the hash with that of every token, so the time
// says nothing about which of them is similar.
func (s *Set) find(text string, now time.Time) (Identity, error) {
	hash := HashOf(text)
	if s.admin != nil && subtle.ConstantTimeCompare(s.admin[:], hash[:]) == 1 {
		return Identity{Name: AdminName, Scopes: AllScopes()}, nil
	}
	var found *Token
	for i := range s.tokens {
		if t := &s.tokens[i]; subtle.ConstantTimeCompare(t.Hash[:], hash[:]) == 1 {
			found = t
		}
	}
	switch {
	case found == nil || !generated(text):
		return Identity{}, &Error{Status: http.StatusUnauthorized, Reason: "the token is unknown: it was removed, or it belongs to another installation", code: "invalid_token"}
	case found.Expired(now):
		return Identity{}, &Error{Status: http.StatusUnauthorized, Reason: fmt.Sprintf("the token %s has expired at %s", found.Name, found.Expires.UTC().Format(time.RFC3339)), code: "invalid_token"}
	}
	return Identity{Name: found.Name, Tenant: found.Tenant, Scopes: found.Scopes}, nil
}
