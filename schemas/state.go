package schemas

import "fmt"

// State is the state of a timer. The numbers are part of the stored record.
type State uint8

// The states; see the package comment for the diagram.
const (
	// StatePending means that the timer waits in the wheel for its due time.
	StatePending State = 1
	// StateDelivered means that the owner of the shard has claimed the timer: its event is
	// on timers.fired.<svc>, or soon will be, and its callback has no result yet.
	StateDelivered State = 2
	// StateRetrying means that a callback attempt failed, and that the timer waits for the
	// next attempt: in the consumer (short delays) or in the wheel (Record.Queued).
	StateRetrying State = 3
	// StateSuccess is final: the callback succeeded, or the timer has no callback and its
	// event is on timers.fired.<svc>.
	StateSuccess State = 4
	// StateFail is final: the event is on timers.dead.<svc>.
	StateFail State = 5
	// StateCancelled is final: the timer never fires.
	StateCancelled State = 6
	// StatePaused is reserved for paused timers. No operation sets it.
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

// String returns the name of the state in the API.
func (s State) String() string {
	if int(s) < len(stateNames) && stateNames[s] != "" {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Valid reports whether s is one of the states.
func (s State) Valid() bool { return int(s) < len(stateNames) && stateNames[s] != "" }

// Final reports whether the state is success, fail or cancelled. A record in a final state
// has no event, and expires after the retention time.
func (s State) Final() bool { return s == StateSuccess || s == StateFail || s == StateCancelled }

// CanBecome reports whether a record may change from state s to state next.
func (s State) CanBecome(next State) bool {
	for _, t := range transitions[s] {
		if t == next {
			return true
		}
	}
	return false
}

// ParseState parses the name of a state. Its errors have CodeBadRequest.
func ParseState(word string) (State, error) {
	for s, name := range stateNames {
		if name == word && name != "" {
			return State(s), nil
		}
	}
	return 0, Errorf(CodeBadRequest, "unknown state %.40q; use pending, delivered, retrying, success, fail, cancelled or paused", word)
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
