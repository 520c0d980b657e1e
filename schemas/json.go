package schemas

import (
	"encoding/json"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds the nesting of arrays and objects in an event, including the event
// itself. It equals the limit of encoding/json, so that Go programs can decode every event
// that fires.
const maxDepth = 10_000

// jsonSpace is white space that may surround JSON. byteOrderMark must not precede it.
const (
	jsonSpace     = " \t\n\r"
	byteOrderMark = "\ufeff"
)

// scanner validates JSON text (RFC 8259) and finds the members of the top-level object,
// without allocating. Belfry decodes each event three times; encoding/json's decoder takes
// eight times as long.
type scanner struct {
	b []byte
	i int
}

func (s *scanner) malformed() *Error {
	if s.i >= len(s.b) {
		return badEvent("malformed JSON: it ends at byte %d", len(s.b))
	}
	r, _ := utf8.DecodeRune(s.b[s.i:])
	return badEvent("malformed JSON at byte %d: %q", s.i+1, r)
}

// peek returns the next byte, or 0 at the end.
func (s *scanner) peek() byte {
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}

// next skips space, and c if it follows.
func (s *scanner) next(c byte) bool {
	s.space()
	if s.peek() != c {
		return false
	}
	s.i++
	return true
}

// eachMember calls fn for each member of a JSON object, with its decoded name and the
// value's bytes. Values, and names without escapes, alias raw.
func eachMember(raw []byte, fn func(name, value []byte) error) error {
	s := scanner{b: raw}
	if !s.next('{') {
		return s.malformed()
	}
	for first := true; ; first = false {
		if first && s.next('}') {
			break
		}
		s.space()
		name, err := s.name()
		if err != nil {
			return err
		}
		if !s.next(':') {
			return s.malformed()
		}
		s.space()
		start := s.i
		if err := s.value(1); err != nil {
			return err
		}
		if err := fn(name, s.b[start:s.i]); err != nil {
			return err
		}
		if s.next('}') {
			break
		}
		if !s.next(',') {
			return s.malformed()
		}
	}
	if s.space(); s.i < len(s.b) {
		return badEvent("there is more after the JSON object, at byte %d", s.i+1)
	}
	return nil
}

// isValue reports whether b is exactly one JSON value.
func isValue(b []byte) bool {
	s := scanner{b: b}
	s.space()
	if s.value(1) != nil {
		return false
	}
	s.space()
	return s.i == len(b)
}

func (s *scanner) name() ([]byte, error) {
	start := s.i
	escaped, err := s.text()
	if err != nil {
		return nil, err
	}
	if !escaped {
		return s.b[start+1 : s.i-1], nil
	}
	name, ok := unquote(s.b[start:s.i])
	if !ok {
		return nil, badEvent("a member's name has half a surrogate pair, at byte %d", start+1)
	}
	return []byte(name), nil
}

// value skips one value. depth is the nesting depth of the array or object around it.
func (s *scanner) value(depth int) error {
	switch c := s.peek(); {
	case c == '"':
		_, err := s.text()
		return err
	case c == '{' || c == '[':
		return s.nested(depth)
	case c == '-' || isDigit(c):
		return s.number()
	}
	for _, word := range [...]string{"true", "false", "null"} {
		if len(s.b)-s.i >= len(word) && string(s.b[s.i:s.i+len(word)]) == word {
			s.i += len(word)
			return nil
		}
	}
	return s.malformed()
}

func (s *scanner) nested(depth int) error {
	if depth >= maxDepth {
		return badEvent("the JSON nests deeper than %d levels, at byte %d", maxDepth, s.i+1)
	}
	object := s.b[s.i] == '{'
	end := byte(']')
	if object {
		end = '}'
	}
	s.i++
	if s.next(end) {
		return nil
	}
	for {
		s.space()
		if object {
			if _, err := s.text(); err != nil {
				return err
			}
			if !s.next(':') {
				return s.malformed()
			}
			s.space()
		}
		if err := s.value(depth + 1); err != nil {
			return err
		}
		if s.next(end) {
			return nil
		}
		if !s.next(',') {
			return s.malformed()
		}
	}
}

// text skips a string and reports whether it has escapes.
func (s *scanner) text() (escaped bool, err error) {
	if s.peek() != '"' {
		return false, s.malformed()
	}
	for s.i++; s.i < len(s.b); s.i++ {
		switch c := s.b[s.i]; {
		case c == '"':
			s.i++
			return escaped, nil
		case c < ' ':
			return false, s.malformed()
		case c == '\\':
			escaped = true
			if s.i++; s.i >= len(s.b) {
				return false, s.malformed()
			}
			switch s.b[s.i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			case 'u':
				for range 4 {
					if s.i++; s.i >= len(s.b) || unhex(s.b[s.i]) < 0 {
						return false, s.malformed()
					}
				}
			default:
				return false, s.malformed()
			}
		}
	}
	return false, s.malformed()
}

func (s *scanner) number() error {
	if s.peek() == '-' {
		s.i++
	}
	if s.peek() == '0' {
		s.i++
	} else if err := s.digits(); err != nil {
		return err
	}
	if s.peek() == '.' {
		s.i++
		if err := s.digits(); err != nil {
			return err
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.i++
		if c := s.peek(); c == '+' || c == '-' {
			s.i++
		}
		return s.digits()
	}
	return nil
}

func (s *scanner) digits() error {
	if !isDigit(s.peek()) {
		return s.malformed()
	}
	for isDigit(s.peek()) {
		s.i++
	}
	return nil
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// unquote decodes a string that the scanner has validated. It returns false for half a
// surrogate pair, which UTF-8 cannot represent. Other decoders replace it by U+FFFD, which
// would make two different ids equal.
func unquote(quoted []byte) (string, bool) {
	in := quoted[1 : len(quoted)-1]
	out := make([]byte, 0, len(in))
	for i := 0; i < len(in); i++ {
		if in[i] != '\\' {
			out = append(out, in[i])
			continue
		}
		i++
		switch in[i] {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r := hex4(in[i+1:])
			i += 4
			if utf16.IsSurrogate(r) {
				if len(in)-i < 7 || in[i+1] != '\\' || in[i+2] != 'u' {
					return "", false
				}
				if r = utf16.DecodeRune(r, hex4(in[i+3:])); r == utf8.RuneError {
					return "", false
				}
				i += 6
			}
			out = utf8.AppendRune(out, r)
		default:
			out = append(out, in[i])
		}
	}
	return string(out), true
}

func hex4(b []byte) (r rune) {
	for _, c := range b[:4] {
		r = r<<4 | rune(unhex(c))
	}
	return r
}

// quote appends s as a JSON string.
func quote(dst []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			b, err := json.Marshal(s)
			if err != nil { // a string always encodes
				return append(dst, `""`...)
			}
			return append(dst, b...)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}
