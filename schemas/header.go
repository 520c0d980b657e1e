package schemas

import "strings"

// Header values in binary mode follow section 3.1.3.2 of the NATS binding, which equals
// the HTTP binding: percent signs, spaces, quotes and all characters that are not
// printable ASCII are percent-encoded.

const upperHex = "0123456789ABCDEF"

func mustEncode(c byte) bool { return c <= ' ' || c == '"' || c == '%' || c > '~' }

// EncodeHeader percent-encodes the value of an attribute for its header in binary mode.
func EncodeHeader(s string) string {
	more := 0
	for i := 0; i < len(s); i++ {
		if mustEncode(s[i]) {
			more += 2
		}
	}
	if more == 0 {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + more)
	for i := 0; i < len(s); i++ {
		c := s[i]
		if mustEncode(c) {
			b.WriteByte('%')
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&15])
			continue
		}
		b.WriteByte(c)
	}
	return b.String()
}

// decodeHeader decodes well-formed quoting and percent-encoding. It leaves everything
// else unchanged, such as the unescaped values of sdk-go.
func decodeHeader(s string) string {
	if strings.IndexByte(s, '"') == 0 {
		s = unquoteHeader(s)
	}
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

// unquoteHeader decodes s if all of it is a quoted-string (RFC 7230, section 3.2.6), and
// returns it unchanged otherwise.
func unquoteHeader(s string) string {
	out := make([]byte, 0, len(s))
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '"':
			if i == len(s)-1 {
				return string(out)
			}
			return s
		case '\\':
			if i++; i == len(s) {
				return s
			}
		}
		out = append(out, s[i])
	}
	return s
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
