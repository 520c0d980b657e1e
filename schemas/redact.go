package schemas

import (
	"net/url"
	"strings"
)

// hidden replaces secrets.
const hidden = "xxxxx"

// blanksAndQuotes encodes what would hide the end of a URL in a text. It is made once, because the table
// of a new one takes 6 kB.
var blanksAndQuotes = strings.NewReplacer(" ", "%20", `"`, "%22")

// RedactURL returns a URL or callback for display, logs and errors: without user name,
// password, query and fragment, each of which may be a credential. It is the only
// function for that purpose. It returns a nats: subject unchanged. Blanks and quotes are
// percent-encoded, so the end of the URL can be found in a text.
func RedactURL(s string) string {
	if strings.HasPrefix(s, NATSScheme) && !strings.HasPrefix(s, NATSScheme+"//") {
		return s
	}
	u, err := url.Parse(s)
	if err != nil {
		return redactText(s)
	}
	if u.User == nil && u.RawQuery == "" && u.Fragment == "" {
		if strings.ContainsRune(u.Opaque, '@') {
			return redactText(s)
		}
		return blanksAndQuotes.Replace(s)
	}
	if u.User != nil {
		u.User = url.User(hidden) // a user alone may be a token
	}
	if u.RawQuery != "" {
		u.RawQuery = hidden
	}
	u.Fragment, u.RawFragment = "", ""
	return u.String()
}

// RedactURLs applies RedactURL to each URL of a list separated by commas.
func RedactURLs(list string) string {
	parts := strings.Split(list, ",")
	for i, p := range parts {
		parts[i] = RedactURL(strings.TrimSpace(p))
	}
	return strings.Join(parts, ",")
}

// redactText redacts text that is not a URL: it removes everything from // (or the
// beginning) to the last @, and everything from the first ? or # after that.
func redactText(s string) string {
	begin := strings.Index(s, "//")
	if begin < 0 {
		begin = 0
	} else {
		begin += len("//")
	}
	if at := strings.LastIndexByte(s, '@'); at >= begin {
		s = s[:begin] + hidden + s[at:]
	}
	if i := strings.IndexAny(s, "?#"); i >= 0 {
		s = s[:i+1] + hidden
	}
	return s
}
