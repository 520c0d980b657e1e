// Package strictjson finds members of JSON objects that encoding/json accepts silently: unknown members, names
// that differ from the name of a field in the case of their letters, and duplicates. encoding/json uses
// the last of two members and other parsers the first, so a request with both is ambiguous. The package does
// no I/O.
package strictjson

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Error is a member that an object must not have.
type Error struct {
	// Name is the name of the member, and Path that of the object that has it: the names of members from
	// the outermost object.
	Name string
	Path []string
	// Twice is set for a member that occurs twice; the member is otherwise unknown.
	Twice bool
	// Fields are the members that the object may have, in the order of the type.
	Fields []string
}

// Error says what the text has, such as: unknown field "delay".
func (e *Error) Error() string {
	if e.Twice {
		return fmt.Sprintf("field %.80q twice", e.Name)
	}
	return fmt.Sprintf("unknown field %.80q", e.Name)
}

// Check compares the members of the objects in a JSON text with the fields of the structs into which
// json.Unmarshal would decode them, given v, a pointer. It returns nil for a text that is malformed or does
// not fit: json.Unmarshal reports that. Values with an unmarshaler of their own, and values of interfaces, are
// not checked.
func Check(text []byte, v any) *Error {
	c := checker{dec: json.NewDecoder(bytes.NewReader(text))}
	c.value(reflect.TypeOf(v))
	return c.found
}

type checker struct {
	dec   *json.Decoder
	path  []string
	found *Error
}

// value reads a value of a type. It reports false at the end of the check: an error, or JSON that does not
// fit. Its depth is that of the type.
func (c *checker) value(t reflect.Type) bool {
	for t.Kind() == reflect.Pointer && !opaque(t) {
		t = t.Elem()
	}
	object := t.Kind() == reflect.Struct || t.Kind() == reflect.Map
	if array := t.Kind() == reflect.Slice || t.Kind() == reflect.Array; opaque(t) || !object && !array {
		var skip json.RawMessage
		return c.dec.Decode(&skip) == nil
	}
	token, err := c.dec.Token()
	switch {
	case err != nil:
		return false
	case token == nil: // null
		return true
	case object && token == json.Delim('{'):
		return c.object(t)
	case !object && token == json.Delim('['):
		for c.dec.More() {
			if !c.value(t.Elem()) {
				return false
			}
		}
		_, err = c.dec.Token()
		return err == nil
	}
	return false
}

// object reads the members of an object.
func (c *checker) object(t reflect.Type) bool {
	var names []string
	var types []reflect.Type
	var elem reflect.Type // of a map, which has any member
	if t.Kind() == reflect.Struct {
		names, types = fields(t)
	} else {
		elem = t.Elem()
	}
	seen := map[string]bool{}
	for c.dec.More() {
		token, err := c.dec.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return false
		}
		i := slices.Index(names, name)
		if twice := seen[name]; twice || i < 0 && elem == nil {
			c.found = &Error{Name: name, Path: slices.Clone(c.path), Twice: twice, Fields: names}
			return false
		}
		seen[name] = true
		value := elem
		if i >= 0 {
			value = types[i]
		}
		c.path = append(c.path, name)
		if !c.value(value) {
			return false
		}
		c.path = c.path[:len(c.path)-1]
	}
	_, err := c.dec.Token()
	return err == nil
}

// opaque reports whether a type decodes itself.
func opaque(t reflect.Type) bool {
	for _, u := range []reflect.Type{reflect.TypeFor[json.Unmarshaler](), reflect.TypeFor[encoding.TextUnmarshaler]()} {
		if t.Implements(u) || reflect.PointerTo(t).Implements(u) {
			return true
		}
	}
	return false
}

// fields returns the names and types of the fields of a struct, with those of embedded structs.
func fields(t reflect.Type) (names []string, types []reflect.Type) {
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported() || f.Anonymous && name == "":
			continue
		case name == "":
			name = f.Name
		}
		names, types = append(names, name), append(types, f.Type)
	}
	return names, types
}
