package jet

import (
	"math"
	"strings"
	"time"
)

// A message of a consumer has its metadata in the subject to acknowledge it on. Servers
// write one of two forms (NATS ADR-15):
//
//	$JS.ACK.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<time>.<pending>
//	$JS.ACK.<domain>.<account>.<stream>.<consumer>.<deliveries>.<stream seq>.<consumer seq>.<time>.<pending>[.<token>]
const ackReplyPrefix = "$JS.ACK."

// deliveryMeta is the metadata of a delivered message.
type deliveryMeta struct {
	deliveries  uint64
	sequence    uint64 // in the stream
	consumerSeq uint64
	time        time.Time // when the stream's leader stored the message
}

// parseAckReply reads the metadata from a reply subject. It reports false unless the
// message is of the consumer that from names, as "<stream>.<consumer>.". It does what
// nats.Msg.Metadata does, without its allocations: every add and every revision of a
// record pass here.
func parseAckReply(reply, from string) (deliveryMeta, bool) {
	rest, ok := strings.CutPrefix(reply, ackReplyPrefix)
	if !ok {
		return deliveryMeta{}, false
	}
	fields, ok := strings.CutPrefix(rest, from)
	if !ok {
		_, rest, _ = strings.Cut(rest, ".") // the domain
		_, rest, _ = strings.Cut(rest, ".") // the account's hash
		if fields, ok = strings.CutPrefix(rest, from); !ok {
			return deliveryMeta{}, false
		}
	}
	var n [5]uint64
	for i := range n {
		token, left, more := strings.Cut(fields, ".")
		if n[i], ok = parseNumber(token); !ok || !more && i < len(n)-1 {
			return deliveryMeta{}, false
		}
		fields = left
	}
	return deliveryMeta{deliveries: n[0], sequence: n[1], consumerSeq: n[2], time: time.Unix(0, int64(n[3]))}, true
}

// parseNumber reads a decimal number from 0 to math.MaxInt64.
func parseNumber(s string) (uint64, bool) {
	const most = 19 // digits of math.MaxInt64
	if s == "" || len(s) > most {
		return 0, false
	}
	var n uint64 // 19 digits fit
	for i := range len(s) {
		d := s[i] - '0'
		if d > 9 {
			return 0, false
		}
		n = n*10 + uint64(d)
	}
	return n, n <= math.MaxInt64
}
