package router

import (
	"encoding/json"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

// Who makes a request is known from two sources.
//
// The caller's own claim, "by" in the request, proves nothing.
//
// The header Nats-Request-Info is set by the server on a request that comes through a
// service import: the importing account's name, and with share: true also the user's.
// On a request within one account the server leaves the header as the client sent it,
// so it counts only together with a reply subject of a service import. Two properties
// of nats-server 2.15.2 make that sound, and the tests of this package check both:
// client.processServiceImport replaces what the client sent in that header, and
// client.processInboundClientMsg refuses a client's message whose reply subject begins
// as the server's own do. A leaf node that is bound to Belfry's own account is not a
// client and could forge both: it must be as trusted as a node.
const (
	requestInfoHeader = "Nats-Request-Info"
	// importReply begins the reply subject of a request through a service import.
	importReply = "_R_."
	// gatewayReply, a cluster's token and a server's token come before the reply
	// subject of a request that came through a gateway.
	gatewayReply = "_GR_."
)

// callerOf is who made a request, without the caller's own claim.
func callerOf(req *nats.Msg) schemas.Caller {
	if !imported(req.Reply) {
		return schemas.Caller{}
	}
	return requestInfo(req.Header)
}

// imported reports whether a reply subject is that of a service import.
func imported(reply string) bool {
	if strings.HasPrefix(reply, gatewayReply) {
		if tokens := strings.SplitN(reply, ".", 4); len(tokens) == 4 {
			reply = tokens[3]
		}
	}
	return strings.HasPrefix(reply, importReply)
}

// requestInfo reads the server's header. Two of it are not the server's work.
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

// audit logs the operation that a record's history ends with.
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
