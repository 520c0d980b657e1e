package schemas

import (
	"bytes"
	"encoding/json"
	"strconv"
	"time"
)

// This file encodes the API's answers as JSON. The answers to cancel and add are frequent,
// so their encoders avoid reflection. Decoding uses the struct tags.

// MarshalJSON implements json.Marshaler; see Append.
func (t TimerInfo) MarshalJSON() ([]byte, error) { return t.Append(nil), nil }

// Append appends the timer as JSON.
func (t *TimerInfo) Append(b []byte) []byte {
	b = append(b, `{"timer":"`...)
	b = t.Timer.AppendTo(b)
	b = quote(append(b, `","id":`...), t.ID)
	b = quote(append(b, `,"source":`...), t.Source)
	b = quote(append(b, `,"type":`...), t.Type)
	b = quote(append(b, `,"service":`...), t.Service)
	b = appendOptional(b, `,"tenant":`, t.Tenant)
	b = appendOptional(b, `,"group":`, t.Group)
	b = appendOptional(b, `,"callback":`, t.Callback)
	b = quote(append(b, `,"state":`...), t.State.String())
	b = quoteTime(append(b, `,"scheduled":`...), t.Scheduled)
	b = quoteTime(append(b, `,"due":`...), t.Due)
	for _, o := range [...]struct {
		name string
		time time.Time
	}{{`,"added":`, t.Added}, {`,"fired":`, t.Fired}, {`,"done":`, t.Done}, {`,"next":`, t.Next}, {`,"until":`, t.Until}} {
		if !o.time.IsZero() {
			b = quoteTime(append(b, o.name...), o.time)
		}
	}
	b = strconv.AppendUint(append(b, `,"run":`...), uint64(t.Run), 10)
	b = strconv.AppendUint(append(b, `,"attempts":`...), uint64(t.Attempts), 10)
	b = strconv.AppendUint(append(b, `,"maxattempts":`...), uint64(t.MaxAttempts), 10)
	if t.Outcome != nil {
		b = t.Outcome.append(append(b, `,"outcome":`...))
	}
	for i := range t.LastAttempts {
		b = append(b, [...]string{`,"last_attempts":[`, `,`}[min(i, 1)]...)
		b = t.LastAttempts[i].append(b)
	}
	if len(t.LastAttempts) > 0 {
		b = append(b, ']')
	}
	for i := range t.History {
		b = append(b, [...]string{`,"history":[`, `,`}[min(i, 1)]...)
		b = t.History[i].append(b)
	}
	if len(t.History) > 0 {
		b = append(b, ']')
	}
	if f := t.Flow; f != nil {
		b = quoteTime(append(quote(append(b, `,"flow":{"key":`...), f.Key), `,"slot":`...), f.Slot)
		if f.Deferrals > 0 {
			b = strconv.AppendUint(append(b, `,"deferrals":`...), uint64(f.Deferrals), 10)
		}
		if b = appendOptional(b, `,"hold":`, f.Hold); !f.Until.IsZero() {
			b = quoteTime(append(b, `,"until":`...), f.Until)
		}
		b = append(b, '}')
	}
	if o := t.Order; o != nil {
		b = appendValue(append(b, `,"order":`...), o)
	}
	b = appendOptional(b, `,"pause_note":`, t.PauseNote)
	if t.Schedule != nil {
		b = appendValue(append(b, `,"schedule":`...), t.Schedule)
	}
	if t.Origin != nil {
		b = appendValue(append(b, `,"origin":`...), t.Origin)
	}
	b = strconv.AppendUint(append(b, `,"revision":`...), t.Revision, 10)
	if t.Claim != nil {
		b = appendValue(append(b, `,"claim":`...), t.Claim)
	}
	if b = appendOptional(b, `,"from":`, t.From); !t.AsOf.IsZero() {
		b = quoteTime(append(b, `,"as_of":`...), t.AsOf)
	}
	return append(b, '}')
}

func (o *OutcomeInfo) append(b []byte) []byte {
	b = append(b, '{')
	begin := len(b)
	if o.Code != 0 {
		b = strconv.AppendInt(append(b, `,"code":`...), int64(o.Code), 10)
	}
	b = appendOptional(b, `,"error":`, o.Error)
	b = appendOptional(b, `,"response":`, o.Response)
	if len(b) > begin { // remove the first comma
		b = append(b[:begin], b[begin+1:]...)
	}
	return append(b, '}')
}

// MarshalJSON implements json.Marshaler.
func (a AttemptInfo) MarshalJSON() ([]byte, error) { return a.append(nil), nil }

func (a *AttemptInfo) append(b []byte) []byte {
	b = strconv.AppendUint(append(b, `{"attempt":`...), uint64(a.Attempt), 10)
	b = quoteTime(append(b, `,"at":`...), a.At)
	b = strconv.AppendUint(append(b, `,"took_ms":`...), uint64(a.TookMs), 10)
	if a.Status != 0 {
		b = strconv.AppendInt(append(b, `,"status":`...), int64(a.Status), 10)
	}
	b = appendOptional(b, `,"error":`, a.Error)
	b = appendOptional(b, `,"response":`, a.Response)
	return append(b, '}')
}

// MarshalJSON implements json.Marshaler.
func (o OperationInfo) MarshalJSON() ([]byte, error) { return o.append(nil), nil }

func (o *OperationInfo) append(b []byte) []byte {
	b = quote(append(b, `{"op":`...), o.Op)
	b = quoteTime(append(b, `,"at":`...), o.At)
	b = appendOptional(b, `,"by":`, o.By)
	b = appendOptional(b, `,"account":`, o.Account)
	b = appendOptional(b, `,"user":`, o.User)
	return append(b, '}')
}

// MarshalJSON implements json.Marshaler; see Append.
func (a AddReply) MarshalJSON() ([]byte, error) { return a.Append(nil), nil }

// Append appends the answer to an add as JSON.
func (a *AddReply) Append(b []byte) []byte {
	b = append(b, `{"timer":"`...)
	b = a.Timer.AppendTo(b)
	b = quoteTime(append(b, `","due":`...), a.Due)
	b = strconv.AppendBool(append(b, `,"duplicate":`...), a.Duplicate)
	b = quote(append(b, `,"state":`...), a.State.String())
	b = appendOptional(b, `,"remark":`, a.Remark)
	return append(b, '}')
}

// appendOptional appends a member whose text is not empty.
func appendOptional(b []byte, name, text string) []byte {
	if text == "" {
		return b
	}
	return quote(append(b, name...), text)
}

// quoteTime appends a time in RFC 3339, UTC, with milliseconds.
func quoteTime(b []byte, t time.Time) []byte {
	return append(appendTime(append(b, '"'), t.UnixMilli()), '"')
}

// appendValue appends a value as JSON, or null if it cannot be encoded.
func appendValue(b []byte, v any) []byte {
	text, err := marshal(v)
	if err != nil {
		return append(b, "null"...)
	}
	return append(b, bytes.TrimSuffix(text, []byte("\n"))...)
}

// marshal is json.Marshal without the escapes for HTML.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// milliTime is a time whose JSON always has milliseconds; time.Time omits trailing zeros.
type milliTime time.Time

// MarshalJSON implements json.Marshaler.
func (t milliTime) MarshalJSON() ([]byte, error) { return quoteTime(nil, time.Time(t)), nil }

// IsZero is for the JSON option omitzero.
func (t milliTime) IsZero() bool { return time.Time(t).IsZero() }

// MarshalJSON implements json.Marshaler.
func (d DeadInfo) MarshalJSON() ([]byte, error) {
	type plain DeadInfo // without this method
	return marshal(struct {
		plain
		Scheduled milliTime `json:"scheduled,omitzero"`
		Died      milliTime `json:"died"`
	}{plain(d), milliTime(d.Scheduled), milliTime(d.Died)})
}

// MarshalJSON implements json.Marshaler.
func (r RejectedInfo) MarshalJSON() ([]byte, error) {
	type plain RejectedInfo // without this method
	return marshal(struct {
		plain
		Rejected milliTime `json:"rejected"`
	}{plain(r), milliTime(r.Rejected)})
}
