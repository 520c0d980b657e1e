package httpcall

import (
	"bytes"
	"net/http"
	"strings"

	"github.com/belfryio/belfry/schemas"
)

// MaxHeaderValueBytes bounds the value of a configured header.
const MaxHeaderValueBytes = 8 << 10

// ownHeaders are set by Belfry or by HTTP itself.
var ownHeaders = map[string]bool{
	"Host": true, "Content-Type": true, "Content-Length": true, "Content-Encoding": true, "Transfer-Encoding": true, "Connection": true,
	"Keep-Alive": true, "Te": true, "Trailer": true, "Upgrade": true, "Expect": true, "Idempotency-Key": true,
	"Traceparent": true, "Tracestate": true, "Baggage": true,
}

// CheckHeader reports why a header cannot be configured. The error does not hold the
// value, and is of schemas.CodeConfig.
func CheckHeader(name, value string) error {
	bad := func(format string, args ...any) error { return schemas.Errorf(schemas.CodeConfig, format, args...) }
	canonical := http.CanonicalHeaderKey(name)
	switch {
	case name == "" || strings.ContainsFunc(name, func(r rune) bool { return !tokenRune(r) }):
		return bad("%.80q is not the name of an HTTP header", name)
	case name != canonical:
		return bad("header %s must be written %s", name, canonical)
	case ownHeaders[name] || strings.HasPrefix(name, "Ce-") || strings.HasPrefix(name, "Webhook-"):
		return bad("header %s is set by Belfry and cannot be configured", name)
	case name == "X-Idempotency-Key": // http.Transport would repeat calls; see headerKey
		return bad("header %s cannot be configured: each call has a key of its own, in Idempotency-Key", name)
	case value == "":
		return bad("header %s has no value", name)
	case len(value) > MaxHeaderValueBytes:
		return bad("the value of header %s has %d bytes; the limit is %d", name, len(value), MaxHeaderValueBytes)
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r >= 0x7f }):
		return bad("the value of header %s has a character that is not printable ASCII", name)
	}
	return nil
}

// tokenRune reports whether a header name may hold r (RFC 9110, section 5.6.2).
func tokenRune(r rune) bool {
	return r > ' ' && r < 0x7f && !strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
}

// minSecretText is the minimum length of a secret that is removed from answers. Shorter texts
// occur in answers by chance.
const minSecretText = 6

// secretsOf returns the texts of a header's value that must not be shown: the whole value, and
// the part after a scheme such as Bearer.
func secretsOf(value string) []string {
	var out []string
	if _, credential, ok := strings.Cut(value, " "); ok && len(credential) >= minSecretText {
		return append(out, credential)
	}
	if len(value) >= minSecretText {
		out = append(out, value)
	}
	return out
}

// scrub replaces secrets in an answer.
func scrub(b []byte, secrets []string) []byte {
	for _, secret := range secrets {
		if len(secret) >= minSecretText {
			b = bytes.ReplaceAll(b, []byte(secret), []byte("(hidden)"))
		}
	}
	return b
}
