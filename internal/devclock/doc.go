// Package devclock is the movable clock of a development node ("belfry dev" and package
// belfrytest).
//
// # Where time comes from
//
// All decisions of a node follow one clock, package clustertime: the JetStream leader's time.
// Clock wraps it and applies the moves. The router, the scheduler, functions and the console of a
// development node read Clock instead. Clock.Map converts the times at which the server has stored
// messages, such as the time from which the delay of an add counts.
//
// Some time cannot be moved, because the server measures it: TTLs of keys, ages of messages,
// redelivery delays and the lease of a shard. A development store has such an age only where a
// late expiry is harmless; Mover removes finished records itself when the moved time has passed
// the retention. The time-outs of callbacks also follow real time.
//
// # A move
//
//	settle ──▶ next due time ──▶ write the clock (compare-and-set) ──▶ wake the scheduler ──┐
//	  ▲                                                                                     │
//	  └─────────────────────────────────────────────────────────────────────────────────────┘
//
// Mover settles when every add is stored, every timer that is due has fired, and every callback
// has a result or waits for a later attempt. Only then does it move the clock to the next due
// time. So due times pass in order, and the retries of one attempt come before later timers.
package devclock
