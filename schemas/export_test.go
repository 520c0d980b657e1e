package schemas

// EncodeHTTPHeader percent-encodes the value of an attribute in a header.
var EncodeHTTPHeader = encodeHeader

// The encoded values of a record's optional extensions.
func (r *Record) RetryValue() []byte { return r.Retry.append(nil) }

func (r *Record) AttemptsValue() (b []byte) {
	for i := range r.Attempts {
		b = r.Attempts[i].append(b)
	}
	return b
}
