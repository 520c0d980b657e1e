package schemas

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"
	"github.com/nats-io/nats.go"
)

// Event decodes the body.
func (b Body) Event() (*event.Event, error) {
	hdr := b.header(1)
	if b.Mode == ModeStructured {
		hdr[headerContentType] = []string{contentStructured}
	}
	p, err := take(hdr, b.Data)
	if err != nil {
		return nil, err
	}
	return p.event()
}

// event makes sdk-go's type of what was parsed. It sets the fields itself, since
// the setters check anew what conforms has checked.
func (p *parsed) event() (*event.Event, error) {
	c := &event.EventContextV1{}
	for i := range p.attrs {
		a := &p.attrs[i]
		if a.kind == kindNull || a.blank() {
			continue
		}
		switch a.name {
		case "specversion":
		case "id":
			c.ID = a.text
		case "source":
			c.Source.URL = exactURL(a.text)
		case "type":
			c.Type = a.text
		case "subject":
			c.Subject = &a.text
		case "dataschema":
			c.DataSchema = &types.URI{URL: exactURL(strings.TrimSpace(a.text))}
		case "datacontenttype":
			c.DataContentType = &a.text
		case "time":
			t, err := parseTimestamp(a.text)
			if err != nil {
				return nil, badEvent("time %.80q: %w", a.text, err)
			}
			c.Time = &types.Timestamp{Time: t}
		default:
			if c.Extensions == nil {
				c.Extensions = make(map[string]any, len(p.attrs))
			}
			c.Extensions[a.name] = a.value()
		}
	}
	e := event.Event{Context: c}
	if p.hasData {
		if c.DataContentType == nil && p.mode == ModeStructured && !p.base64 {
			json := contentJSON
			c.DataContentType = &json
		}
		e.DataEncoded, e.DataBase64 = p.data, p.base64 || p.mode == ModeBinary && !p.asText()
	}
	return &e, nil
}

// asText tells whether JSON can hold the data as what its content type says;
// base64 can hold any.
func (p *parsed) asText() bool {
	if !utf8.Valid(p.data) {
		return false
	}
	return !isJSON(p.text("datacontenttype")) || isValue(p.data)
}

// exactURL keeps a URI as it is written: its String is s. Go's parser escapes
// what is not strict, and a timer would change its identity.
func exactURL(s string) url.URL {
	if plainPath(s) {
		return url.URL{Path: s}
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
	case u.String() == s:
		return *u
	case u.IsAbs():
		n := len(u.Scheme) // as it is written, in upper case too
		return url.URL{Scheme: s[:n], Opaque: s[n+1:]}
	}
	return url.URL{Opaque: s}
}

func (a attribute) value() any {
	switch a.kind {
	case kindBoolean:
		return a.text == "true"
	case kindInteger:
		if n, err := strconv.ParseInt(a.text, 10, 32); err == nil {
			return int32(n)
		}
	}
	return a.text
}

// EncodeEvent encodes an event for publishing in the given mode, as the
// CloudEvents NATS protocol binding says: in binary mode every attribute,
// datacontenttype too, is a percent-encoded ce- header.
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
	extensions := e.Extensions()
	hdr := make(nats.Header, len(extensions)+12)
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
	set("datacontenttype", e.DataContentType())
	if !e.Time().IsZero() {
		set("time", types.FormatTime(e.Time()))
	}
	for name, v := range extensions {
		hdr[headerPrefix+name] = []string{encodeHeader(ExtensionText(v))}
	}
	return hdr, e.Data(), nil
}

// ExtensionText is the canonical text of an extension's value: its String
// encoding of the CloudEvents type system.
func ExtensionText(v any) string {
	if s, ok := v.(string); ok {
		return s
	}
	if s, err := types.Format(v); err == nil {
		return s
	}
	return fmt.Sprint(v)
}
