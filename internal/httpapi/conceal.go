package httpapi

import (
	"net/url"
	"regexp"
	"strings"

	"github.com/belfryio/belfry/schemas"
)

// conceal removes the parts of a timer that need scope payload, if the caller does not have it: the
// answers of the callee, because they may repeat the data of the event, and everything in the URL of
// an HTTP callback except scheme and host, because the path of a webhook is often its only
// credential. Of a path below the base-url of a service nothing is left.
func (q *request) conceal(info *schemas.TimerInfo) {
	if q.id.Payload {
		return
	}
	hide := q.concealText
	if u, err := url.Parse(info.Callback); err == nil && info.Callback != "" && !strings.HasPrefix(info.Callback, schemas.NATSScheme) {
		path := u.RequestURI()
		info.Callback = "/…"
		if u.Host != "" {
			info.Callback = u.Scheme + "://" + u.Host
		}
		hide = func(text string) string {
			if path != "/" { // an error may have it within other text
				text = strings.ReplaceAll(text, path, "/…")
			}
			return q.concealText(text)
		}
	}
	// The slices and pointers of an answer are its own.
	if o := info.Outcome; o != nil {
		o.Error, o.Response = hide(o.Error), ""
	}
	for i := range info.LastAttempts {
		a := &info.LastAttempts[i]
		a.Error, a.Response = hide(a.Error), ""
	}
}

// located matches the URLs in a text, which end at a blank or a quote, and paths without a host. Punctuation at
// the end belongs to the text. schemas.RedactURL writes no URL with a blank or a quote.
var located = regexp.MustCompile(`(?i)(https?://[^\s/?"'),;]+)(?:[^\s"]*[^\s"'),;])?|(^|[\s"'(])/[^\s"]*[^\s"'),;]`)

// concealText is conceal for a text about a callback, such as an error: it removes all paths.
func (q *request) concealText(text string) string {
	if q.id.Payload {
		return text
	}
	return located.ReplaceAllString(text, "$1$2/…")
}

// concealOutcome is conceal for the outcome of a run; nil for none.
func (q *request) concealOutcome(o *schemas.OutcomeInfo) {
	if o != nil && !q.id.Payload {
		o.Error, o.Response = q.concealText(o.Error), ""
	}
}

// concealLimit is conceal for the rate that a target allows.
func (q *request) concealLimit(l *schemas.FlowLimitInfo) {
	if l.Target != nil {
		l.Target.URL = q.concealText(l.Target.URL)
	}
}
