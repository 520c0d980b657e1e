package schemas

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// Message encodes the message that fires: the user's event plus timerscheduled,
// timerfired, timerrun and timerattempt, and for some runs of schedules timermissed and
// timertrigger. In structured mode it keeps the user's bytes and
// appends Belfry's members. It never modifies the body.
func (b Body) Message(f Fired) (nats.Header, []byte) {
	return b.with(f, "", "")
}

// DeadMessage encodes a dead letter: Message plus timererrorcode, "unknown" if errorCode is
// empty, and timererrordata. It truncates both to a fixed length.
func (b Body) DeadMessage(f Fired, errorCode, errorData string) (nats.Header, []byte) {
	if errorCode == "" {
		errorCode = "unknown"
	}
	return b.with(f, errorCode, errorData)
}

// OverdueMessage encodes an overdue event: the user's event without its callback, plus
// timerscheduled (the last nominal time), timerfired (the time of the overdue event),
// timeroverdue (the deadline), timerrun of the run without success if there is one, timermissed
// (the number of other nominal times), and the reason as timererrorcode and timererrordata.
func (b Body) OverdueMessage(f Fired, reason, text string) (nats.Header, []byte) {
	f.NoCallback, f.Attempt = true, 0
	return b.with(f, reason, text)
}

// Limits of the attributes that DeadMessage adds, in bytes. HeaderReserve depends on them.
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
		return hdr, b.Data // impossible for a stored event: ParseAdd accepts only objects
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
	out = append(out, '"')
	if f.OverdueMs == 0 || f.Run != 0 {
		out = strconv.AppendUint(append(out, `,"`+AttrRun+`":`...), uint64(f.Run), 10)
	}
	if f.OverdueMs == 0 {
		out = strconv.AppendUint(append(out, `,"`+AttrAttempt+`":`...), uint64(f.Attempt), 10)
	} else {
		out = append(appendTime(append(out, `,"`+AttrOverdue+`":"`...), f.OverdueMs), '"')
	}
	if f.Missed > 0 {
		out = strconv.AppendUint(append(out, `,"`+AttrMissed+`":`...), uint64(f.Missed), 10)
	}
	if f.Trigger != TriggerSchedule {
		out = append(append(append(out, `,"`+AttrTrigger+`":"`...), f.Trigger.String()...), '"')
	}
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

// header returns the user's headers, with capacity for more headers of Belfry. All values
// share one array.
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
	if f.OverdueMs != 0 {
		delete(hdr, headerPrefix+AttrAttempt)
		if f.Run == 0 {
			delete(hdr, headerPrefix+AttrRun)
		}
		hdr[headerPrefix+AttrOverdue] = []string{FormatTime(f.OverdueMs)}
	}
	if f.Missed > 0 {
		hdr[headerPrefix+AttrMissed] = []string{strconv.FormatUint(uint64(f.Missed), 10)}
	}
	if f.Trigger != TriggerSchedule {
		hdr[headerPrefix+AttrTrigger] = []string{f.Trigger.String()}
	}
	if errorCode != "" {
		hdr[headerPrefix+AttrErrorCode] = []string{EncodeHeader(cleanText(errorCode))}
		hdr[headerPrefix+AttrErrorData] = []string{EncodeHeader(cleanText(errorData))}
	}
	return hdr
}

// cleanText converts any text to a valid CloudEvents string: valid UTF-8, no control
// characters, at most MaxAttributeLength bytes.
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

// Clip returns s as text for a record or header: it replaces characters that an attribute
// must not have, and truncates the text to n bytes between two characters.
func Clip(s string, n int) string {
	s = cleanText(s)
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// StripFired returns the body of the add from a dead letter or a fired message, without
// Belfry's attributes. A replay stores that body again.
func StripFired(hdr nats.Header, data []byte) (Body, error) {
	p, err := parse(hdr, data)
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
	if user := trimMembers(p.raw); user != nil {
		b.Data = user
		return b, nil
	}
	// Another program has encoded the event again: copy the user's members one by one.
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

// trimMembers removes the members that Message appended, and returns the exact bytes of
// the add. It returns nil if Belfry's members are not all at the end.
func trimMembers(raw []byte) []byte {
	i := bytes.LastIndex(raw, []byte(`,"`+AttrScheduled+`":"`))
	if i < 0 {
		return nil
	}
	rest := append([]byte{'{'}, raw[i+1:]...)
	errUser := badEvent("a member of the user") // ends the loop
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
