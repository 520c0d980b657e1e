package schemas

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
)

// Header names and content types of the CloudEvents NATS protocol binding. Release 1.0.2
// of the binding defines only structured mode; binary mode comes from later drafts.
const (
	contentCloudEvents = "application/cloudevents"
	contentStructured  = contentCloudEvents + "+json"
	contentBatch       = contentCloudEvents + "-batch"
	headerContentType  = "content-type"
	headerPrefix       = "ce-"
	headerSpecVersion  = headerPrefix + "specversion"
)

// attribute is one context attribute with its canonical text and JSON type.
type attribute struct {
	name, text string
	kind       kind
}

// kind is the JSON type of an attribute. In binary mode every attribute is a string.
type kind byte

const (
	kindString kind = iota
	kindBoolean
	kindInteger
	kindNull // absent (JSON format, section 2.2); kept to detect duplicate names
)

// parsed is a decoded event.
type parsed struct {
	mode    Mode
	attrs   []attribute
	data    []byte // the event's data, decoded
	hasData bool
	base64  bool
	headers []HeaderField // see keepHeaders
	recurs  bool          // the event has attributes of a schedule; set by checkAdd
	raw     []byte        // the message's data, in structured mode without white space around it
}

func badEvent(format string, args ...any) *Error { return Errorf(CodeInvalidEvent, format, args...) }

// get returns the attribute of that name. An event has about ten attributes, so a linear
// search is faster than a map.
func (p *parsed) get(name string) (attribute, bool) {
	for i := range p.attrs {
		if p.attrs[i].name == name {
			return p.attrs[i], p.attrs[i].kind != kindNull
		}
	}
	return attribute{}, false
}

func (p *parsed) text(name string) string {
	a, _ := p.get(name)
	return a.text
}

// parse decodes and validates an event in a NATS message. It implements section 3 of the
// CloudEvents NATS protocol binding, and is more lenient where clients differ: it accepts
// header names in any case, values without percent-encoding, and a structured event
// without a content type.
func parse(hdr nats.Header, data []byte) (parsed, error) {
	contentType, err := contentTypeOf(hdr)
	if err != nil {
		return parsed{}, err
	}
	var p parsed
	switch media := mediaOf(contentType); {
	case media == contentCloudEvents || media == contentStructured:
		p, err = parseStructured(hdr, data)
	case strings.HasPrefix(media, contentBatch):
		return parsed{}, badEvent("a batch of events is not accepted; publish each event by itself")
	case strings.HasPrefix(media, contentCloudEvents):
		return parsed{}, badEvent("content type %.80q is not accepted; the event format is JSON (%s)", contentType, contentStructured)
	case hasHeader(hdr, headerSpecVersion):
		p, err = parseBinary(hdr, data, contentType)
	default:
		p, err = parseStructured(hdr, data)
	}
	if err != nil {
		return parsed{}, err
	}
	return p, p.conforms()
}

// mediaOf returns the media type of a content type, in lower case.
func mediaOf(contentType string) string {
	media, _, _ := strings.Cut(strings.ToLower(contentType), ";")
	return strings.TrimSpace(media)
}

// IsEventContent reports whether a receiver reads a message with this content type in structured mode: its data
// is then an event, or a batch of events, whatever the headers say.
func IsEventContent(contentType string) bool {
	return strings.HasPrefix(mediaOf(contentType), contentCloudEvents)
}

// contentTypeOf returns the value of the content-type header, with its name in any case. It
// rejects several different values, because a map of headers has no order.
func contentTypeOf(hdr nats.Header) (string, error) {
	found := ""
	for name, values := range hdr {
		if len(name) != len(headerContentType) || !strings.EqualFold(name, headerContentType) {
			continue
		}
		for _, v := range values {
			if found != "" && v != found {
				return "", badEvent("the message has two content types, %.80q and %.80q", min(found, v), max(found, v))
			}
			found = v
		}
	}
	return found, nil
}

func hasHeader(hdr nats.Header, want string) bool {
	if len(hdr[want]) > 0 {
		return true
	}
	for name, values := range hdr {
		if len(name) == len(want) && len(values) > 0 && strings.EqualFold(name, want) {
			return true
		}
	}
	return false
}

func parseStructured(hdr nats.Header, data []byte) (parsed, error) {
	p := parsed{mode: ModeStructured, attrs: make([]attribute, 0, 16), raw: bytes.Trim(data, jsonSpace)}
	switch {
	case len(p.raw) == 0:
		return p, badEvent("the message is empty; publish a CloudEvent")
	case bytes.HasPrefix(p.raw, []byte(byteOrderMark)):
		return p, badEvent("the JSON begins with a byte order mark; leave it out")
	case p.raw[0] != '{':
		return p, badEvent("the message is not a JSON object and has no %s header", headerSpecVersion)
	case !utf8.Valid(p.raw):
		return p, badEvent("the JSON is not UTF-8")
	}
	var rawData, rawBase64 []byte
	err := eachMember(p.raw, func(name, v []byte) error {
		switch {
		case string(name) == "data" && rawData == nil:
			rawData = v
			return nil
		case string(name) == "data_base64" && rawBase64 == nil:
			rawBase64 = v
			return nil
		}
		return p.addJSON(name, v)
	})
	if err != nil {
		return p, err
	}
	if err := p.setJSONData(rawData, rawBase64); err != nil {
		return p, err
	}
	p.keepHeaders(hdr)
	return p, nil
}

func (p *parsed) addJSON(rawName, v []byte) error {
	name := intern(rawName)
	if name == "data" || name == "data_base64" {
		return badEvent("duplicate member %s", name).About(name)
	}
	if err := checkName(name); err != nil {
		return err
	}
	switch v[0] {
	case '"':
		if bytes.IndexByte(v, '\\') < 0 {
			return p.add(attribute{name: name, text: string(v[1 : len(v)-1])})
		}
		s, ok := unquote(v)
		if !ok {
			return badEvent("attribute %s has half a surrogate pair", name).About(name)
		}
		return p.add(attribute{name: name, text: s})
	case 't', 'f':
		return p.add(attribute{name: name, text: string(v), kind: kindBoolean})
	case 'n':
		return p.add(attribute{name: name, kind: kindNull})
	case '{', '[':
		return badEvent("attribute %s is not a string, boolean or integer", name).About(name)
	}
	n, err := strconv.ParseInt(string(v), 10, 32)
	if err != nil {
		return badEvent("attribute %s: %.40s is not a 32-bit integer, the only number type in CloudEvents", name, v).About(name)
	}
	return p.add(attribute{name: name, text: strconv.FormatInt(n, 10), kind: kindInteger})
}

// add adds an attribute whose name is valid.
func (p *parsed) add(a attribute) error {
	if len(a.text) > MaxAttributeLength {
		return badEvent("attribute %s has %d bytes; the limit is %d", a.name, len(a.text), MaxAttributeLength).About(a.name)
	}
	if len(p.attrs) == maxFiredAttributes {
		return tooManyAttributes()
	}
	for i := range p.attrs {
		if p.attrs[i].name == a.name {
			// JSON parsers differ in which of two equal names they use.
			return badEvent("duplicate attribute %s", a.name).About(a.name)
		}
	}
	for _, r := range a.text {
		if r < 0x20 || r >= 0x7f && r <= 0x9f || r >= 0xfdd0 && r <= 0xfdef || r&0xfffe == 0xfffe {
			return badEvent("attribute %s has the character %U, which CloudEvents strings must not have", a.name, r).About(a.name)
		}
	}
	p.attrs = append(p.attrs, a)
	return nil
}

// maxFiredAttributes bounds the attributes of a fired event: those of the add and at most
// eight of Belfry's.
const maxFiredAttributes = MaxAttributes + 8

func tooManyAttributes() error {
	return Errorf(CodeTooLarge, "the event has more than %d attributes, the limit: put some of them into the data", MaxAttributes)
}

func checkName(name string) error {
	if name == "" || len(name) > MaxNameLength {
		return badEvent("attribute name %.80q must have 1 to %d characters", name, MaxNameLength)
	}
	for i := 0; i < len(name); i++ {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return badEvent("attribute name %.80q must be lower-case letters and digits", name).About(name)
		}
	}
	return nil
}

func (p *parsed) setJSONData(rawData, rawBase64 []byte) error {
	if string(rawBase64) == "null" {
		rawBase64 = nil
	}
	switch {
	case rawData != nil && rawBase64 != nil:
		return badEvent("the event has both data and data_base64")
	case rawBase64 != nil:
		if rawBase64[0] != '"' {
			return badEvent("data_base64 is not a string")
		}
		s, ok := unquote(rawBase64)
		if !ok {
			return badEvent("data_base64 has half a surrogate pair")
		}
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			return badEvent("data_base64: %w", err)
		}
		p.data, p.hasData, p.base64 = b, true, true
	case rawData != nil:
		p.data, p.hasData = rawData, true
		if rawData[0] == '"' && !isJSON(p.text("datacontenttype")) {
			s, ok := unquote(rawData)
			if !ok {
				return badEvent("data has half a surrogate pair")
			}
			p.data = []byte(s)
		}
	}
	return nil
}

// isJSON reports whether data of the content type is JSON. An empty content type means JSON.
func isJSON(contentType string) bool {
	media, _, _ := strings.Cut(strings.ToLower(contentType), ";")
	media = strings.TrimSpace(media)
	return media == "" || strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json")
}

func parseBinary(hdr nats.Header, data []byte, contentType string) (parsed, error) {
	p := parsed{mode: ModeBinary, attrs: make([]attribute, 0, 16), raw: data, data: data, hasData: len(data) > 0}
	for header, values := range hdr {
		name, ok := strings.CutPrefix(strings.ToLower(header), headerPrefix)
		if !ok {
			continue
		}
		if err := checkName(name); err != nil {
			return p, err
		}
		if len(values) != 1 {
			return p, badEvent("header %s%s has %d values; it must have one", headerPrefix, name, len(values)).About(name)
		}
		if name == "data" {
			return p, badEvent("header %sdata is not allowed; send the data as the message's data", headerPrefix)
		}
		v := decodeHeader(values[0])
		if !utf8.ValidString(v) {
			return p, badEvent("header %s%s is not UTF-8", headerPrefix, name).About(name)
		}
		if err := p.add(attribute{name: name, text: v}); err != nil {
			return p, err
		}
	}
	// The binding and sdk-go use ce-datacontenttype; other clients use content-type, as in HTTP.
	if own, has := p.get("datacontenttype"); contentType != "" && !has {
		if !utf8.ValidString(contentType) {
			return p, badEvent("header %s is not UTF-8", headerContentType)
		}
		if err := p.add(attribute{name: "datacontenttype", text: contentType}); err != nil {
			return p, err
		}
	} else if contentType != "" && own.text != contentType {
		return p, badEvent("headers %s %.80q and %sdatacontenttype %.80q differ", headerContentType, contentType, headerPrefix, own.text)
	}
	p.keepHeaders(hdr)
	return p, nil
}

// ReservedHeader reports whether a header name, in any case, is reserved: for NATS, for
// Belfry, or because clients interpret it as the server's status. Belfry never sends a
// user's header with a reserved name.
func ReservedHeader(name string) bool {
	lower := strings.ToLower(name)
	return strings.HasPrefix(lower, "nats-") || strings.HasPrefix(lower, "belfry-") || lower == "status" || lower == "description"
}

// keepHeaders stores the headers to send with the event: in binary mode its attributes, in
// both modes the user's own headers. It omits reserved headers, and headers with a line
// break, which could inject another header.
func (p *parsed) keepHeaders(hdr nats.Header) {
	if len(hdr) == 0 {
		return
	}
	p.headers = make([]HeaderField, 0, len(hdr))
	for name, values := range hdr {
		lower := strings.ToLower(name)
		switch {
		case ReservedHeader(lower):
			continue
		case p.mode == ModeStructured && (lower == headerContentType || strings.HasPrefix(lower, headerPrefix)):
			continue
		case name == "" || strings.ContainsAny(name, "\r\n: "):
			continue
		}
		for _, v := range values {
			if !strings.ContainsAny(v, "\r\n") {
				p.headers = append(p.headers, HeaderField{Name: name, Value: v})
			}
		}
	}
	slices.SortStableFunc(p.headers, func(a, b HeaderField) int { return strings.Compare(a.Name, b.Name) })
}
