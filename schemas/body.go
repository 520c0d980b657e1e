package schemas

// Mode is the CloudEvents content mode of an event. An event fires in the mode in which it
// was added.
type Mode uint8

// The content modes of the CloudEvents NATS protocol binding.
const (
	ModeNone       Mode = 0 // the record has no event
	ModeStructured Mode = 1
	ModeBinary     Mode = 2
)

// Body is an event as the user sent it.
type Body struct {
	Mode Mode
	// Headers are the message's headers as sent, without reserved ones (ReservedHeader): in
	// binary mode the ce-* attributes, content-type and the user's own headers, in
	// structured mode only the latter.
	Headers []HeaderField
	// Data is the whole JSON document in structured mode, the data in binary mode.
	Data []byte
}

// HeaderField is one header line.
type HeaderField struct{ Name, Value string }

// Size returns the size of the body in a message: headers and data, in bytes.
func (b Body) Size() int {
	n := len(b.Data)
	for _, h := range b.Headers {
		n += len(h.Name) + len(h.Value) + 4
	}
	return n
}
