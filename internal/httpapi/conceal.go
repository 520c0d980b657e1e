package httpapi

import (
	"net/url"
	"strings"

	"github.com/belfryio/belfry/schemas"
)

// conceal removes from a timer what the caller may not see without scope payload: the answers of
// the callee, which may repeat the data of the event, and of an HTTP callback all but its scheme
// and host, because the path of a webhook is often its only credential.
func (q *request) conceal(info *schemas.TimerInfo) {
	if q.id.Payload {
		return
	}
	hide := func(text string) string { return text }
	if u, err := url.Parse(info.Callback); err == nil && u.Host != "" {
		whole, host, path := info.Callback, u.Scheme+"://"+u.Host, u.RequestURI()
		info.Callback = host
		hide = func(text string) string {
			text = strings.ReplaceAll(text, whole, host)
			if path != "/" {
				text = strings.ReplaceAll(text, path, "/…")
			}
			return text
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
