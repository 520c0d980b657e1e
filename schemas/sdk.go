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

// Event decodes the body to an event of sdk-go.
func (b Body) Event() (*event.Event, error) {
	hdr := b.header(1)
	if b.Mode == ModeStructured {
		hdr[headerContentType] = []string{contentStructured}
	}
	p, err := parse(hdr, b.Data)
	if err != nil {
		return nil, err
	}
	return p.event()
}

// event converts p to an event of sdk-go. It sets the fields directly: the setters would
// repeat the checks of conforms.
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

// asText reports whether JSON can hold the data according to its content type, as a string
// or a JSON value. Other data needs base64.
func (p *parsed) asText() bool {
	if !utf8.Valid(p.data) {
		return false
	}
	return !isJSON(p.text("datacontenttype")) || isValue(p.data)
}

// exactURL returns a URL whose String is exactly s. url.Parse may escape characters, which
// would change the source and thereby the timer id.
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
		n := len(u.Scheme) // s keeps upper case; u.Scheme does not
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

// EncodeEvent encodes an event as a NATS message in the given content mode, according to
// the CloudEvents NATS protocol binding: in binary mode every attribute, including
// datacontenttype, becomes a percent-encoded ce- header. Its errors have CodeInvalidEvent.
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
			hdr[headerPrefix+name] = []string{EncodeHeader(v)}
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
		hdr[headerPrefix+name] = []string{EncodeHeader(ExtensionText(v))}
	}
	return hdr, e.Data(), nil
}

// ExtensionText returns the canonical text of an extension attribute's value, the String
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
