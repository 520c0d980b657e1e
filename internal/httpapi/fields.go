package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/belfryio/belfry/internal/strictjson"
	"github.com/belfryio/belfry/schemas"
)

// field is a field of POST /v1/timers, and its attribute of the event.
type field struct{ name, attribute string }

// fields are the fields of POST /v1/timers except data, data_base64 and attributes.
var fields = []field{
	{"in", schemas.AttrAfter}, {"at", schemas.AttrAt}, {"cron", schemas.AttrCron}, {"every", schemas.AttrEvery}, {"tz", schemas.AttrZone},
	{"svc", schemas.AttrService}, {"callback", schemas.AttrCallback}, {"group", schemas.AttrGroup}, {"flow", schemas.AttrFlow}, {"key", schemas.AttrKey},
	{"maxattempts", schemas.AttrMaxAttempts}, {"backoff", schemas.AttrBackoff}, {"timeout", schemas.AttrTimeout},
	{"start", schemas.AttrStart}, {"end", schemas.AttrEnd}, {"limit", schemas.AttrLimit}, {"jitter", schemas.AttrJitter}, {"dst", schemas.AttrDST}, {"days", schemas.AttrDays},
	{"misfire", schemas.AttrMisfire}, {"grace", schemas.AttrGrace}, {"overlap", schemas.AttrOverlap}, {"expect", schemas.AttrExpect},
	{"exclude", schemas.AttrExclude}, {"excludeshift", schemas.AttrExcludeShift},
	{"id", "id"}, {"source", "source"}, {"type", "type"}, {"subject", "subject"}, {"time", "time"}, {"dataschema", "dataschema"}, {"datacontenttype", "datacontenttype"},
}

// fieldNames returns the names of the fields that a query can have.
func fieldNames() []string {
	names := make([]string, 0, len(fields))
	for _, f := range fields {
		if f.name != "datacontenttype" { // it is in the header Content-Type
			names = append(names, f.name)
		}
	}
	return names
}

// fieldOf returns the name of the field of an attribute.
func fieldOf(attribute string) string {
	if i := slices.IndexFunc(fields, func(f field) bool { return f.attribute == attribute }); i >= 0 {
		return fields[i].name
	}
	return pathOf("attributes", attribute)
}

// draft collects the attributes of an event, by name and as JSON, and its data, from the fields of a
// request.
type draft struct {
	attributes map[string]json.RawMessage
	// data is a JSON value; nil for none. base64 is data_base64, nil for none.
	data, base64 json.RawMessage
}

// draftOf reads the fields of POST /v1/timers.
func draftOf(body []byte) (draft, error) {
	d := draft{attributes: map[string]json.RawMessage{}}
	err := eachMember(body, "", func(name string, value json.RawMessage) error {
		switch name {
		case "data":
			d.data = value
			return nil
		case "data_base64":
			d.base64 = value
			return nil
		case "attributes":
			return d.extend(value)
		}
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
		if i < 0 {
			return badField(pathOf(name), "unknown field; the fields are data, data_base64, attributes, %s", strings.Join(append(fieldNames(), "datacontenttype"), ", "))
		}
		return d.set(name, fields[i].attribute, value)
	})
	return d, err
}

// extend adds the attributes in the field attributes.
func (d *draft) extend(members json.RawMessage) error {
	if string(members) == "null" {
		return nil
	}
	return eachMember(members, "attributes", func(name string, value json.RawMessage) error {
		path := pathOf("attributes", name)
		if name == "specversion" || name == "data" || name == "data_base64" || slices.ContainsFunc(fields, func(f field) bool { return f.attribute == name }) {
			return badField(path, "this attribute has a field of its own in the request: use that field")
		}
		return d.set(path, name, value)
	})
}

// set adds an attribute. ParseAdd checks its name and value.
func (d *draft) set(path, attribute string, value json.RawMessage) error {
	if value[0] == '{' || value[0] == '[' {
		return badField(path, "must be a string, or a number or boolean where that is allowed")
	}
	d.attributes[attribute] = value
	return nil
}

// pathOf returns the Error.Field of a member of the request: its path of names, escaped as in a JSON
// Pointer.
func pathOf(names ...string) string {
	escaped := make([]string, len(names))
	for i, name := range names {
		escaped[i] = strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
	}
	return strings.Join(escaped, "/")
}

// setDefault sets a string attribute that is missing, null or empty.
func (d *draft) setDefault(name, text string) {
	switch string(d.attributes[name]) {
	case "", "null":
		b, _ := json.Marshal(text) // strings always encode
		d.attributes[name] = b
	}
}

// text returns a string attribute.
func (d *draft) text(name string) (s string) {
	_ = json.Unmarshal(d.attributes[name], &s) // ParseAdd refuses a value that is not a string
	return s
}

// event returns the event in structured mode.
func (d *draft) event() []byte {
	var b bytes.Buffer
	b.WriteString(`{"specversion":"1.0"`)
	member := func(name string, value json.RawMessage) {
		quoted, _ := json.Marshal(name) // strings always encode
		b.WriteByte(',')
		b.Write(quoted)
		b.WriteByte(':')
		b.Write(value)
	}
	for _, name := range slices.Sorted(maps.Keys(d.attributes)) {
		member(name, d.attributes[name])
	}
	if d.data != nil {
		member("data", d.data)
	}
	if d.base64 != nil {
		member("data_base64", d.base64)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// queryEvent returns the event of an add whose fields are query parameters, in binary mode.
func queryEvent(query url.Values, h http.Header) map[string][]string {
	header := map[string][]string{"ce-specversion": {"1.0"}}
	for _, f := range fields {
		if v := query.Get(f.name); v != "" {
			header["ce-"+f.attribute] = []string{schemas.EncodeHeader(v)}
		}
	}
	if v := h.Get("Content-Type"); v != "" {
		header["content-type"] = []string{v}
	}
	return header
}

// eachMember calls f for each member of a JSON object. at is the path of the object in the body, ""
// for the body itself. A duplicate member is an error, because JSON parsers differ in which of the two
// they use.
func eachMember(text []byte, at string, f func(name string, value json.RawMessage) error) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		if at != "" {
			return badField(at, "must be a JSON object")
		}
		return badRequest("the body is not a JSON object")
	}
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		name, ok := t.(string)
		var value json.RawMessage
		if err == nil {
			err = dec.Decode(&value)
		}
		switch {
		case err != nil || !ok:
			return malformed(err)
		case seen[name]:
			return badField(strings.TrimPrefix(at+"/"+pathOf(name), "/"), "this field occurs twice")
		}
		seen[name] = true
		if err := f(name, value); err != nil {
			return err
		}
	}
	return endOf(dec)
}

// endOf reads the end of an object or array, and of the text.
func endOf(dec *json.Decoder) error {
	if _, err := dec.Token(); err != nil {
		return malformed(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return badRequest("there is more after the end of the JSON")
	}
	return nil
}

func malformed(err error) error {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return badRequest("the JSON ends too early")
	}
	return badRequest("the body is not JSON: %w", err)
}

// decode decodes the JSON body of a request into v. A field that v does not have is an error.
func decode(body []byte, v any) error {
	if !utf8.Valid(body) {
		return badRequest("the body is not UTF-8")
	}
	if err := eachMember(body, "", func(string, json.RawMessage) error { return nil }); err != nil {
		return err
	}
	if wrong := strictjson.Check(body, v); wrong != nil {
		path := pathOf(append(wrong.Path, wrong.Name)...)
		if wrong.Twice {
			return badField(path, "this field occurs twice")
		}
		return badField(path, "unknown field; the fields are %s", strings.Join(wrong.Fields, ", "))
	}
	if err := json.Unmarshal(body, v); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
			return badField(strings.ReplaceAll(wrong.Field, ".", "/"), "must be a %s, not a %s", wrong.Type.Kind(), wrong.Value)
		}
		return badRequest("%s", strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}
