package schemas

// AttrKey names the ordering key of an add: the callbacks of one key and one service are called
// one at a time, in due order. The next waits for the success or the dead letter of the one
// before.
const AttrKey = "timerkey"

// MaxOrderKey bounds an ordering key, in bytes.
const MaxOrderKey = MaxFlowKey

// CheckOrderKey returns an error of CodeInvalidAttribute for a text that is not an ordering key:
// 1 to MaxOrderKey letters, digits and - _ . : @ /.
func CheckOrderKey(key string) error {
	if !validFlow(key, "") {
		return Errorf(CodeInvalidAttribute, "an ordering key must have 1 to %d letters, digits or any of - _ . : @ /", MaxOrderKey)
	}
	return nil
}

// OrderInfo is the ordering key of a timer, and its wait for its turn.
type OrderInfo struct {
	// Key is the ordering key.
	Key string `json:"key"`
	// Waits is true while the timer waits for its turn; the state is then retrying.
	Waits bool `json:"waits,omitempty"`
	// Head is the timer id of the event whose turn it is; empty if it is not known. Only the
	// answer to get has it, of a timer that waits.
	Head string `json:"head,omitempty"`
	// Deferrals counts how often the timer was put back, for its turn or for a slot of its flow
	// key.
	Deferrals uint32 `json:"deferrals,omitempty"`
}

// orderInfo returns the ordering key of a record; nil without one.
func (r *Record) orderInfo() *OrderInfo {
	if r.Key == "" {
		return nil
	}
	return &OrderInfo{Key: r.Key, Waits: r.AwaitsTurn(), Deferrals: r.Deferrals()}
}
