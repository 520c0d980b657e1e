package schemas

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
)

// This file encodes events of sdk-go as adds in structured mode.
//
// The encoder writes the JSON and collects the attributes in one pass. The attributes then go
// through the rules of ParseAdd, so the JSON is not parsed again. An encoded event is equal to
// that of sdk-go's encoder: it has the same attributes, the same bytes of JSON data and the same
// hash. The encoder leaves events that it does not know to sdk-go's: of version 0.3, with field
// errors, or with an extension that is not a string, boolean or integer.

// Setting sets an extension attribute of an event that is encoded as an add, or removes it.
type Setting struct {
	Name, Value string
	Remove      bool
}

// EncodeAdd encodes an event with further settings as an add in structured mode. It does not
// change the event. A setting replaces the event's own attribute; each name has at most one. The
// message needs no header. EncodeAdd checks what all events have in common; ParseAdd has the
// other rules. Its errors have CodeInvalidEvent, or CodeTooLarge for too many attributes.
func EncodeAdd(e *event.Event, set []Setting) ([]byte, error) {
	enc, err := encodeAdd(e, set)
	if err != nil {
		return nil, err
	}
	defer enc.release()
	if enc.p.raw == nil {
		return withSettings(e, set)
	}
	return enc.p.raw, nil
}

// EncodeValidAdd is EncodeAdd with the rules of ParseAdd: it returns what ParseAdd returns for the
// encoded event, except Spec.Hash, or its error. The body's data is the message.
func EncodeValidAdd(e *event.Event, set []Setting, addedMs int64, lim Limits) (Body, Spec, error) {
	enc, err := encodeAdd(e, set)
	if err != nil {
		return Body{}, Spec{}, err
	}
	defer enc.release()
	if enc.p.raw == nil {
		data, err := withSettings(e, set)
		if err != nil {
			return Body{}, Spec{}, err
		}
		return ParseAdd(nil, data, addedMs, lim)
	}
	lim = lim.withDefaults()
	if err := checkPayload(nil, enc.p.raw, lim); err != nil {
		return Body{}, Spec{}, err
	}
	return enc.p.accept(addedMs, lim)
}

// withSettings encodes an event with sdk-go.
func withSettings(e *event.Event, set []Setting) ([]byte, error) {
	if e.Context == nil {
		_, _, err := EncodeEvent(*e, ModeStructured)
		return nil, err
	}
	with := e.Clone()
	Apply(&with, set)
	_, data, err := EncodeEvent(with, ModeStructured)
	return data, err
}

// Apply applies settings to an event.
func Apply(e *event.Event, set []Setting) {
	for _, s := range set {
		if s.Remove {
			e.SetExtension(s.Name, nil)
		} else {
			e.SetExtension(s.Name, s.Value)
		}
	}
}

// addEncoder encodes one event. Its buffers are used again.
type addEncoder struct {
	p          parsed
	extensions []attribute
}

var addEncoders = sync.Pool{New: func() any {
	return &addEncoder{p: parsed{attrs: make([]attribute, 0, 24)}, extensions: make([]attribute, 0, 16)}
}}

// release makes the encoder available. It keeps no reference to an event.
func (enc *addEncoder) release() {
	clear(enc.p.attrs)
	clear(enc.extensions)
	enc.p, enc.extensions = parsed{attrs: enc.p.attrs[:0]}, enc.extensions[:0]
	addEncoders.Put(enc)
}

// encodeAdd encodes an event and checks it like parse. The caller must release the encoder that
// it returns without an error. If the event must be encoded by sdk-go, p.raw is nil.
func encodeAdd(e *event.Event, set []Setting) (*addEncoder, error) {
	enc := addEncoders.Get().(*addEncoder)
	c, known := e.Context.(*event.EventContextV1)
	if !known || c == nil || len(e.FieldErrors) > 0 || !enc.gather(c.Extensions, set) {
		return enc, nil
	}
	if err := enc.encode(e, c); err != nil {
		enc.release()
		return nil, err
	}
	return enc, nil
}

// gather collects the extensions and the settings by name. It returns false if only sdk-go can
// encode them.
func (enc *addEncoder) gather(extensions map[string]any, set []Setting) bool {
	for _, s := range set {
		if !s.Remove {
			enc.extensions = append(enc.extensions, attribute{name: s.Name, text: s.Value})
		}
	}
	for name, v := range extensions {
		if name == "data" {
			return false
		}
		if slices.ContainsFunc(set, func(s Setting) bool { return s.Name == name }) {
			continue
		}
		a := attribute{name: name}
		switch v := v.(type) {
		case string:
			a.text = v
		case bool:
			a.text, a.kind = strconv.FormatBool(v), kindBoolean
		case int32:
			a.text, a.kind = strconv.FormatInt(int64(v), 10), kindInteger
		default:
			return false
		}
		enc.extensions = append(enc.extensions, a)
	}
	slices.SortFunc(enc.extensions, func(a, b attribute) int { return strings.Compare(a.name, b.name) })
	return true
}

func (enc *addEncoder) encode(e *event.Event, c *event.EventContextV1) error {
	p := &enc.p
	p.mode = ModeStructured
	size := 256 + len(e.DataEncoded) + len(e.DataEncoded)/8
	if e.DataBase64 {
		size = 256 + base64.StdEncoding.EncodedLen(len(e.DataEncoded))
	}
	for i := range enc.extensions {
		size += len(enc.extensions[i].name) + len(enc.extensions[i].text) + 6
	}
	out := append(make([]byte, 0, size), '{')
	member := func(name, text string) (err error) {
		out, err = p.member(out, attribute{name: name, text: text})
		return err
	}
	err := member("specversion", event.CloudEventsVersionV1)
	if err == nil {
		err = member("id", c.ID)
	}
	if err == nil {
		err = member("source", sourceText(&c.Source))
	}
	if err == nil {
		err = member("type", c.Type)
	}
	if err == nil && c.Subject != nil {
		err = member("subject", *c.Subject)
	}
	if err == nil && c.DataContentType != nil {
		err = member("datacontenttype", *c.DataContentType)
	}
	if err == nil && c.DataSchema != nil {
		err = member("dataschema", c.DataSchema.String())
	}
	if err == nil && c.Time != nil {
		err = member("time", c.Time.String())
	}
	if err == nil && e.DataEncoded != nil {
		out, err = p.appendData(out, e)
	}
	for i := 0; i < len(enc.extensions) && err == nil; i++ {
		out, err = p.member(out, enc.extensions[i])
	}
	if err != nil {
		return err
	}
	out = append(out, '}')
	p.raw = out
	if err := p.conforms(); err != nil {
		return err
	}
	for i := range p.attrs {
		if a := &p.attrs[i]; a.blank() {
			return emptyAttribute(a.name)
		}
	}
	return nil
}

// sourceText returns a source as text. Most sources are a path that needs no escapes.
func sourceText(u *types.URIRef) string {
	if u.RawPath == "" && u.Scheme == "" && u.Host == "" && u.Opaque == "" && u.User == nil && u.RawQuery == "" && !u.ForceQuery && u.Fragment == "" && plainPath(u.Path) {
		return u.Path
	}
	return u.String()
}

// member adds an attribute, and appends it as a member of the event.
func (p *parsed) member(out []byte, a attribute) ([]byte, error) {
	if err := checkName(a.name); err != nil {
		return nil, err
	}
	if err := p.add(a); err != nil {
		return nil, err
	}
	if len(p.attrs) > 1 {
		out = append(out, ',')
	}
	out = append(append(append(out, '"'), a.name...), '"', ':')
	if a.kind != kindString {
		return append(out, a.text...), nil
	}
	return appendText(out, a.name, a.text)
}

// appendText appends a text as a JSON string. about is the member's name.
func appendText(out []byte, about, s string) ([]byte, error) {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c >= ' ' && c <= '~' && c != '"' && c != '\\' {
			continue
		}
		if !utf8.ValidString(s) {
			return nil, badEvent("%s is not UTF-8", about)
		}
		b, err := json.Marshal(s)
		if err != nil {
			return nil, badEvent("%s: %w", about, err)
		}
		return append(out, b...), nil
	}
	return append(append(append(out, '"'), s...), '"'), nil
}

// appendData appends the data of an event like sdk-go: as base64, a JSON value, or a string.
func (p *parsed) appendData(out []byte, e *event.Event) ([]byte, error) {
	if e.DataBase64 {
		p.data, p.hasData, p.base64 = e.DataEncoded, true, true
		out = append(out, `,"data_base64":"`...)
		return append(base64.StdEncoding.AppendEncode(out, e.DataEncoded), '"'), nil
	}
	out = append(out, `,"data":`...)
	start := len(out)
	if jsonOfSDK(p.text("datacontenttype")) {
		if !utf8.Valid(e.DataEncoded) || !isValue(e.DataEncoded) {
			return nil, badEvent("the data is not JSON, but datacontenttype %.80q is", p.text("datacontenttype"))
		}
		out = appendCompact(out, e.DataEncoded)
	} else {
		var err error
		if out, err = appendText(out, "data", string(e.DataEncoded)); err != nil {
			return nil, err
		}
	}
	return out, p.setJSONData(out[start:], nil)
}

// jsonOfSDK reports whether sdk-go writes data of the content type as a JSON value. It is
// stricter than isJSON.
func jsonOfSDK(contentType string) bool {
	if contentType == contentJSON {
		return true
	}
	media, _, _ := strings.Cut(contentType, ";")
	switch strings.TrimSpace(strings.ToLower(media)) {
	case "", event.ApplicationJSON, event.TextJSON, event.ApplicationCloudEventsJSON, event.ApplicationCloudEventsBatchJSON:
		return true
	}
	return false
}

// appendCompact appends a valid JSON value as encoding/json compacts it: without white space, and
// with escapes for <, >, &, U+2028 and U+2029. The hash of an event depends on these bytes.
func appendCompact(out, value []byte) []byte {
	start, inString := 0, false
	for i := 0; i < len(value); i++ {
		c := value[i]
		if c > '\\' && c != 0xe2 {
			continue
		}
		switch {
		case c == '"':
			inString = !inString
		case c == '\\':
			i++ // the escaped character
		case !inString && (c == ' ' || c == '\t' || c == '\n' || c == '\r'):
			out = append(out, value[start:i]...)
			start = i + 1
		case c == '<' || c == '>' || c == '&':
			out = append(append(out, value[start:i]...), '\\', 'u', '0', '0', jsonHex[c>>4], jsonHex[c&15])
			start = i + 1
		case c == 0xe2 && value[i+1] == 0x80 && value[i+2]&^1 == 0xa8: // U+2028 and U+2029
			out = append(append(out, value[start:i]...), '\\', 'u', '2', '0', '2', jsonHex[value[i+2]&15])
			i += 2
			start = i + 1
		}
	}
	return append(out, value[start:]...)
}

const jsonHex = "0123456789abcdef"
