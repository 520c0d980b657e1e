package natsapi

import (
	"encoding/json"
	"strings"

	"github.com/belfryio/belfry/internal/endpoint"
	"github.com/belfryio/belfry/schemas"
)

// A request names its caller in two places.
//
// The member "by" of the request is the caller's own claim. It is not verified.
//
// The header Nats-Request-Info is set by the server on a request that comes through a
// service import: the importing account's name, and with share: true also the user's.
// On a request within one account the server leaves the header as the client sent it,
// so the router trusts it only together with a reply subject of a service import. That
// is safe because of two properties of nats-server 2.15.2, which the tests of this package
// check: client.processServiceImport replaces the client's value of that header, and
// client.processInboundClientMsg refuses a client's message with a reply subject of the
// server's own form. A leaf node bound to Belfry's own account is not a client and could
// forge both, so it must be as trusted as a node.
const (
	requestInfoHeader = "Nats-Request-Info"
	// importReply begins the reply subject of a request through a service import.
	importReply = "_R_."
	// gatewayReply, a cluster's token and a server's token come before the reply
	// subject of a request that came through a gateway.
	gatewayReply = "_GR_."
)

// callerOf returns the account and user of a request, without the caller's own claim.
func callerOf(req *endpoint.Request) schemas.Caller {
	if !imported(req.Reply) {
		return schemas.Caller{}
	}
	return requestInfo(req.Header)
}

// imported reports whether a service import made the reply subject.
func imported(reply string) bool {
	if strings.HasPrefix(reply, gatewayReply) {
		if tokens := strings.SplitN(reply, ".", 4); len(tokens) == 4 {
			reply = tokens[3]
		}
	}
	return strings.HasPrefix(reply, importReply)
}

// requestInfo reads the server's header. It ignores duplicates, which the server never
// sends.
func requestInfo(hdr map[string][]string) schemas.Caller {
	values := hdr[requestInfoHeader]
	var info struct {
		Account string `json:"acc"`
		User    string `json:"user"`
	}
	if len(values) != 1 || json.Unmarshal([]byte(values[0]), &info) != nil || info.Account == "" {
		return schemas.Caller{}
	}
	return schemas.Caller{Account: info.Account, User: info.User}
}
