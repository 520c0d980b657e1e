package schemas

import "strings"

// Inboxes are further prefixes of subjects on which requesters wait for answers,
// besides those that IsInbox knows: REPLIES.shop stands for REPLIES.shop.>.
type Inboxes []string

// CheckInboxPrefix reports why a prefix cannot be one of Inboxes.
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
		return bad("subjects below " + first + " are not inboxes: an answer there could be stored, or be taken for a request")
	}
	return nil
}

// Allow reports whether an answer may be published to the reply subject of a request.
//
// Whoever sends a request chooses its reply subject, and NATS checks no permission on
// it. An answer goes only where nothing but a requester listens: a reply subject such as
// $KV.clock.clock.0 would make Belfry write to its own bucket for somebody who may not.
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

// gatewayTokens precede the requester's own reply subject where a gateway has routed a
// request: _GR_, the cluster and the server.
const gatewayTokens = 3

// IsInbox reports whether a subject is one on which a requester waits for answers: its
// first token begins with _INBOX, which is what clients choose, or is _R_, which a
// service import makes, or is _GR_, which a gateway puts before another inbox.
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
