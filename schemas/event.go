package schemas

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
)

// contentStructured begins the content type of structured mode.
const (
	contentStructured = "application/cloudevents+json"
	contentBatch      = "application/cloudevents-batch"
	headerContentType = "content-type"
	headerPrefix      = "ce-"
)

// attribute is one context attribute: its canonical text, and its JSON type.
type attribute struct {
	text string
	kind byte // 's'tring, 'b'oolean, 'i'nteger
}

// parsed is an event taken apart.
type parsed struct {
	mode    Mode
	attrs   map[string]attribute
	data    []byte // decoded: the bytes that the event carries
	hasData bool
	base64  bool
	headers []HeaderField // to keep
	raw     []byte        // the message's data, trimmed in structured mode
}

func badEvent(format string, args ...any) *Error { return Errorf(CodeInvalidEvent, format, args...) }

// take reads an event off a NATS message, as the CloudEvents NATS protocol
// binding 1.0.2 says, section 3, and more leniently where its clients differ:
// header names in any case, values percent-encoded or not, and a structured event
// without a content type.
func take(hdr nats.Header, data []byte) (parsed, error) {
	var contentType string
	binaryMode := false
	for name, values := range hdr {
		switch {
		case len(values) == 0:
		case strings.EqualFold(name, headerContentType):
			contentType = strings.ToLower(values[0])
		case strings.EqualFold(name, "ce-specversion"):
			binaryMode = true
		}
	}
	switch {
	case strings.HasPrefix(contentType, contentBatch):
		return parsed{}, badEvent("a batch of events is not accepted; publish each event by itself")
	case strings.HasPrefix(contentType, contentStructured):
		return takeStructured(hdr, data)
	case strings.HasPrefix(contentType, "application/cloudevents"):
		return parsed{}, badEvent("content type %.80q is not accepted; the event format is JSON (%s)", contentType, contentStructured)
	case binaryMode:
		return takeBinary(hdr, data)
	}
	return takeStructured(hdr, data)
}

func takeStructured(hdr nats.Header, data []byte) (parsed, error) {
	p := parsed{mode: ModeStructured, attrs: map[string]attribute{}, raw: bytes.TrimSpace(data)}
	if len(p.raw) == 0 {
		return p, badEvent("the message is empty; publish a CloudEvent")
	}
	if p.raw[0] != '{' {
		return p, badEvent("the message is neither a JSON object nor has it a ce-specversion header")
	}
	if !utf8.Valid(p.raw) {
		return p, badEvent("the JSON is not UTF-8")
	}
	var rawData, rawBase64 json.RawMessage
	err := eachMember(p.raw, func(name string, v json.RawMessage) error {
		switch name {
		case "data":
			rawData = v
			return nil
		case "data_base64":
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

// eachMember calls fn for the members of a JSON object. A repeated name is an
// error, because readers differ on which one counts.
func eachMember(raw []byte, fn func(name string, v json.RawMessage) error) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	malformed := func(err error) error {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return badEvent("malformed JSON at byte %d: %s", syntax.Offset, syntax.Error())
		}
		return badEvent("malformed JSON: %v", err)
	}
	if _, err := dec.Token(); err != nil {
		return malformed(err)
	}
	seen := make(map[string]struct{}, 16)
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return malformed(err)
		}
		name, _ := tok.(string) // a member's name is always a string
		if _, again := seen[name]; again {
			return badEvent("member %.80q stands twice in the event", name)
		}
		seen[name] = struct{}{}
		if len(seen) > MaxAttributes {
			return badEvent("more than %d attributes", MaxAttributes)
		}
		var v json.RawMessage
		if err := dec.Decode(&v); err != nil {
			return malformed(err)
		}
		if err := fn(name, v); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return malformed(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return badEvent("there is more after the JSON object")
	}
	return nil
}

func (p *parsed) addJSON(name string, v json.RawMessage) error {
	if err := checkName(name); err != nil {
		return err
	}
	switch v[0] {
	case '"':
		var s string
		if err := json.Unmarshal(v, &s); err != nil {
			return badEvent("attribute %s: %v", name, err)
		}
		return p.add(name, attribute{text: s, kind: 's'})
	case 't', 'f':
		return p.add(name, attribute{text: string(v), kind: 'b'})
	case 'n':
		return nil // null is absent, JSON format section 2.2
	case '{', '[':
		return badEvent("attribute %s is not a string, boolean or integer", name)
	}
	n, err := strconv.ParseInt(string(v), 10, 32)
	if err != nil {
		return badEvent("attribute %s: %.40s is not a 32-bit integer, the only number that CloudEvents has", name, v)
	}
	return p.add(name, attribute{text: strconv.FormatInt(n, 10), kind: 'i'})
}

func (p *parsed) add(name string, a attribute) error {
	if len(a.text) > MaxAttributeLength {
		return badEvent("attribute %s has %d bytes; the limit is %d", name, len(a.text), MaxAttributeLength)
	}
	for _, r := range a.text {
		if r < 0x20 || r >= 0x7f && r <= 0x9f || r == utf8.RuneError || r >= 0xfdd0 && r <= 0xfdef || r&0xfffe == 0xfffe {
			return badEvent("attribute %s holds the character %U, which CloudEvents strings may not have", name, r)
		}
	}
	p.attrs[name] = a
	return nil
}

func checkName(name string) error {
	if name == "" || len(name) > MaxNameLength {
		return badEvent("attribute name %.80q must have 1 to %d characters", name, MaxNameLength)
	}
	for i := 0; i < len(name); i++ {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return badEvent("attribute name %.80q must be lower-case letters and digits", name)
		}
	}
	return nil
}

func (p *parsed) setJSONData(rawData, rawBase64 json.RawMessage) error {
	switch {
	case rawData != nil && rawBase64 != nil:
		return badEvent("the event has both data and data_base64")
	case rawBase64 != nil:
		var s string
		if err := json.Unmarshal(rawBase64, &s); err != nil {
			return badEvent("data_base64 is not a string")
		}
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			return badEvent("data_base64: %v", err)
		}
		p.data, p.hasData, p.base64 = b, true, true
	case rawData != nil:
		p.data, p.hasData = rawData, true
		if rawData[0] == '"' && !isJSON(p.attrs["datacontenttype"].text) {
			var s string
			if err := json.Unmarshal(rawData, &s); err != nil {
				return badEvent("data: %v", err)
			}
			p.data = []byte(s)
		}
	}
	return nil
}

// isJSON tells whether data of the content type is JSON; none means it is.
func isJSON(contentType string) bool {
	media, _, _ := strings.Cut(strings.ToLower(contentType), ";")
	media = strings.TrimSpace(media)
	return media == "" || strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json")
}

func takeBinary(hdr nats.Header, data []byte) (parsed, error) {
	p := parsed{mode: ModeBinary, attrs: map[string]attribute{}, raw: data, data: data, hasData: len(data) > 0}
	contentType := ""
	for name, values := range hdr {
		lower := strings.ToLower(name)
		attr, isAttr := strings.CutPrefix(lower, headerPrefix)
		if !isAttr {
			if lower == headerContentType && len(values) > 0 {
				contentType = values[0]
			}
			continue
		}
		if len(values) != 1 {
			return p, badEvent("header %s stands %d times", name, len(values))
		}
		if _, again := p.attrs[attr]; again {
			return p, badEvent("header ce-%s stands twice", attr)
		}
		if err := checkName(attr); err != nil {
			return p, err
		}
		if attr == "data" {
			return p, badEvent("header %s is not an attribute; the data is the message's", name)
		}
		v := decodeHeader(values[0])
		if !utf8.ValidString(v) {
			return p, badEvent("header %s is not UTF-8", name)
		}
		if err := p.add(attr, attribute{text: v, kind: 's'}); err != nil {
			return p, err
		}
	}
	// The binding has content-type; sdk-go's JetStream sender writes ce-datacontenttype.
	if own, ok := p.attrs["datacontenttype"]; ok && contentType != "" && own.text != contentType {
		return p, badEvent("headers content-type %.80q and ce-datacontenttype %.80q differ", contentType, own.text)
	}
	if contentType != "" {
		if err := p.add("datacontenttype", attribute{text: contentType, kind: 's'}); err != nil {
			return p, err
		}
	}
	if len(p.attrs) > MaxAttributes {
		return p, badEvent("more than %d attributes", MaxAttributes)
	}
	p.keepHeaders(hdr)
	return p, nil
}

// keepHeaders remembers the headers that leave with the event: in binary mode
// its attributes, in both modes the user's own. NATS's and Belfry's are theirs.
func (p *parsed) keepHeaders(hdr nats.Header) {
	for name, values := range hdr {
		lower := strings.ToLower(name)
		switch {
		case strings.HasPrefix(lower, "nats-"), strings.HasPrefix(lower, "belfry-"), lower == "status", lower == "description":
			continue
		case p.mode == ModeStructured && (lower == headerContentType || strings.HasPrefix(lower, headerPrefix)):
			continue
		}
		for _, v := range values {
			if !strings.ContainsAny(v, "\r\n") && !strings.ContainsAny(name, "\r\n: ") && name != "" {
				p.headers = append(p.headers, HeaderField{Name: name, Value: v})
			}
		}
	}
	sort.Slice(p.headers, func(i, j int) bool { return p.headers[i].Name < p.headers[j].Name })
}

// required checks the attributes that every CloudEvent has.
func (p *parsed) required() error {
	for _, name := range [...]string{"specversion", "id", "source", "type"} {
		if p.attrs[name].text == "" {
			return badEvent("attribute %s is missing or empty", name)
		}
		if v := p.attrs[name].text; strings.TrimSpace(v) != v {
			// Encoders, sdk-go's among them, trim: the event would change its identity.
			return badEvent("attribute %s %.80q begins or ends with white space", name, v)
		}
		if p.attrs[name].kind != 's' {
			return badEvent("attribute %s is not a string", name)
		}
	}
	if v := p.attrs["specversion"].text; v != "1.0" {
		return badEvent("specversion %.20q is not served; 1.0 is", v)
	}
	if _, err := url.Parse(p.attrs["source"].text); err != nil {
		return badEvent("source %.80q is not a URI reference", p.attrs["source"].text)
	}
	if t, ok := p.attrs["time"]; ok {
		if _, err := ParseTime(t.text); err != nil {
			return badEvent("time %.80q is not an RFC 3339 time", t.text)
		}
	}
	return nil
}

// hash is over all that makes the timer this one: a repeated add has the same
// hash in either mode. time and the trace may be new with each try.
func (p *parsed) hash() (h [16]byte) {
	names := make([]string, 0, len(p.attrs))
	for name := range p.attrs {
		switch name {
		case "time", "traceparent", "tracestate", AttrScheduled, AttrFired, AttrRun, AttrAttempt, AttrErrorCode, AttrErrorData:
		case "datacontenttype":
			if p.attrs[name].text != "application/json" {
				names = append(names, name)
			}
		default:
			names = append(names, name)
		}
	}
	sort.Strings(names)
	buf := make([]byte, 0, 512)
	for _, name := range names {
		buf = appendString(appendString(buf, name), p.attrs[name].text)
	}
	buf = binary.AppendUvarint(buf, uint64(len(names)))
	d := sha256.New()
	d.Write(buf)
	d.Write(p.data)
	copy(h[:], d.Sum(buf[:0]))
	return h
}
