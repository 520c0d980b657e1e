package schemas

import (
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
)

// Limits bounds what an add may ask for. The zero value of a field means its default.
type Limits struct {
	MaxPayload     int           // bytes of headers and data together; default 1 MiB less room for Belfry's own headers
	MaxHorizon     time.Duration // furthest due time from the add; default 10 years
	MaxAttempts    uint32        // default 1000
	MaxTimeout     time.Duration // of one callback attempt; default 15 min
	MaxBackoff     time.Duration // cap of the backoff; default 24 h
	AllowPlainHTTP bool
}

// Spec is what an event's timer attributes ask for, validated, defaults filled in.
type Spec struct {
	Timer                   TimerID
	EventID, Source, Type   string
	DueMs                   int64 // Unix milliseconds
	Service, Group          string
	Callback                string // "" means: only publish
	MaxAttempts             uint32
	BackoffFirst, BackoffTo time.Duration
	Timeout                 time.Duration
	Hash                    [16]byte
}

// Fired is what Belfry adds to an event when it is due.
type Fired struct {
	ScheduledMs, FiredMs int64
	Run, Attempt         uint32
}

// ParseAdd validates an add as published to timers.add or timers.api.add and
// returns the body to keep and what it asks for. addedMs is the time from which
// timerafter counts.
func ParseAdd(hdr nats.Header, data []byte, addedMs int64, lim Limits) (Body, Spec, error) {
	panic("replaced by the schemas work")
}

// ParseFired reads back a message from timers.fired or timers.retry.
func ParseFired(hdr nats.Header, data []byte) (*event.Event, Spec, Fired, error) {
	panic("replaced by the schemas work")
}

// Message encodes the body as it is published when due: the user's event plus
// timerscheduled, timerfired, timerrun and timerattempt.
func (b Body) Message(f Fired) (nats.Header, []byte) {
	panic("replaced by the schemas work")
}

// Event decodes the body.
func (b Body) Event() (*event.Event, error) { panic("replaced by the schemas work") }

// EncodeEvent encodes an event for publishing in the given mode.
func EncodeEvent(e event.Event, mode Mode) (nats.Header, []byte, error) {
	panic("replaced by the schemas work")
}
