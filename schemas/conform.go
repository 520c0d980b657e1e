package schemas

import (
	"mime"
	"net/url"
	"strings"
	"time"
)

// conforms checks the context attributes against CloudEvents 1.0. It applies to adds and
// to stored and fired events alike, so every event that it accepts in an add must stay
// acceptable to it. Stricter rules, which stored events may violate, are in checkAdd.
func (p *parsed) conforms() error {
	for _, name := range [...]string{"specversion", "id", "source", "type"} {
		a, _ := p.get(name)
		switch {
		case a.text == "":
			return badEvent("attribute %s is missing or empty", name)
		case a.kind != kindString:
			return badEvent("attribute %s is not a string", name).About(name)
		case strings.TrimSpace(a.text) != a.text:
			// Some encoders, such as sdk-go, trim white space, which would change the timer id.
			return badEvent("attribute %s %.80q begins or ends with white space", name, a.text).About(name)
		}
	}
	if v := p.text("specversion"); v != "1.0" {
		return badEvent("specversion %.20q is not supported; use 1.0", v).About("specversion")
	}
	if v := p.text("source"); !plainPath(v) {
		if _, err := url.Parse(v); err != nil {
			return badEvent("source %.80q is not a URI reference", v).About("source")
		}
	}
	for i := range p.attrs {
		if err := p.attrs[i].conforms(); err != nil {
			return err
		}
	}
	return nil
}

// plainPath reports whether s is a simple absolute path such as /shop/orders, a common
// source that needs no URL parser.
func plainPath(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !isDigit(c) && c != '/' && c != '-' && c != '.' && c != '_' {
			return false
		}
	}
	return len(s) > 1 && s[0] == '/' && s[1] != '/'
}

// conforms checks an optional attribute of the CloudEvents spec.
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
		return badEvent("attribute %s is not a string", a.name).About(a.name)
	}
	if a.blank() {
		return nil
	}
	switch a.name {
	case "datacontenttype":
		if a.text != contentJSON {
			if _, _, err := mime.ParseMediaType(strings.TrimSpace(a.text)); err != nil {
				return badEvent("datacontenttype %.80q is not a media type such as %s", a.text, contentJSON).About(a.name)
			}
		}
	case "dataschema":
		if u, err := url.Parse(strings.TrimSpace(a.text)); err != nil || !u.IsAbs() {
			return badEvent("dataschema %.80q is not an absolute URI", a.text).About(a.name)
		}
	case "time":
		if _, err := parseTimestamp(a.text); err != nil {
			return badEvent("time %.80q is not an RFC 3339 time", a.text).About(a.name)
		}
	}
	return nil
}

// blank reports whether an optional attribute of the spec has no value, which the spec
// forbids. An add with such an attribute is rejected; readers treat it as absent.
func (a attribute) blank() bool {
	switch a.name {
	case "subject", "datacontenttype", "dataschema", "time":
		return strings.TrimSpace(a.text) == ""
	}
	return false
}

const contentJSON = "application/json"

// parseTimestamp parses an RFC 3339 time. It accepts t and z in lower case.
func parseTimestamp(s string) (time.Time, error) {
	if strings.IndexByte(s, ',') >= 0 { // time.Parse accepts it as a decimal point
		return time.Time{}, badEvent("not an RFC 3339 time")
	}
	return time.Parse(time.RFC3339Nano, strings.ToUpper(s))
}

// twoDigitHour reports whether the hour of a time has two digits. RFC 3339 demands that;
// Go's parser also accepts one digit.
func twoDigitHour(s string) bool { return len(s) > 13 && s[13] == ':' }

// known holds common attribute names. intern returns them without an allocation.
var known = func() map[string]string {
	m := map[string]string{}
	for _, names := range [][]string{
		{"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "data", "data_base64", "traceparent", "tracestate"},
		inputAttributes, outputAttributes,
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
