package schemas

import "strings"

// Inboxes lists prefixes of inbox subjects in addition to those of IsInbox. The prefix
// REPLIES.shop means all subjects REPLIES.shop.>.
type Inboxes []string

// CheckInboxPrefix returns an error of CodeConfig for a prefix that Inboxes must not have.
func CheckInboxPrefix(prefix string) error {
	bad := func(reason string) error {
		return Errorf(CodeConfig, "inbox prefix %.80q: %s", prefix, reason)
	}
	first, _, _ := strings.Cut(prefix, ".")
	switch {
	case prefix == "" || strings.HasPrefix(prefix, ".") || strings.HasSuffix(prefix, ".") || strings.Contains(prefix, ".."):
		return bad("a token is empty")
	case strings.ContainsAny(prefix, " \t\r\n*>"):
		return bad("it must have no wildcard and no white space")
	case first[0] == '$' || first == ownToken:
		return bad("subjects below " + first + " are not inboxes: an answer there could be stored, or be processed as a request")
	}
	return nil
}

// Allow reports whether an answer may be published to the reply subject of a request.
//
// The sender of a request chooses its reply subject, and NATS checks no permission on it.
// With a reply subject such as $KV.clock.clock.0, the answer would be a write to Belfry's
// own bucket that the sender is not permitted to make.
func (p Inboxes) Allow(reply string) bool {
	if IsInbox(reply) {
		return true
	}
	for _, prefix := range p {
		if rest, ok := strings.CutPrefix(reply, prefix); ok && strings.HasPrefix(rest, ".") {
			return true
		}
	}
	return false
}

// gatewayTokens is the number of tokens with which a gateway prefixes a reply subject:
// _GR_, the cluster and the server.
const gatewayTokens = 3

// IsInbox reports whether a subject is an inbox, on which a requester waits for answers.
// The first token of an inbox begins with _INBOX (the default of clients), or is _R_
// (service imports), or is _GR_, with which a gateway prefixes another inbox.
func IsInbox(subject string) bool {
	first, rest, ok := strings.Cut(subject, ".")
	if !ok || rest == "" {
		return false
	}
	switch {
	case strings.HasPrefix(first, "_INBOX"), first == "_R_":
		return true
	case first != "_GR_":
		return false
	}
	parts := strings.SplitN(subject, ".", gatewayTokens+1)
	return len(parts) > gatewayTokens && !strings.HasPrefix(parts[gatewayTokens], "_GR_") && IsInbox(parts[gatewayTokens])
}
