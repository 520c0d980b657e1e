package schemas

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Operation is one control operation on a timer, with its time and its caller.
type Operation struct {
	Kind OperationKind
	// AtMs is the cluster's time, in Unix milliseconds.
	AtMs int64
	Caller
}

// Caller identifies the sender of a request.
type Caller struct {
	// By is the name that the caller states in the request. It is not verified. Only Belfry's
	// own operations have a name that begins with ByBelfry.
	By string
	// Account and User are the caller's NATS account and user according to the server, or
	// empty if the server does not send them.
	Account, User string
}

// Name returns what is known of the sender, in one word: the name that it states, else its
// user, else its account; "" if nothing is known.
func (c Caller) Name() string { return cmp.Or(c.By, c.User, c.Account) }

// ByBelfry begins Caller.By of an operation that Belfry makes itself. CheckBy refuses it.
const ByBelfry = "belfry: "

// OperationKind is a control operation. The numbers are part of the stored record.
type OperationKind uint8

// The control operations.
const (
	OperationCancel     OperationKind = 1
	OperationReschedule OperationKind = 2
	OperationReplay     OperationKind = 3
	OperationPause      OperationKind = 4
	OperationResume     OperationKind = 5
	OperationTrigger    OperationKind = 6
	OperationBackfill   OperationKind = 7
	OperationUpdate     OperationKind = 8
)

var operationNames = [...]string{
	OperationCancel: "cancel", OperationReschedule: "reschedule", OperationReplay: "replay", OperationPause: "pause", OperationResume: "resume",
	OperationTrigger: "trigger", OperationBackfill: "backfill", OperationUpdate: "update",
}

// String returns the name of the operation in the API.
func (k OperationKind) String() string {
	if int(k) < len(operationNames) && operationNames[k] != "" {
		return operationNames[k]
	}
	return fmt.Sprintf("operation(%d)", uint8(k))
}

// Limits of a history. A full history takes about 2 kB; PayloadReserve includes it.
const (
	// MaxHistory is the number of operations that a record keeps; Note drops older ones.
	MaxHistory = 8
	// MaxBy bounds Caller.By, in bytes.
	MaxBy = 128
	// maxPrincipal bounds Caller.Account and Caller.User, in bytes; Note truncates longer
	// names. A public NKEY has 56 bytes.
	maxPrincipal = 64
)

// Note appends an operation to the history and drops the oldest operations beyond
// MaxHistory. It copies the slice, because copies of the record may share it.
func (r *Record) Note(op Operation) {
	keep := r.History[max(0, len(r.History)-MaxHistory+1):]
	op.By, op.Account, op.User = clipText(op.By, MaxBy), clipText(op.Account, maxPrincipal), clipText(op.User, maxPrincipal)
	r.History = append(append(make([]Operation, 0, len(keep)+1), keep...), op)
}

// CheckNote returns an error of CodeBadRequest for an invalid note of a pause: longer than
// MaxPauseNote bytes, or with characters that are not printable.
func CheckNote(note string) error {
	if len(note) > MaxPauseNote {
		return Errorf(CodeBadRequest, "note has %d bytes; the limit is %d", len(note), MaxPauseNote)
	}
	if !utf8.ValidString(note) || note != cleanText(note) {
		return Errorf(CodeBadRequest, "note %.80q has characters that are not printable", note)
	}
	return nil
}

// CheckBy returns an error of CodeBadRequest for an invalid Caller.By: longer than MaxBy
// bytes, with characters that are not printable, or with the prefix ByBelfry.
func CheckBy(by string) error {
	if len(by) > MaxBy {
		return Errorf(CodeBadRequest, "by has %d bytes; the limit is %d", len(by), MaxBy)
	}
	if !utf8.ValidString(by) || by != cleanText(by) {
		return Errorf(CodeBadRequest, "by %.80q has characters that are not printable", by)
	}
	if strings.HasPrefix(by, strings.TrimSpace(ByBelfry)) {
		return Errorf(CodeBadRequest, "by %.80q begins with %q, which marks operations of Belfry itself: use another name", by, strings.TrimSpace(ByBelfry))
	}
	return nil
}

// clipText truncates text to n bytes and replaces control characters.
func clipText(s string, n int) string { return clip(cleanText(s), n) }

// append appends the encoded operation: a byte, a zig-zag varint, three strings.
func (o *Operation) append(dst []byte) []byte {
	dst = binary.AppendVarint(append(dst, byte(o.Kind)), o.AtMs)
	for _, s := range [...]string{o.By, o.Account, o.User} {
		dst = appendString(dst, s)
	}
	return dst
}

// readHistory decodes the value of extension extHistory, and returns false if it is
// malformed.
func readHistory(value []byte) ([]Operation, bool) {
	d := decoder{b: value}
	var ops []Operation
	for len(d.b) > 0 {
		o := Operation{Kind: OperationKind(d.take(1)[0]), AtMs: d.varint()}
		d.strings(&o.By, &o.Account, &o.User)
		if d.bad {
			return nil, false
		}
		ops = append(ops, o)
	}
	return ops, true
}

// OperationInfo is an Operation in the API.
type OperationInfo struct {
	// Op is cancel, reschedule, replay, pause, resume, trigger, backfill or update.
	Op string `json:"op"`
	// At is the cluster's time of the operation, to the millisecond.
	At time.Time `json:"at"`
	// By is the name that the caller stated. It is not verified.
	By string `json:"by,omitempty"`
	// Account is the NATS account of the caller, set by the server for requests from another
	// account. User is the user in that account; the server sets it if the account's import
	// has share: true.
	Account string `json:"account,omitempty"`
	User    string `json:"user,omitempty"`
}

func operations(history []Operation) []OperationInfo {
	if len(history) == 0 {
		return nil
	}
	out := make([]OperationInfo, 0, len(history))
	for _, o := range history {
		out = append(out, OperationInfo{Op: o.Kind.String(), At: TimeOf(o.AtMs), By: o.By, Account: o.Account, User: o.User})
	}
	return out
}
