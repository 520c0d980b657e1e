// Package router validates adds and carries out operations on timers. It is free of transport:
// package natsapi serves it on timers.add and timers.api, package httpapi over HTTP.
//
// # Guarantees
//
//   - The outcome of an add is Stored or Duplicate only after JetStream has acknowledged
//     the record and its index entry.
//   - An event that is added twice is one timer: the repeated add is a duplicate. Another timer
//     under the same source and id is a conflict.
//   - A rejected add of the stream is on timers.rejected with its bytes, its headers and
//     the reason before its outcome is Rejected. No input stops or crashes the router, or
//     makes it loop.
//   - A cancel or reschedule that returns no error has changed the record by
//     compare-and-set: the timer does not fire (as it was) after that.
//
// # How it works
//
//	AddAll   (groups of TIMERS_ADD) ──┐
//	                                  ├─▶ batcher ─▶ validate ─▶ Writer.Write ─▶ Receiver.Settle
//	AddAsync (callers who wait) ──────┘                (register, dedup check, create, repair)
//
//	Cancel, Reschedule ─▶ Operations: read, change, compare-and-set
//	DeadReplay         ─▶ read the letter, write the record, delete the letter
//
// Writer and Operations hold the decisions. They wait only in the interfaces that they are
// given, and read no clock but the one given, so the simulation (internal/sim) drives the
// same code. Service adds what a process needs: batches, admission control, time-outs,
// metrics and logs.
//
// Adds whose callers wait are grouped by what is queued while earlier groups are written, so a single add is written at
// once. Where the server syncs every write, adds of the stream that are not due soon may wait for others; see linger.go.
// An operation on a timer that is not found waits for adds that are on their way, and looks again; see
// Operations.AwaitAdds. Cancels that come many at a time take a fast path; see fastcancel.go.
//
// # Failures
//
// Admission control (MaxAdds, MaxOperations, MaxSlowOperations) refuses operations beyond
// its limits with unavailable, before they have any effect. An operation that takes longer
// than OperationTimeout returns unavailable and may have taken effect.
//
// If the store is full or silent, the outcome of adds is Delayed. A circuit breaker per
// shard keeps adds of other shards going. If a router dies, the server delivers its
// unacknowledged adds to another router, and the records that it may have written make
// them duplicates. If such an add comes back only after its timer has fired, concluded and
// expired, the dedup check finds its event in TIMERS_FIRED.
package router
