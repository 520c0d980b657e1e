package tracing

import (
	"math"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/encoding/protowire"
)

// This file encodes spans as an ExportTraceServiceRequest of OTLP (opentelemetry-proto 1.x,
// collector/trace/v1) in protobuf's binary form. The numbers of the fields never change. The
// generated types bring gRPC into the program, see docs/adr/0025.

// Bits of the field flags, above the bits of the trace context. The first says that the second is
// set, the second that the parent or the linked span is remote.
const (
	flagHasIsRemote = 0x100
	flagIsRemote    = 0x200
)

// encode returns the request with spans, of which all have the same resource and scope.
func encode(spans []sdktrace.ReadOnlySpan) []byte {
	first := spans[0]
	var resource []byte
	for _, kv := range first.Resource().Attributes() {
		resource = appendMessage(resource, 1, encodeAttribute(kv))
	}
	is := first.InstrumentationScope()
	scoped := appendMessage(nil, 1, appendText(appendText(nil, 1, is.Name), 2, is.Version))
	for _, s := range spans {
		scoped = appendMessage(scoped, 2, encodeSpan(s))
	}
	return appendMessage(nil, 1, appendMessage(appendMessage(nil, 1, resource), 2, scoped))
}

func encodeSpan(s sdktrace.ReadOnlySpan) []byte {
	c, parent := s.SpanContext(), s.Parent()
	b := appendIDs(nil, c)
	b = appendText(b, 3, c.TraceState().String())
	if id := parent.SpanID(); parent.IsValid() {
		b = protowire.AppendBytes(protowire.AppendTag(b, 4, protowire.BytesType), id[:])
	}
	b = appendText(b, 5, s.Name())
	b = appendNumber(b, 6, uint64(s.SpanKind())) // the numbers are the same
	b = appendFixed64(b, 7, uint64(s.StartTime().UnixNano()))
	b = appendFixed64(b, 8, uint64(s.EndTime().UnixNano()))
	for _, kv := range s.Attributes() {
		b = appendMessage(b, 9, encodeAttribute(kv))
	}
	b = appendNumber(b, 10, uint64(s.DroppedAttributes()))
	for _, l := range s.Links() {
		b = appendMessage(b, 13, encodeLink(l))
	}
	b = appendNumber(b, 14, uint64(s.DroppedLinks()))
	b = appendMessage(b, 15, encodeStatus(s.Status()))
	return appendFlags(b, 16, c, parent.IsRemote())
}

func encodeLink(l sdktrace.Link) []byte {
	b := appendText(appendIDs(nil, l.SpanContext), 3, l.SpanContext.TraceState().String())
	for _, kv := range l.Attributes {
		b = appendMessage(b, 4, encodeAttribute(kv))
	}
	return appendFlags(b, 6, l.SpanContext, l.SpanContext.IsRemote())
}

func encodeStatus(s sdktrace.Status) []byte {
	b := appendText(nil, 2, s.Description)
	switch s.Code {
	case codes.Ok:
		b = appendNumber(b, 3, 1)
	case codes.Error:
		b = appendNumber(b, 3, 2)
	}
	return b
}

// encodeAttribute encodes a KeyValue. The attributes of this package are texts and integers. Any
// other value is encoded as its text.
func encodeAttribute(kv attribute.KeyValue) []byte {
	var value []byte
	switch kv.Value.Type() {
	case attribute.BOOL:
		value = protowire.AppendVarint(protowire.AppendTag(nil, 2, protowire.VarintType), protowire.EncodeBool(kv.Value.AsBool()))
	case attribute.INT64:
		value = protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), uint64(kv.Value.AsInt64()))
	case attribute.FLOAT64:
		value = appendFixed64(nil, 4, math.Float64bits(kv.Value.AsFloat64()))
	default:
		value = protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), validText(kv.Value.String()))
	}
	return appendMessage(appendText(nil, 1, string(kv.Key)), 2, value)
}

func appendIDs(b []byte, c trace.SpanContext) []byte {
	id, span := c.TraceID(), c.SpanID()
	b = protowire.AppendBytes(protowire.AppendTag(b, 1, protowire.BytesType), id[:])
	return protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), span[:])
}

func appendFlags(b []byte, field protowire.Number, c trace.SpanContext, remote bool) []byte {
	flags := uint32(c.TraceFlags()) | flagHasIsRemote
	if remote {
		flags |= flagIsRemote
	}
	return protowire.AppendFixed32(protowire.AppendTag(b, field, protowire.Fixed32Type), flags)
}

func appendMessage(b []byte, field protowire.Number, message []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), message)
}

// appendText appends a text unless it is empty.
func appendText(b []byte, field protowire.Number, text string) []byte {
	if text == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, field, protowire.BytesType), validText(text))
}

// appendNumber appends a number unless it is 0.
func appendNumber(b []byte, field protowire.Number, n uint64) []byte {
	if n == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

func appendFixed64(b []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, field, protowire.Fixed64Type), n)
}

// rejected returns the number of spans that the receiver says it did not take, in an
// ExportTraceServiceResponse. A malformed response says nothing.
func rejected(response []byte) (spans int64) {
	eachField(response, func(field protowire.Number, value []byte, _ uint64) {
		if field == 1 {
			eachField(value, func(field protowire.Number, _ []byte, n uint64) {
				if field == 1 {
					spans = max(int64(n), 0)
				}
			})
		}
	})
	return spans
}

// eachField calls f for the fields of a message that are bytes or varints.
func eachField(b []byte, f func(field protowire.Number, value []byte, n uint64)) {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return
		}
		b = b[n:]
		size := protowire.ConsumeFieldValue(field, kind, b)
		if size < 0 {
			return
		}
		switch kind {
		case protowire.BytesType:
			value, _ := protowire.ConsumeBytes(b)
			f(field, value, 0)
		case protowire.VarintType:
			v, _ := protowire.ConsumeVarint(b)
			f(field, nil, v)
		}
		b = b[size:]
	}
}
