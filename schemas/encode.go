package schemas

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
)

// Message encodes the body as it is published when due: the user's event plus
// timerscheduled, timerfired, timerrun and timerattempt. In structured mode the
// user's bytes are kept and Belfry's members follow them.
func (b Body) Message(f Fired) (nats.Header, []byte) {
	return b.with(f, "", "")
}

// DeadMessage is Message with timererrorcode and timererrordata besides.
func (b Body) DeadMessage(f Fired, errorCode, errorData string) (nats.Header, []byte) {
	return b.with(f, errorCode, errorData)
}

func (b Body) with(f Fired, errorCode, errorData string) (nats.Header, []byte) {
	hdr := make(nats.Header, len(b.Headers)+8)
	for _, h := range b.Headers {
		hdr[h.Name] = append(hdr[h.Name], h.Value)
	}
	run, attempt := strconv.FormatUint(uint64(f.Run), 10), strconv.FormatUint(uint64(f.Attempt), 10)
	if b.Mode == ModeBinary {
		hdr["ce-"+AttrScheduled] = []string{FormatTime(f.ScheduledMs)}
		hdr["ce-"+AttrFired] = []string{FormatTime(f.FiredMs)}
		hdr["ce-"+AttrRun] = []string{run}
		hdr["ce-"+AttrAttempt] = []string{attempt}
		if errorCode != "" {
			hdr["ce-"+AttrErrorCode] = []string{encodeHeader(errorCode)}
			hdr["ce-"+AttrErrorData] = []string{encodeHeader(cleanText(errorData))}
		}
		return hdr, b.Data
	}
	hdr[headerContentType] = []string{contentStructured}
	end := bytes.LastIndexByte(b.Data, '}')
	if end < 0 {
		return hdr, b.Data // never stored: ParseAdd takes objects alone
	}
	out := make([]byte, 0, len(b.Data)+160+len(errorData))
	out = append(out, b.Data[:end]...)
	out = append(out, `,"`+AttrScheduled+`":"`...)
	out = append(out, FormatTime(f.ScheduledMs)...)
	out = append(out, `","`+AttrFired+`":"`...)
	out = append(out, FormatTime(f.FiredMs)...)
	out = append(out, `","`+AttrRun+`":`...)
	out = append(out, run...)
	out = append(out, `,"`+AttrAttempt+`":`...)
	out = append(out, attempt...)
	if errorCode != "" {
		out = appendMember(out, AttrErrorCode, errorCode)
		out = appendMember(out, AttrErrorData, cleanText(errorData))
	}
	return hdr, append(out, '}')
}

func appendMember(dst []byte, name, value string) []byte {
	v, err := json.Marshal(value)
	if err != nil { // a string always encodes
		v = []byte(`""`)
	}
	dst = append(dst, `,"`+name+`":`...)
	return append(dst, v...)
}

// cleanText makes any text a CloudEvents string: valid UTF-8, no control characters.
func cleanText(s string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 || r >= 0x7f && r <= 0x9f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(clip(s, MaxAttributeLength-4), "?"))
}

// StripFired takes a dead letter, or a fired message, back to the body of the
// add: without what Belfry added. Replay needs it.
func StripFired(hdr nats.Header, data []byte) (Body, error) {
	p, err := take(hdr, data)
	if err != nil {
		return Body{}, err
	}
	b := Body{Mode: p.mode, Data: p.raw}
	for _, h := range p.headers {
		name, isAttr := strings.CutPrefix(strings.ToLower(h.Name), headerPrefix)
		if isAttr && isOutput(name) {
			continue
		}
		b.Headers = append(b.Headers, h)
	}
	if p.mode == ModeBinary {
		return b, nil
	}
	if own := cutOwn(p.raw); own != nil {
		b.Data = own
		return b, nil
	}
	// Somebody encoded the event anew: take the members one by one.
	b.Data = make([]byte, 0, len(p.raw))
	sep := byte('{')
	err = eachMember(p.raw, func(name string, v json.RawMessage) error {
		if isOutput(name) {
			return nil
		}
		key, err := json.Marshal(name)
		if err != nil {
			return badEvent("member %.80q: %v", name, err)
		}
		b.Data = append(append(append(append(b.Data, sep), key...), ':'), v...)
		sep = ','
		return nil
	})
	b.Data = append(b.Data, '}')
	return b, err
}

// cutOwn undoes Message to the byte: Belfry's members follow the user's. It
// returns nil if they do not.
func cutOwn(raw []byte) []byte {
	i := bytes.LastIndex(raw, []byte(`,"`+AttrScheduled+`":"`))
	if i < 0 {
		return nil
	}
	rest := append([]byte{'{'}, raw[i+1:]...)
	errUser := badEvent("a member of the user's")
	err := eachMember(rest, func(name string, _ json.RawMessage) error {
		if !isOutput(name) {
			return errUser
		}
		return nil
	})
	if err != nil {
		return nil
	}
	return append(append(make([]byte, 0, i+1), raw[:i]...), '}')
}

func isOutput(name string) bool {
	for _, a := range outputAttributes {
		if a == name {
			return true
		}
	}
	return false
}

// Event decodes the body.
func (b Body) Event() (*event.Event, error) {
	hdr := make(nats.Header, len(b.Headers)+1)
	for _, h := range b.Headers {
		hdr[h.Name] = append(hdr[h.Name], h.Value)
	}
	if b.Mode == ModeStructured {
		hdr[headerContentType] = []string{contentStructured}
	}
	p, err := take(hdr, b.Data)
	if err != nil {
		return nil, err
	}
	return p.event()
}

// event makes sdk-go's type of what was parsed.
func (p *parsed) event() (*event.Event, error) {
	e := event.New()
	for name, a := range p.attrs {
		switch name {
		case "specversion":
		case "id":
			e.SetID(a.text)
		case "source":
			setSource(&e, a.text)
		case "type":
			e.SetType(a.text)
		case "subject":
			e.SetSubject(a.text)
		case "dataschema":
			e.SetDataSchema(a.text)
		case "datacontenttype":
			e.SetDataContentType(a.text)
		case "time":
			t, err := parseTimestamp(a.text)
			if err != nil {
				return nil, err
			}
			e.SetTime(t)
		default:
			e.SetExtension(name, a.value())
		}
	}
	if p.hasData {
		if e.DataContentType() == "" && p.mode == ModeStructured && !p.base64 {
			e.SetDataContentType("application/json")
		}
		e.DataEncoded, e.DataBase64 = p.data, p.base64
	}
	if err := e.Validate(); err != nil {
		return nil, Errorf(CodeInvalidEvent, "%w", err)
	}
	return &e, nil
}

// setSource keeps the source as it is written: sdk-go would escape what is not a
// strict URI reference, and the timer would change its identity.
func setSource(e *event.Event, source string) {
	e.SetSource(source)
	if c, ok := e.Context.(*event.EventContextV1); ok && e.Source() != source {
		c.Source.URL = url.URL{Opaque: source}
	}
}

func (a attribute) value() any {
	switch a.kind {
	case 'b':
		return a.text == "true"
	case 'i':
		n, err := strconv.ParseInt(a.text, 10, 32)
		if err == nil {
			return int32(n)
		}
	}
	return a.text
}

// EncodeEvent encodes an event for publishing in the given mode, as the
// CloudEvents NATS protocol binding 1.0.2 says.
func EncodeEvent(e event.Event, mode Mode) (nats.Header, []byte, error) {
	if err := e.Validate(); err != nil {
		return nil, nil, Errorf(CodeInvalidEvent, "%w", err)
	}
	if mode == ModeStructured {
		b, err := json.Marshal(e)
		if err != nil {
			return nil, nil, Errorf(CodeInvalidEvent, "%w", err)
		}
		return nats.Header{headerContentType: {contentStructured}}, b, nil
	}
	hdr := nats.Header{}
	set := func(name, v string) {
		if v != "" {
			hdr[headerPrefix+name] = []string{encodeHeader(v)}
		}
	}
	set("specversion", e.SpecVersion())
	set("id", e.ID())
	set("source", e.Source())
	set("type", e.Type())
	set("subject", e.Subject())
	set("dataschema", e.DataSchema())
	if !e.Time().IsZero() {
		set("time", e.Time().UTC().Format("2006-01-02T15:04:05.999999999Z"))
	}
	for name, v := range e.Extensions() {
		set(name, ExtensionText(v))
	}
	if ct := e.DataContentType(); ct != "" {
		hdr[headerContentType] = []string{ct}
	}
	return hdr, e.Data(), nil
}

// ExtensionText is the canonical text of an extension's value.
func ExtensionText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)
	case int32:
		return strconv.FormatInt(int64(v), 10)
	case *url.URL:
		return v.String()
	case interface{ String() string }:
		return v.String()
	}
	return fmt.Sprint(v)
}

const upperHex = "0123456789ABCDEF"

// encodeHeader percent-encodes what the binding says: blanks, quotes, per cent
// signs, and all that is not printable ASCII (section 3.1.3.2 of the HTTP
// binding, which that of NATS follows).
func encodeHeader(s string) string {
	clean := true
	for i := 0; i < len(s); i++ {
		if c := s[i]; c <= ' ' || c == '"' || c == '%' || c > '~' {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c <= ' ' || c == '"' || c == '%' || c > '~' {
			b.WriteByte('%')
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&15])
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

// EncodeHTTPHeader is the percent-encoding of attribute values in HTTP headers.
func EncodeHTTPHeader(s string) string { return encodeHeader(s) }

// decodeHeader undoes percent-encoding where it is well formed, and leaves
// everything else, such as sdk-go's unescaped values, as it is.
func decodeHeader(s string) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	out := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			hi, lo := unhex(s[i+1]), unhex(s[i+2])
			if hi >= 0 && lo >= 0 {
				out = append(out, byte(hi<<4|lo))
				i += 2
				continue
			}
		}
		out = append(out, s[i])
	}
	return string(out)
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
