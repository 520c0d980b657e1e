package natscall

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/schemas"
)

// A callback's subject may be captured by a JetStream stream. The reply is then a
// PubAck, sent by the server and not by a handler. It is the JSON object of
// nats-server's JSPubAckResponse (server/stream.go, 2.15.2):
//
//	stored    {"stream":"ORDERS","seq":7}                    and domain, duplicate, val, batch, count
//	refused   {"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"ORDERS","seq":0}
//
// A reply counts as a PubAck only if it is an object with these members and no others, of the
// right types, and if it has either both stream and seq, or an error with an err_code in
// JetStream's range. A handler's own JSON, such as {"error":{"code":503,"message":"…"}},
// therefore never counts as one.
//
// The err_code decides the outcome of a refusal (server/errors.json, 2.15.2):
//
//	err_code       code  description                             outcome
//	10023          503   insufficient resources                  retryable
//	10028, 10047   500   insufficient memory, storage            retryable
//	10077          503   maximum messages or bytes exceeded      retryable
//	10077          503   message too large                       permanent
//	10002          400   resource limits exceeded for account    retryable
//	10122          400   account's limit of stream bytes         retryable
//	10158          409   duplicate message id is in process      retryable
//	10167, 10210   429   too many requests                       retryable
//	10008, 10063, 10118, 10163, 10194 and any other 5xx          retryable
//	10054          400   message size exceeds maximum allowed    permanent
//	10097          400   header size exceeds maximum of 64k      permanent
//	10060, 10070, 10071, 10164, 10180, 10193   wrong expected …  permanent
//	10109          400   the stream is sealed                    permanent
//	10165–10192    400   TTL, counter, batch or schedule headers permanent
//	any other 4xx                                                permanent
//
// A full stream may be drained or enlarged, so a later attempt may succeed. A message that
// the stream does not accept is the same at each attempt.

// JetStream's error codes lie in this range (server/errors.json).
const (
	minErrCode = 10000
	maxErrCode = 10999
)

// errCodeStoreFailed is JSStreamStoreFailedF: its text names the cause.
const errCodeStoreFailed = 10077

// textTooLarge is the description of the only cause under errCodeStoreFailed that is
// permanent (ErrMsgTooLarge, server/store.go).
const textTooLarge = "message too large"

// retryable4xx are the refusals with a code below 500 after which a retry may succeed.
var retryable4xx = map[int]bool{
	10002: true, // resource limits exceeded for account
	10122: true, // stream max bytes exceeds account limit
	10124: true, // stream move already in progress
	10158: true, // duplicate message id is in process
	10167: true, // too many requests
	10210: true, // too many atomic publishes in flight
	10226: true, // stream reconfiguration already in progress
}

// pubAck is JetStream's answer to a publish. Pointers distinguish an absent member from a
// zero.
type pubAck struct {
	Error *struct {
		Code        *int    `json:"code"`
		ErrCode     int     `json:"err_code"`
		Description *string `json:"description"`
	} `json:"error"`
	Stream    *string `json:"stream"`
	Seq       *uint64 `json:"seq"`
	Domain    string  `json:"domain"`
	Duplicate bool    `json:"duplicate"`
	Value     string  `json:"val"`
	BatchID   string  `json:"batch"`
	BatchSize uint64  `json:"count"`
}

// maxPubAck bounds the length of a reply that can be a PubAck. The longest real PubAck has a
// stream name of 255 bytes and an error text.
const maxPubAck = 4 << 10

// readPubAck reads a reply as a PubAck; ok is false for every other reply.
func readPubAck(data []byte) (a pubAck, ok bool) {
	if len(data) == 0 || len(data) > maxPubAck || data[0] != '{' {
		return a, false
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if d.Decode(&a) != nil || d.More() {
		return a, false
	}
	switch e := a.Error; {
	case e == nil:
		return a, a.Stream != nil && *a.Stream != "" && a.Seq != nil
	case e.Code == nil || *e.Code < 400 || *e.Code > 599 || e.ErrCode < minErrCode || e.ErrCode > maxErrCode:
		return a, false
	}
	return a, true
}

// pubAckOutcome returns the outcome of a PubAck; ok is false if the reply is not a PubAck.
func pubAckOutcome(m *nats.Msg, subject string) (out callback.Outcome, ok bool) {
	a, ok := readPubAck(m.Data)
	if !ok {
		return out, false
	}
	excerpt := callback.Excerpt(m.Data)
	stream := ""
	if a.Stream != nil {
		stream = *a.Stream
	}
	if a.Error == nil {
		if *a.Seq > 0 {
			return callback.Outcome{Success: true, Response: excerpt}, true
		}
		out = callback.Retry(callback.ReasonStreamRefused, fmt.Sprintf("stream %.100s, which captures %s, acknowledged without a sequence: nothing was stored", stream, subject))
		out.Response = excerpt
		return out, true
	}
	description := ""
	if a.Error.Description != nil {
		description = *a.Error.Description
	}
	outcome := callback.Retry
	if permanentRefusal(*a.Error.Code, a.Error.ErrCode, description) {
		outcome = callback.Permanent
	}
	out = outcome(callback.ReasonStreamRefused, fmt.Sprintf("stream %.100s, which captures %s, refused the message: %s (JetStream error %d)",
		stream, subject, callback.Clip(description, schemas.MaxOutcomeError/2), a.Error.ErrCode))
	out.Code, out.Response = int32(*a.Error.Code), excerpt
	return out, true
}

// permanentRefusal reports whether the stream will refuse the same message again; see the
// table above.
func permanentRefusal(code, errCode int, description string) bool {
	if errCode == errCodeStoreFailed {
		return description == textTooLarge
	}
	return code < 500 && !retryable4xx[errCode]
}
