package schemas

import "time"

// AttrKey names the ordering key of an add: the callbacks of one key and one service are called
// one at a time, in due order. The next waits for the success or the dead letter of the one
// before.
const AttrKey = "timerkey"

// MaxOrderKey bounds an ordering key, in bytes.
const MaxOrderKey = MaxFlowKey

// CheckOrderKey returns an error of CodeInvalidAttribute for a text that is not an ordering key:
// 1 to MaxOrderKey letters, digits and - _ . : @ /.
func CheckOrderKey(key string) error {
	if !validFlow(key, MaxOrderKey, "") {
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

// MaxOrderKeys bounds the keys on a page of timers.api.order.list, because each costs a read of the
// record of its head.
const MaxOrderKeys = 200

// OrderListRequest is the body of timers.api.order.list. Cursor is as in ListRequest.
type OrderListRequest struct {
	// Service selects the keys of one service; empty for all.
	Service string `json:"service,omitempty"`
	// Limit bounds the keys of the page: 1 to MaxOrderKeys, default 100.
	Limit  int    `json:"limit,omitempty"`
	Cursor string `json:"cursor,omitempty"`
}

// OrderListReply is one page of busy ordering keys, the longest unchanged first. Cursor is empty on
// the last page.
type OrderListReply struct {
	Keys   []OrderKeyInfo `json:"keys"`
	Cursor string         `json:"cursor,omitempty"`
}

// OrderKeyInfo describes an ordering key that has events.
type OrderKeyInfo struct {
	Key     string `json:"key"`
	Service string `json:"service"`
	Tenant  string `json:"tenant,omitempty"`
	// Head is the event whose turn it is; nil for none. Then the next begins soon.
	Head *OrderHead `json:"head,omitempty"`
	// Waiting is the number of events that wait behind the head. More is true if there are others,
	// for which the key has no place.
	Waiting int  `json:"waiting"`
	More    bool `json:"more,omitempty"`
}

// OrderHead is the event of an ordering key whose turn it is.
type OrderHead struct {
	Timer TimerID `json:"timer"`
	// ID and Source are the event's; empty if its record cannot be read.
	ID     string `json:"id,omitempty"`
	Source string `json:"source,omitempty"`
	// State is one of the constants below.
	State string `json:"state"`
	// Since is the time since which it has its turn. If a node of an older version keeps the key, it
	// is the time of the last change.
	Since time.Time `json:"since"`
	// Until is the time of the next attempt in state OrderRetrying, and that of the slot in state
	// OrderWaiting if it waits for one of its flow key; otherwise zero.
	Until time.Time `json:"until,omitzero"`
	// Node makes the call in state OrderCalling.
	Node string `json:"node,omitempty"`
	// Attempts of MaxAttempts have ended. Error is that of the last one.
	Attempts    uint32 `json:"attempts,omitempty"`
	MaxAttempts uint32 `json:"maxattempts,omitempty"`
	Error       string `json:"error,omitempty"`
}

// The states of the head of an ordering key.
const (
	OrderCalling  = "calling"  // a node calls it
	OrderRetrying = "retrying" // its last attempt failed, and it waits for the next one
	OrderWaiting  = "waiting"  // its call begins soon, or it waits for a slot of its flow key
	OrderEnded    = "ended"    // it is concluded, and its turn ends soon
	OrderUnknown  = "unknown"  // its record cannot be read
)
