package schemas

import (
	"mime"
	"net/url"
	"strings"
	"time"
)

// conforms checks what CloudEvents 1.0 asks of its context attributes. It is
// asked of an add and of what fired alike: what one accepts the other must. What
// former versions accepted as well is refused in an add alone, by refuse.
func (p *parsed) conforms() error {
	for _, name := range [...]string{"specversion", "id", "source", "type"} {
		a, _ := p.get(name)
		switch {
		case a.text == "":
			return badEvent("attribute %s is missing or empty", name)
		case a.kind != kindString:
			return badEvent("attribute %s is not a string", name)
		case strings.TrimSpace(a.text) != a.text:
			// Encoders, sdk-go's among them, trim: the event would change its identity.
			return badEvent("attribute %s %.80q begins or ends with white space", name, a.text)
		}
	}
	if v := p.text("specversion"); v != "1.0" {
		return badEvent("specversion %.20q is not served; 1.0 is", v)
	}
	if v := p.text("source"); !plainPath(v) {
		if _, err := url.Parse(v); err != nil {
			return badEvent("source %.80q is not a URI reference", v)
		}
	}
	for i := range p.attrs {
		if err := p.attrs[i].conforms(); err != nil {
			return err
		}
	}
	return nil
}

// plainPath spares a common source, such as /shop/orders, the URL parser.
func plainPath(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !isDigit(c) && c != '/' && c != '-' && c != '.' && c != '_' {
			return false
		}
	}
	return len(s) > 1 && s[0] == '/' && s[1] != '/'
}

// conforms checks the optional attributes of the spec.
func (a attribute) conforms() error {
	if a.kind == kindNull {
		return nil
	}
	switch a.name {
	case "subject", "datacontenttype", "dataschema", "time":
	default:
		return nil
	}
	if a.kind != kindString {
		return badEvent("attribute %s is not a string", a.name)
	}
	if a.blank() {
		return nil
	}
	switch a.name {
	case "datacontenttype":
		if a.text != contentJSON {
			if _, _, err := mime.ParseMediaType(strings.TrimSpace(a.text)); err != nil {
				return badEvent("datacontenttype %.80q is not a media type such as %s", a.text, contentJSON)
			}
		}
	case "dataschema":
		if u, err := url.Parse(strings.TrimSpace(a.text)); err != nil || !u.IsAbs() {
			return badEvent("dataschema %.80q is not an absolute URI", a.text)
		}
	case "time":
		if _, err := parseTimestamp(a.text); err != nil {
			return badEvent("time %.80q is not an RFC 3339 time", a.text)
		}
	}
	return nil
}

// blank tells of an optional attribute without a value. The spec has none such: an
// add that has one is refused, and to readers it is absent.
func (a attribute) blank() bool {
	switch a.name {
	case "subject", "datacontenttype", "dataschema", "time":
		return strings.TrimSpace(a.text) == ""
	}
	return false
}

const contentJSON = "application/json"

// parseTimestamp reads an RFC 3339 time, T and Z in either case.
func parseTimestamp(s string) (time.Time, error) {
	if strings.IndexByte(s, ',') >= 0 { // time.Parse would take it for a point
		return time.Time{}, badEvent("not an RFC 3339 time")
	}
	return time.Parse(time.RFC3339Nano, strings.ToUpper(s))
}

// twoDigitHour tells a time of RFC 3339 from what Go's parser takes besides: an
// hour of one digit.
func twoDigitHour(s string) bool { return len(s) > 13 && s[13] == ':' }

// known holds the names that most events have, so that reading them allocates
// nothing.
var known = func() map[string]string {
	m := map[string]string{}
	for _, names := range [][]string{
		{"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "data", "data_base64", "traceparent", "tracestate"},
		inputAttributes, outputAttributes, laterAttributes,
	} {
		for _, name := range names {
			m[name] = name
		}
	}
	return m
}()

func intern(name []byte) string {
	if s, ok := known[string(name)]; ok {
		return s
	}
	return string(name)
}
