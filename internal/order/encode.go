package order

import (
	"encoding/binary"
	"encoding/json"
	"errors"
)

// storedState is the JSON of a State. Waiting has the events in a row. Each is its timer id and, as
// zig-zag varints, the differences of its two times from the times of the previous event.
type storedState struct {
	Head      []byte `json:"h,omitempty"`
	SinceMs   int64  `json:"s,omitempty"`
	TurnMs    int64  `json:"t,omitempty"`
	Node      string `json:"n,omitempty"`
	UntilMs   int64  `json:"u,omitempty"`
	Waiting   []byte `json:"w,omitempty"`
	Bound     []byte `json:"b,omitempty"`
	NextBound []byte `json:"nb,omitempty"`
	ReopenMs  int64  `json:"r,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (s State) MarshalJSON() ([]byte, error) {
	return json.Marshal(storedState{
		appendEvents(nil, s.Head), s.SinceMs, s.TurnMs, s.Node, s.UntilMs, appendEvents(nil, s.Waiting...),
		appendEvents(nil, s.Bound), appendEvents(nil, s.NextBound), s.ReopenMs,
	})
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *State) UnmarshalJSON(b []byte) error {
	var v storedState
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	*s = State{SinceMs: v.SinceMs, TurnMs: v.TurnMs, Node: v.Node, UntilMs: v.UntilMs, ReopenMs: v.ReopenMs}
	var err error
	if s.Waiting, err = readEvents(v.Waiting); err != nil {
		return err
	}
	for _, x := range []struct {
		from []byte
		to   *Event
	}{{v.Head, &s.Head}, {v.Bound, &s.Bound}, {v.NextBound, &s.NextBound}} {
		one, err := readEvents(x.from)
		if err != nil || len(one) > 1 {
			return errEvents
		}
		if len(one) == 1 {
			*x.to = one[0]
		}
	}
	return nil
}

var errEvents = errors.New("the events of an ordering key are malformed")

// appendEvents encodes events, leaving out zero ones.
func appendEvents(b []byte, events ...Event) []byte {
	var last Event
	for _, e := range events {
		if e.IsZero() {
			continue
		}
		b = append(b, e.ID[:]...)
		b = binary.AppendVarint(b, e.DueMs-last.DueMs)
		b = binary.AppendVarint(b, e.AddedMs-last.AddedMs)
		last = e
	}
	return b
}

// readEvents decodes appendEvents.
func readEvents(b []byte) (out []Event, err error) {
	var last Event
	for len(b) > 0 {
		var e Event
		if len(b) <= len(e.ID) {
			return nil, errEvents
		}
		b = b[copy(e.ID[:], b):]
		for _, x := range []struct {
			to   *int64
			from int64
		}{{&e.DueMs, last.DueMs}, {&e.AddedMs, last.AddedMs}} {
			d, n := binary.Varint(b)
			if n <= 0 {
				return nil, errEvents
			}
			*x.to, b = x.from+d, b[n:]
		}
		if e.IsZero() {
			return nil, errEvents
		}
		out = append(out, e)
		last = e
	}
	return out, nil
}
