package schemas

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"strconv"
)

// TimerID names a timer: the first 128 bits of the SHA-256 of its event's
// source and id, which are CloudEvents' own identity (spec 1.0.2, "source + id
// is unique for each distinct event"). A cryptographic hash is used because the
// two come from strangers: nobody can craft an id that lands on another's timer.
type TimerID [16]byte

// TimerIDLength is the length of the text form.
const TimerIDLength = 26

// lower-case base32hex: one subject token, sorts like the bytes.
var idEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

// NewTimerID derives the timer id. The source's length is hashed first, so that
// no two different pairs have the same input.
func NewTimerID(source, id string) TimerID {
	var room [256]byte
	buf := binary.BigEndian.AppendUint64(room[:0], uint64(len(source)))
	buf = append(buf, source...)
	buf = append(buf, id...)
	sum := sha256.Sum256(buf)
	return TimerID(sum[:16])
}

// ParseTimerID reads the text form.
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

// String is the text form: TimerIDLength characters, one subject token.
func (id TimerID) String() string {
	var dst [TimerIDLength]byte
	idEncoding.Encode(dst[:], id[:])
	return string(dst[:])
}

// AppendTo appends the text form.
func (id TimerID) AppendTo(dst []byte) []byte { return idEncoding.AppendEncode(dst, id[:]) }

// IsZero reports whether id was never set.
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

// MsgID is the Nats-Msg-Id and the callback's idempotency key of one run:
// stable across retries, owners and restarts.
func (id TimerID) MsgID(run uint32) string { return string(id.appendMsgID(nil, run)) }

// RetryMsgID is the Nats-Msg-Id of one retry that waited in the wheel.
func (id TimerID) RetryMsgID(run, attempt uint32) string {
	return string(strconv.AppendUint(append(id.appendMsgID(nil, run), '.'), uint64(attempt), 10))
}

func (id TimerID) appendMsgID(dst []byte, run uint32) []byte {
	if dst == nil {
		dst = make([]byte, 0, TimerIDLength+22)
	}
	return strconv.AppendUint(append(id.AppendTo(dst), '.'), uint64(run), 10)
}
