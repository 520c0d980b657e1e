package schemas

import "fmt"

// State is where a timer stands. The numbers are part of the stored record.
type State uint8

// The states; see the package comment for the diagram.
const (
	// StatePending waits in the wheel for its due time.
	StatePending State = 1
	// StateDelivered was claimed by the owner of its shard: it is, or is about
	// to be, on timers.fired.<svc>, and its callback has not concluded.
	StateDelivered State = 2
	// StateRetrying had a failed callback and waits for the next attempt,
	// in the consumer (short delays) or in the wheel (Record.Queued).
	StateRetrying State = 3
	// StateSuccess is final: the callback succeeded, or there was none and the
	// event is on timers.fired.<svc>.
	StateSuccess State = 4
	// StateFail is final: the event is on timers.dead.<svc>.
	StateFail State = 5
	// StateCancelled is final: it never fires.
	StateCancelled State = 6
	// StatePaused waits for a resume; reserved.
	StatePaused State = 7
)

var stateNames = [...]string{
	StatePending: "pending", StateDelivered: "delivered", StateRetrying: "retrying", StateSuccess: "success",
	StateFail: "fail", StateCancelled: "cancelled", StatePaused: "paused",
}

// transitions lists, for each state, the states that may follow it.
var transitions = map[State][]State{
	0:              {StatePending},
	StatePending:   {StatePending, StateDelivered, StateFail, StateCancelled, StatePaused},
	StateDelivered: {StateDelivered, StateRetrying, StateSuccess, StateFail},
	StateRetrying:  {StateRetrying, StateDelivered, StateSuccess, StateFail, StateCancelled},
	StateFail:      {StateRetrying},
	StatePaused:    {StatePending, StateCancelled},
}

// String is the word users see.
func (s State) String() string {
	if int(s) < len(stateNames) && stateNames[s] != "" {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Valid reports whether s is one of the states.
func (s State) Valid() bool { return int(s) < len(stateNames) && stateNames[s] != "" }

// Final reports whether the record has lost its event and waits to expire.
func (s State) Final() bool { return s == StateSuccess || s == StateFail || s == StateCancelled }

// CanBecome reports whether a record in s may be replaced by one in next.
func (s State) CanBecome(next State) bool {
	for _, t := range transitions[s] {
		if t == next {
			return true
		}
	}
	return false
}

// ParseState reads the word.
func ParseState(word string) (State, error) {
	for s, name := range stateNames {
		if name == word && name != "" {
			return State(s), nil
		}
	}
	return 0, Errorf(CodeBadRequest, "state %.40q is unknown; it is one of pending, delivered, retrying, success, fail, cancelled, paused", word)
}

// MarshalText implements encoding.TextMarshaler.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *State) UnmarshalText(b []byte) error {
	got, err := ParseState(string(b))
	if err != nil {
		return err
	}
	*s = got
	return nil
}
