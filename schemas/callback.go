package schemas

import (
	"net/url"
	"strings"
	"unicode"
)

// NATSScheme begins a callback over NATS request/reply.
const NATSScheme = "nats:"

// reservedSubjects are not for callbacks: a timer must not be a way to publish
// where its author may not.
var reservedSubjects = []string{"timers", "$JS", "$KV", "$SYS", "$SRV", "$O", "$MQTT", "_INBOX", "_R_", "_GR_"}

// CheckCallback reports what is wrong with a timercallback.
func CheckCallback(s string) error {
	bad := func(format string, args ...any) error { return Errorf(CodeInvalidAttribute, format, args...) }
	if subject, ok := strings.CutPrefix(s, NATSScheme); ok {
		return checkSubject(subject)
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return bad("not a URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return bad("must be https://…, http://… or nats:<subject>")
	case u.Hostname() == "":
		return bad("the URL has no host")
	case u.Opaque != "":
		return bad("the URL has no // before its host")
	case u.Fragment != "":
		return bad("a URL to call has no #fragment")
	}
	return nil
}

func checkSubject(s string) error {
	bad := func(format string, args ...any) error { return Errorf(CodeInvalidAttribute, format, args...) }
	if s == "" {
		return bad("nats: needs a subject")
	}
	tokens := strings.Split(s, ".")
	for _, t := range tokens {
		if t == "" {
			return bad("the subject has an empty token")
		}
		if t == "*" || t == ">" {
			return bad("a callback's subject has no wildcards")
		}
		if strings.ContainsFunc(t, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
			return bad("the subject has a blank")
		}
	}
	for _, r := range reservedSubjects {
		if tokens[0] == r {
			return bad("subjects below %s are not for callbacks", r)
		}
	}
	return nil
}

// RedactURL replaces the password, or a lone user name, of a callback's URL.
func RedactURL(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.User == nil {
		return s
	}
	if _, has := u.User.Password(); has {
		return u.Redacted()
	}
	u.User = url.User("xxxxx")
	return u.String()
}
