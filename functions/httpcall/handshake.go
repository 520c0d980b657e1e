package httpcall

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/schemas"
)

// This file has the validation handshake of the CloudEvents specification "HTTP 1.1 Web Hooks for
// Event Delivery" 1.0.2, section 4: before the first event, the sender asks the target whether it
// wants events of this origin, and at what rate.

// The headers of the handshake.
const (
	headerRequestOrigin = "Webhook-Request-Origin"
	headerRequestRate   = "Webhook-Request-Rate"
	headerAllowedOrigin = "Webhook-Allowed-Origin"
	headerAllowedRate   = "Webhook-Allowed-Rate"
)

// maxOriginBytes bounds the name of an origin, like that of a host.
const maxOriginBytes = 253

// CheckOrigin returns an error, of schemas.CodeConfig, for a text that is neither a DNS name nor
// empty.
func CheckOrigin(name string) error {
	if name == "" {
		return nil
	}
	valid := len(name) <= maxOriginBytes
	for label := range strings.SplitSeq(name, ".") {
		valid = valid && label != "" && len(label) <= 63 && strings.Trim(label, "-") == label &&
			strings.Trim(strings.ToLower(label), "abcdefghijklmnopqrstuvwxyz0123456789-_") == ""
	}
	if !valid {
		return schemas.Errorf(schemas.CodeConfig, "webhook-origin %.80q must be a DNS name such as belfry.example.com", name)
	}
	return nil
}

// Ask asks the target of a callback whether it allows calls of Config.Origin: one OPTIONS request
// to the callback's URL, with the configured headers and the credentials of the URL. perMinute is the
// rate that Belfry asks for; 0 for none. If the outcome is a success, the target allows the calls, and
// allowed is the number of calls a minute; 0 if it names no limit. The status decides as for a callback.
// An answer of 2xx without a valid permission, 400 and 405 are permanent failures.
func (i *Invoker) Ask(ctx context.Context, r callback.Request, perMinute int) (allowed int, out callback.Outcome) {
	i.begin()
	defer i.end()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, bad := i.plain(ctx, http.MethodOptions, r.Target, nil)
	if bad != nil {
		return 0, *bad
	}
	if perMinute > 0 {
		req.Header.Set(headerRequestRate, strconv.Itoa(perMinute))
	}
	asked := "webhook handshake: asked " + schemas.RedactURL(r.Target) + " by OPTIONS to allow the origin " + i.cfg.Origin
	if perMinute > 0 {
		asked += " at " + strconv.Itoa(perMinute) + " calls a minute"
	}
	resp, excerpt, bad := i.send(ctx, cancel, req, r) //nolint:bodyclose // send closes it
	if bad != nil {
		if bad.Reason == callback.ReasonTimeout {
			bad.Err = "no answer within " + r.Timeout.String()
		}
		bad.Err = callback.Clip(asked+": "+bad.Err, schemas.MaxOutcomeError)
		if bad.Cause != "" {
			bad.Cause = "webhook handshake by OPTIONS: " + bad.Cause
		}
		return 0, *bad
	}
	out = i.outcomeOf(resp, excerpt, r)
	switch {
	case out.Success:
		var why string
		if allowed, why = permission(resp.Header, i.cfg.Origin); why != "" {
			refused := callback.Permanent(callback.ReasonWebhookRefused, asked+"; it does not: the answer has status "+strconv.Itoa(resp.StatusCode)+" and "+why)
			refused.Code, refused.Response = out.Code, out.Response
			return 0, refused
		}
		return allowed, out
	case resp.StatusCode == http.StatusMethodNotAllowed, resp.StatusCode == http.StatusBadRequest: // the CloudEvents SDK for Go answers 400
		out.Retryable, out.Reason = false, callback.ReasonWebhookRefused
	}
	out.Err = callback.Clip(asked+"; it answered "+out.Err, schemas.MaxOutcomeError)
	return 0, out
}

// permission reads the permission in the headers of an answer. why says what is missing; it is empty
// for a permission.
func permission(h http.Header, origin string) (perMinute int, why string) {
	switch got := strings.TrimSpace(h.Get(headerAllowedOrigin)); {
	case got == "":
		return 0, "no WebHook-Allowed-Origin"
	case got != "*" && !strings.EqualFold(got, origin):
		return 0, "WebHook-Allowed-Origin: " + strconv.Quote(callback.Clip(got, 80))
	}
	got := strings.TrimSpace(h.Get(headerAllowedRate))
	if got == "" || got == "*" {
		return 0, ""
	}
	n, err := strconv.ParseInt(got, 10, 64)
	if tooMany := err != nil && strings.Trim(got, "0123456789") == ""; tooMany {
		n = 1 << 31 // more digits than fit are still a number
	} else if err != nil || n < 1 {
		return 0, "WebHook-Allowed-Rate: " + strconv.Quote(callback.Clip(got, 80)) + ", which is neither a positive number nor *"
	}
	return int(min(n, 1<<31-1)), ""
}
