package schemas

import (
	"strings"

	"github.com/nats-io/nats.go"
)

// Sizes of messages, in bytes. Belfry accepts an add only if JetStream can store every
// message of its timer: the record, the fired event, its retries, and its dead letter.
// sizes_test.go builds the largest message of each kind.
const (
	// MaxHeaderBytes is JetStream's limit of a message's header block, from
	// "NATS/1.0" to the empty line. nats-server keeps its length in 16 bits and
	// refuses a longer block with error 10097, whatever max_payload is.
	MaxHeaderBytes = 1<<16 - 1
	// HeaderReserve is the part of MaxHeaderBytes that Belfry keeps for its own
	// headers and attributes. The largest need is 6,000 bytes on a dead letter, of which
	// 2,800 are HeaderCallback. The remainder is for headers that later versions of Belfry
	// may add to timers stored today.
	HeaderReserve = 6 << 10
	// MaxEventHeaderBytes bounds the headers that Belfry sends with the event: in binary
	// mode its attributes, in both modes the user's own headers.
	MaxEventHeaderBytes = MaxHeaderBytes - HeaderReserve
	// PayloadReserve is the part of a message that Belfry keeps for its own headers and
	// attributes, and for the record's fields, which repeat some of the attributes. A
	// record needs at most 15,600 bytes in addition to its event: 10,100 of fields, 2,200 of
	// history, 2,900 of attempts, and 300 of headers that package store adds. The record of a
	// schedule has at most MaxScheduleBytes of schedule, but no attempts and no result.
	PayloadReserve = 16 << 10
	// headerFrame is the first and the last line of a header block.
	headerFrame = len("NATS/1.0\r\n") + len("\r\n")
	// headerLine is the size of a header line without its name and value.
	headerLine = len(": ") + len("\r\n")
)

// HeaderBytes returns the size of the header block on the wire, 0 without headers.
func HeaderBytes(h nats.Header) int {
	if len(h) == 0 {
		return 0
	}
	n := headerFrame
	for name, values := range h {
		for _, v := range values {
			n += len(name) + len(v) + headerLine
		}
	}
	return n
}

// CheckSize returns an error if Belfry could not store a message of a timer with this
// event. JetStream takes messages of up to maxMessage bytes. The error is of CodeTooLarge
// and names the limit and the actual size.
func (b Body) CheckSize(maxMessage int) error {
	headers := headerFrame
	for _, h := range b.Headers {
		headers += len(h.Name) + len(h.Value) + headerLine
	}
	if headers > MaxEventHeaderBytes {
		advice := "send fewer or shorter headers"
		if b.Mode == ModeBinary {
			advice = "send fewer or shorter attributes and headers, or the event in structured mode, where attributes are not headers"
		}
		return Errorf(CodeTooLarge, "the event's headers have %d bytes; the limit is %d, because JetStream accepts %d and Belfry adds up to %d: %s",
			headers, MaxEventHeaderBytes, MaxHeaderBytes, HeaderReserve, advice)
	}
	if n, limit := b.Size(), maxMessage-PayloadReserve; n > limit {
		return Errorf(CodeTooLarge, "the event has %d bytes; the limit is %d, because JetStream accepts messages of %d and Belfry adds up to %d: send a reference to large data instead",
			n, limit, maxMessage, PayloadReserve)
	}
	return nil
}

// traceHeaders are the attributes that functions also sends as plain headers.
var traceHeaders = [...]string{"traceparent", "tracestate", "baggage"}

// checkRequest returns an error if a callback over NATS cannot carry the event. A request
// is always in binary mode: every attribute becomes a header, percent-encoded, which
// triples bytes that are not printable ASCII. The limit of its headers is JetStream's, so
// that a stream may capture the callback's subject.
func (p *parsed) checkRequest(maxMessage int) error {
	headers := headerFrame
	for i := range p.attrs {
		a := &p.attrs[i]
		headers += len(headerPrefix) + len(a.name) + encodedLen(a.text) + headerLine
		for _, name := range traceHeaders {
			if a.name == name {
				headers += len(name) + len(a.text) + headerLine
			}
		}
	}
	for _, h := range p.headers {
		for _, name := range traceHeaders {
			if strings.EqualFold(h.Name, name) {
				headers += len(h.Name) + len(h.Value) + headerLine
			}
		}
	}
	if headers > MaxEventHeaderBytes {
		return Errorf(CodeTooLarge, "the attributes have %d bytes as headers of a request; the limit is %d for a callback over NATS, because JetStream accepts %d and Belfry adds up to %d: send fewer or shorter attributes, or send the values as data",
			headers, MaxEventHeaderBytes, MaxHeaderBytes, HeaderReserve)
	}
	if n, limit := headers-headerFrame+len(p.data), maxMessage-PayloadReserve; n > limit {
		return Errorf(CodeTooLarge, "the event has %d bytes as a request; the limit is %d for a callback over NATS, because the server accepts messages of %d and Belfry adds up to %d: send a reference to large data instead",
			n, limit, maxMessage, PayloadReserve)
	}
	return nil
}

// encodedLen returns len(EncodeHeader(s)) without encoding.
func encodedLen(s string) int {
	n := len(s)
	for i := 0; i < len(s); i++ {
		if mustEncode(s[i]) {
			n += 2
		}
	}
	return n
}

// validHeaderName reports whether nats.go sends a header with this name. nats.go is
// stricter than NATS, and fails the whole publish if one name is invalid.
func validHeaderName(name string) bool {
	for i := 0; i < len(name); i++ {
		if c := name[i]; c <= ' ' || c > '~' || strings.IndexByte(`"()/,:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return name != ""
}
