package calendar

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Error is the error of New for a specification that it does not accept.
type Error struct {
	// Attribute is the name of the attribute, for example timercron.
	Attribute string
	// Value is the attribute's value.
	Value string
	// Offset is the position of the mistake in Value, in bytes. It is -1 if the mistake
	// concerns the whole value.
	Offset int
	// Reason says what is wrong.
	Reason string
	// Instead proposes a correction.
	Instead string
}

// maxQuoted is the longest value that an error message repeats, in bytes.
const maxQuoted = 80

func (e *Error) Error() string {
	var b strings.Builder
	value := e.Value
	if len(value) > maxQuoted {
		value = strings.ToValidUTF8(value[:maxQuoted], "") + "…"
	}
	fmt.Fprintf(&b, "%s %q: ", e.Attribute, value)
	if e.Offset >= 0 {
		fmt.Fprintf(&b, "at character %d: ", utf8.RuneCountInString(e.Value[:min(e.Offset, len(e.Value))])+1)
	}
	b.WriteString(e.Reason)
	if e.Instead != "" {
		b.WriteString("; ")
		b.WriteString(e.Instead)
	}
	return b.String()
}

// whole is the Offset of a mistake that concerns the whole value.
const whole = -1
