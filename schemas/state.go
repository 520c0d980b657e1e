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
	// StatePaused means that the timer waits, and fires only after a resume.
	StatePaused State = 7
	// StateCompleted is final: the schedule has no run left.
	StateCompleted State = 8
)

var stateNames = [...]string{
	StatePending: "pending", StateDelivered: "delivered", StateRetrying: "retrying", StateSuccess: "success",
	StateFail: "fail", StateCancelled: "cancelled", StatePaused: "paused", StateCompleted: "completed",
}

// transitions lists, for each state, the states that may follow it.
var transitions = map[State][]State{
	0:              {StatePending},
	StatePending:   {StatePending, StateDelivered, StateFail, StateCancelled, StatePaused, StateCompleted},
	StateDelivered: {StateDelivered, StateRetrying, StateSuccess, StateFail, StateCompleted},
	StateRetrying:  {StateRetrying, StateDelivered, StateSuccess, StateFail, StateCancelled},
	StateFail:      {StateRetrying},
	StatePaused:    {StatePaused, StatePending, StateFail, StateCancelled, StateCompleted},
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

// Final reports whether the state is success, fail, cancelled or completed. A record in a
// final state expires after the retention time. It has no event, unless it is that of a
// schedule.
func (s State) Final() bool {
	return s == StateSuccess || s == StateFail || s == StateCancelled || s == StateCompleted
}

// Waits reports whether a timer in state s counts as a pending timer: it has a due time ahead,
// or waits for a resume.
func (s State) Waits() bool { return s == StatePending || s == StatePaused }

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
	return 0, Errorf(CodeBadRequest, "unknown state %.40q; use pending, delivered, retrying, success, fail, cancelled, paused or completed", word)
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
