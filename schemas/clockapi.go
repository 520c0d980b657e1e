package schemas

import "time"

// This file has the requests and answers of timers.api.clock, which only development nodes serve.

const (
	// DefaultClockSteps is the default of ClockIdleRequest.Max.
	DefaultClockSteps = 1000
	// MaxClockSteps is the maximum of ClockIdleRequest.Max.
	MaxClockSteps = 1_000_000
	// MaxClockTimers bounds the timers in ClockReply.Waiting, and in ClockReply.Endless.
	MaxClockTimers = 10
)

// ClockAdvanceRequest is the body of timers.api.clock.advance.
type ClockAdvanceRequest struct {
	// By is a duration such as 90s, 30d or P30D.
	By string `json:"by"`
}

// ClockToRequest is the body of timers.api.clock.to.
type ClockToRequest struct {
	// At is an RFC 3339 time that is not in the past of the clock.
	At string `json:"at"`
}

// ClockIdleRequest is the body of timers.api.clock.run-until-idle.
type ClockIdleRequest struct {
	// Until is an RFC 3339 time at which the clock stops; empty for none.
	Until string `json:"until,omitempty"`
	// Max is the number of due instants after which the clock stops: 1 to MaxClockSteps, or 0 for
	// DefaultClockSteps.
	Max int `json:"max,omitempty"`
}

// ClockReply describes the clock of a development node after a request.
type ClockReply struct {
	Now time.Time `json:"now"`
	// Frozen is true if the clock stands still between moves.
	Frozen bool `json:"frozen"`
	// Next is the next due time; zero if no timer is due in the future.
	Next time.Time `json:"next,omitzero"`
	// Pending is the number of timers that are due in the future.
	Pending int `json:"pending"`
	// Target is the time to which the request moves the clock; zero for none.
	Target time.Time `json:"target,omitzero"`
	// Steps is the number of due instants that the request has passed, and Fired the number of
	// events that were published to timers.fired meanwhile.
	Steps int `json:"steps"`
	Fired int `json:"fired"`
	// More is true if the move takes longer than one request. The caller continues it with clock.to
	// and Target, or with the same clock.run-until-idle.
	More bool `json:"more,omitempty"`
	// Waiting has the first timers whose callbacks have no result yet, for which the clock waits.
	Waiting []TimerID `json:"waiting,omitempty"`
	// Endless has the first schedules without an end, if Max stopped clock.run-until-idle.
	Endless []TimerID `json:"endless,omitempty"`
	// Stopped is true if Max stopped clock.run-until-idle.
	Stopped bool `json:"stopped,omitempty"`
}
