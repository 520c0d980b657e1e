package schemas

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"strconv"
)

// TimerID identifies a timer. It is the first 128 bits of the SHA-256 of the event's
// source and id, which identify an event in CloudEvents (spec 1.0.2, "source + id is unique
// for each distinct event"). The hash is cryptographic, so nobody can construct an event
// whose timer id collides with another timer's.
type TimerID [16]byte

// TimerIDLength is the length of a timer id as text, in characters.
const TimerIDLength = 26

// idEncoding is lower-case base32hex: valid as one subject token, and in the order of the
// bytes.
var idEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

// NewTimerID returns the timer id of an event. The hash begins with the length of source,
// so that different pairs of source and id never have the same input.
func NewTimerID(source, id string) TimerID {
	var array [256]byte
	buf := binary.BigEndian.AppendUint64(array[:0], uint64(len(source)))
	buf = append(buf, source...)
	buf = append(buf, id...)
	sum := sha256.Sum256(buf)
	return TimerID(sum[:16])
}

// ParseTimerID parses a timer id. Its errors have CodeInvalidTimerID.
func ParseTimerID(s string) (TimerID, error) {
	var id TimerID
	if len(s) != TimerIDLength {
		return id, Errorf(CodeInvalidTimerID, "timer id %.40q has %d characters; a timer id has %d", s, len(s), TimerIDLength)
	}
	if n, err := idEncoding.Decode(id[:], []byte(s)); err != nil || n != len(id) || id.String() != s {
		return TimerID{}, Errorf(CodeInvalidTimerID, "timer id %q is not base32hex (0-9, a-v)", s)
	}
	return id, nil
}

// String returns the timer id as TimerIDLength characters, valid as one subject token.
func (id TimerID) String() string {
	var dst [TimerIDLength]byte
	idEncoding.Encode(dst[:], id[:])
	return string(dst[:])
}

// AppendTo appends String.
func (id TimerID) AppendTo(dst []byte) []byte { return idEncoding.AppendEncode(dst, id[:]) }

// IsZero reports whether id is the zero value.
func (id TimerID) IsZero() bool { return id == TimerID{} }

// MarshalText implements encoding.TextMarshaler.
func (id TimerID) MarshalText() ([]byte, error) { return id.AppendTo(nil), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *TimerID) UnmarshalText(b []byte) error {
	got, err := ParseTimerID(string(b))
	if err != nil {
		return err
	}
	*id = got
	return nil
}

// MsgID returns the Nats-Msg-Id of a run, which is also the idempotency key of its
// callback. It is the same across retries, owners and restarts.
func (id TimerID) MsgID(run uint32) string { return string(id.appendMsgID(nil, run)) }

// RetryMsgID returns the Nats-Msg-Id of a retry that the scheduler publishes to
// SubjectRetry.
func (id TimerID) RetryMsgID(run, attempt uint32) string {
	return string(strconv.AppendUint(append(id.appendMsgID(nil, run), '.'), uint64(attempt), 10))
}

func (id TimerID) appendMsgID(dst []byte, run uint32) []byte {
	if dst == nil {
		dst = make([]byte, 0, TimerIDLength+22)
	}
	return strconv.AppendUint(append(id.AppendTo(dst), '.'), uint64(run), 10)
}
