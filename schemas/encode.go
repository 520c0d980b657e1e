package schemas

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// Message encodes the body as it is published when due: the user's event plus
// timerscheduled, timerfired, timerrun and timerattempt. In structured mode the
// user's bytes are kept and Belfry's members follow them.
func (b Body) Message(f Fired) (nats.Header, []byte) {
	return b.with(f, "", "")
}

// DeadMessage is Message with timererrorcode and timererrordata besides.
func (b Body) DeadMessage(f Fired, errorCode, errorData string) (nats.Header, []byte) {
	if errorCode == "" {
		errorCode = "unknown" // a dead letter always has one
	}
	return b.with(f, errorCode, errorData)
}

// Bounds of the headers that DeadMessage adds. HeaderReserve depends on them.
const (
	maxErrorCode = 64
	maxErrorData = MaxOutcomeError
)

func (b Body) with(f Fired, errorCode, errorData string) (nats.Header, []byte) {
	errorCode, errorData = clip(errorCode, maxErrorCode), clip(errorData, maxErrorData)
	if b.Mode == ModeBinary {
		return b.binaryWith(f, errorCode, errorData), b.Data
	}
	hdr := b.header(2)
	hdr[headerContentType] = []string{contentStructured}
	end := bytes.LastIndexByte(b.Data, '}')
	if end < 0 {
		return hdr, b.Data // never stored: ParseAdd takes objects alone
	}
	out := make([]byte, 0, len(b.Data)+160+len(errorCode)+2*len(errorData))
	from, to := 0, 0
	if f.NoCallback {
		from, to = memberAt(b.Data, AttrCallback)
	}
	out = append(append(out, b.Data[:from]...), b.Data[to:end]...)
	out = append(out, `,"`+AttrScheduled+`":"`...)
	out = appendTime(out, f.ScheduledMs)
	out = append(out, `","`+AttrFired+`":"`...)
	out = appendTime(out, f.FiredMs)
	out = append(out, `","`+AttrRun+`":`...)
	out = strconv.AppendUint(out, uint64(f.Run), 10)
	out = append(out, `,"`+AttrAttempt+`":`...)
	out = strconv.AppendUint(out, uint64(f.Attempt), 10)
	if errorCode != "" {
		out = quote(append(out, `,"`+AttrErrorCode+`":`...), cleanText(errorCode))
		out = quote(append(out, `,"`+AttrErrorData+`":`...), cleanText(errorData))
	}
	return hdr, append(out, '}')
}

// memberAt returns the position of a member of a JSON object, including its comma; from
// and to are 0 if there is none. It does not read beyond the member.
func memberAt(raw []byte, want string) (from, to int) {
	if !bytes.Contains(raw, []byte(`"`+want+`"`)) {
		return 0, 0 // fast path: replayed events do not have it
	}
	found := badEvent("found") // ends the loop
	first, start := true, 0
	_ = eachMember(raw, func(name, value []byte) error {
		if string(name) == want {
			start = cap(raw) - cap(value) // value aliases raw
			to = start + len(value)
			return found
		}
		first = false
		return nil
	})
	if to == 0 {
		return 0, 0
	}
	// The name is not escaped, so it directly precedes the value.
	from = bytes.LastIndex(raw[:start], []byte(`"`+want+`"`))
	if !first {
		return bytes.LastIndexByte(raw[:from], ','), to
	}
	if i := bytes.IndexByte(raw[to:], ','); i >= 0 && len(bytes.TrimLeft(raw[to:to+i], jsonSpace)) == 0 {
		to += i + 1
	}
	return from, to
}

// header is the user's headers, with room for more of Belfry's; all values share
// one array.
func (b Body) header(more int) nats.Header {
	hdr := make(nats.Header, len(b.Headers)+more+4) // the publisher adds up to four
	values := make([]string, len(b.Headers))
	for i, h := range b.Headers {
		values[i] = h.Value
		if have := hdr[h.Name]; have != nil {
			hdr[h.Name] = append(have, h.Value)
			continue
		}
		hdr[h.Name] = values[i : i+1 : i+1]
	}
	return hdr
}

func (b Body) binaryWith(f Fired, errorCode, errorData string) nats.Header {
	hdr := b.header(7)
	if f.NoCallback {
		const name = headerPrefix + AttrCallback
		for _, h := range b.Headers {
			if len(h.Name) == len(name) && strings.EqualFold(h.Name, name) {
				delete(hdr, h.Name)
			}
		}
	}
	v := [...]string{FormatTime(f.ScheduledMs), FormatTime(f.FiredMs), strconv.FormatUint(uint64(f.Run), 10), strconv.FormatUint(uint64(f.Attempt), 10)}
	hdr[headerPrefix+AttrScheduled] = v[0:1:1]
	hdr[headerPrefix+AttrFired] = v[1:2:2]
	hdr[headerPrefix+AttrRun] = v[2:3:3]
	hdr[headerPrefix+AttrAttempt] = v[3:4:4]
	if errorCode != "" {
		hdr[headerPrefix+AttrErrorCode] = []string{encodeHeader(cleanText(errorCode))}
		hdr[headerPrefix+AttrErrorData] = []string{encodeHeader(cleanText(errorData))}
	}
	return hdr
}

// cleanText makes any text a CloudEvents string: valid UTF-8, no control
// characters, no longer than an attribute may be.
func cleanText(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r < 0x20 || r >= 0x7f && r <= 0x9f:
			return ' '
		case r >= 0xfdd0 && r <= 0xfdef || r&0xfffe == 0xfffe:
			return '?'
		}
		return r
	}, strings.ToValidUTF8(clip(s, MaxAttributeLength-4), "?"))
}

// Clip returns text that a record and a header can hold: characters that an attribute
// may have, at most n bytes, cut between characters.
func Clip(s string, n int) string {
	s = cleanText(s)
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// StripFired takes a dead letter, or a fired message, back to the body of the
// add: without what Belfry added. Replay needs it.
func StripFired(hdr nats.Header, data []byte) (Body, error) {
	p, err := take(hdr, data)
	if err != nil {
		return Body{}, err
	}
	b := Body{Mode: p.mode, Data: p.raw}
	for _, h := range p.headers {
		name, isAttr := strings.CutPrefix(strings.ToLower(h.Name), headerPrefix)
		if isAttr && isOutput(name) {
			continue
		}
		b.Headers = append(b.Headers, h)
	}
	if p.mode == ModeBinary {
		return b, nil
	}
	if own := cutOwn(p.raw); own != nil {
		b.Data = own
		return b, nil
	}
	// Somebody encoded the event anew: take the members one by one.
	b.Data = make([]byte, 0, len(p.raw))
	sep := byte('{')
	err = eachMember(p.raw, func(name, v []byte) error {
		if isOutput(string(name)) {
			return nil
		}
		b.Data = append(append(quote(append(b.Data, sep), string(name)), ':'), v...)
		sep = ','
		return nil
	})
	b.Data = append(b.Data, '}')
	return b, err
}

// cutOwn undoes Message to the byte: Belfry's members follow the user's. It
// returns nil if they do not.
func cutOwn(raw []byte) []byte {
	i := bytes.LastIndex(raw, []byte(`,"`+AttrScheduled+`":"`))
	if i < 0 {
		return nil
	}
	rest := append([]byte{'{'}, raw[i+1:]...)
	errUser := badEvent("a member of the user's")
	err := eachMember(rest, func(name, _ []byte) error {
		if !isOutput(string(name)) {
			return errUser
		}
		return nil
	})
	if err != nil {
		return nil
	}
	return append(append(make([]byte, 0, i+1), raw[:i]...), '}')
}

func isOutput(name string) bool {
	for _, a := range outputAttributes {
		if a == name {
			return true
		}
	}
	return false
}
