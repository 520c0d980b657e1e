package schemas

import (
	"bytes"
	"strings"
)

// Names of the headers and attributes with a trace context of W3C Trace Context.
const (
	TraceParent = "traceparent"
	TraceState  = "tracestate"
)

// maxTraceState bounds a tracestate that Belfry uses, in bytes. W3C Trace Context asks for at
// least 512.
const maxTraceState = 512

// TraceContext is the trace context that an event carries. The zero value is none.
type TraceContext struct {
	// Parent is a valid traceparent, or "".
	Parent string
	// State is the tracestate beside it, or "".
	State string
}

// TraceOf returns the trace context of a message with an event: the one of the plain header
// traceparent or, if there is none or it is invalid, that of the event's attribute, as in the
// Distributed Tracing extension of CloudEvents. The header comes first because it is the later
// one: the attribute names the span with which the event began.
func TraceOf(header map[string][]string, data []byte) TraceContext {
	return traceOf(func(name string) string {
		if v := header[name]; len(v) > 0 {
			return v[0]
		}
		for key, v := range header {
			if len(key) == len(name) && len(v) > 0 && strings.EqualFold(key, name) {
				return v[0]
			}
		}
		return ""
	}, data)
}

// Trace returns the trace context of a stored event; see TraceOf.
func (b Body) Trace() TraceContext {
	return traceOf(func(name string) string {
		for i := range b.Headers {
			if h := &b.Headers[i]; len(h.Name) == len(name) && strings.EqualFold(h.Name, name) {
				return h.Value
			}
		}
		return ""
	}, b.Data)
}

func traceOf(header func(name string) string, data []byte) TraceContext {
	if t := traceContext(header(TraceParent), header(TraceState)); t.Parent != "" {
		return t
	}
	if header(headerSpecVersion) != "" { // binary mode
		return traceContext(decodeHeader(header(headerPrefix+TraceParent)), decodeHeader(header(headerPrefix+TraceState)))
	}
	if !bytes.Contains(data, []byte(`"`+TraceParent+`"`)) {
		return TraceContext{}
	}
	var parent, state string
	err := eachMember(bytes.Trim(data, jsonSpace), func(name, value []byte) error {
		if value[0] != '"' {
			return nil
		}
		switch string(name) {
		case TraceParent:
			parent, _ = unquote(value)
		case TraceState:
			state, _ = unquote(value)
		}
		return nil
	})
	if err != nil {
		return TraceContext{} // the parser rejects the event
	}
	return traceContext(parent, state)
}

// traceContext returns a trace context, the zero value if parent is invalid.
func traceContext(parent, state string) TraceContext {
	if !ValidTraceParent(parent) {
		return TraceContext{}
	}
	if len(state) > maxTraceState {
		state = ""
	}
	return TraceContext{Parent: parent, State: state}
}

// traceParentLen is the length of a traceparent of version 00.
const traceParentLen = len("00-") + 32 + len("-") + 16 + len("-00")

// ValidTraceParent reports whether a text is a traceparent of W3C Trace Context: version 00, or the
// beginning that later versions share with it.
func ValidTraceParent(s string) bool {
	if len(s) < traceParentLen || s[2] != '-' || s[35] != '-' || s[52] != '-' || !lowerHex(s[:2]) || !lowerHex(s[3:35]) || !lowerHex(s[36:52]) || !lowerHex(s[53:55]) {
		return false
	}
	switch version := s[:2]; {
	case version == "ff":
		return false
	case version == "00" && len(s) != traceParentLen, len(s) > traceParentLen && s[traceParentLen] != '-':
		return false
	}
	return strings.Trim(s[3:35], "0") != "" && strings.Trim(s[36:52], "0") != ""
}

func lowerHex(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// WithTrace returns the body with the plain header traceparent, for an event that carries no trace
// context. The fired event has the header, too, and the event itself does not change. If the header
// would not fit a message of maxMessage bytes, the result is the unchanged body.
func (b Body) WithTrace(parent string, maxMessage int) Body {
	headers := make([]HeaderField, 0, len(b.Headers)+1)
	for i := range b.Headers {
		if !strings.EqualFold(b.Headers[i].Name, TraceParent) { // an invalid one
			headers = append(headers, b.Headers[i])
		}
	}
	headers = append(headers, HeaderField{Name: TraceParent, Value: parent})
	with := b
	with.Headers = headers
	if with.CheckSize(maxMessage) != nil {
		return b
	}
	return with
}
