package schemas

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// NATSScheme begins a callback over NATS request/reply.
const NATSScheme = "nats:"

// reservedSubjects are not for callbacks: a timer must not be a way to publish
// where its author may not. All that begins with $ ($JS, $KV, $SYS, $SRV …) is
// reserved besides.
var reservedSubjects = []string{"timers", "_INBOX", "_R_", "_GR_"}

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

func validPort(s string) bool {
	if s == "" {
		return true
	}
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
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
		if strings.ContainsAny(t, "*>") {
			return bad("a callback's subject has no wildcards")
		}
		if strings.ContainsFunc(t, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }) {
			return bad("the subject has a blank")
		}
	}
	if first := tokens[0]; first[0] == '$' || slices.Contains(reservedSubjects, first) {
		return bad("subjects below %s are not for callbacks", first)
	}
	return nil
}

// RedactURL replaces the password, or a lone user name, of a callback's URL.
func RedactURL(s string) string {
	u, err := url.Parse(s)
	if err != nil {
		return redactText(s)
	}
	if u.User == nil {
		return s
	}
	if _, has := u.User.Password(); has {
		return u.Redacted()
	}
	u.User = url.User("xxxxx")
	return u.String()
}

// redactText is for what is no URL: it takes out all from // to the last @, be
// that in the path.
func redactText(s string) string {
	at := strings.LastIndexByte(s, '@')
	begin := strings.Index(s, "//")
	if begin < 0 || at < begin {
		return s
	}
	return s[:begin+2] + "xxxxx" + s[at:]
}
