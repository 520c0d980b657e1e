package router

import (
	"encoding/json"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

// A request states its caller in two places.
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
func callerOf(req *nats.Msg) schemas.Caller {
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
func requestInfo(hdr nats.Header) schemas.Caller {
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

// claimed adds the caller's own claim.
func claimed(from schemas.Caller, by string) (schemas.Caller, error) {
	if by == "" {
		return from, nil
	}
	if err := schemas.CheckBy(by); err != nil {
		return from, err
	}
	from.By = by
	return from, nil
}

// auditMessages are constant, so that logs can be searched for them.
var auditMessages = map[schemas.OperationKind]string{
	schemas.OperationCancel: "timer cancelled", schemas.OperationReschedule: "timer rescheduled", schemas.OperationReplay: "timer replayed",
}

// audit logs the last operation of a record's history.
func (r *Router) audit(id schemas.TimerID, rec *schemas.Record) {
	if len(rec.History) == 0 {
		return
	}
	op := rec.History[len(rec.History)-1]
	e := r.o.Log.Info().Stringer("timer", id).Stringer("op", op.Kind).Str("service", rec.Service)
	for _, f := range [...]struct{ name, value string }{{"by", op.By}, {"account", op.Account}, {"user", op.User}} {
		if f.value != "" {
			e = e.Str(f.name, f.value)
		}
	}
	e.Msg(auditMessages[op.Kind])
}
