// Package router is the way in: it turns what is published to timers.add, and
// what is asked of the NATS micro service "timers", into validated records.
//
// # What it guarantees
//
//   - An add is acknowledged to its stream, or answered, only after JetStream has
//     acknowledged the record and its index entry.
//   - The same event again is one timer: a repeated add is a duplicate, another
//     timer under the same source and id is a conflict.
//   - An add that is refused is on timers.rejected with its bytes, its headers and
//     the reason before it is acknowledged. Nothing that is published can stop,
//     crash or loop the router.
//   - A cancel or reschedule that is answered with success has changed the record
//     by compare-and-set: the timer does not fire (as it was) after that.
//
// # How it works
//
//	TIMERS_ADD ──▶ what came in 2 ms ───┐
//	                                    ├─▶ validate ──▶ store.Create ──▶ done
//	timers.api.add ──▶ whatever waits ──┘   (up to maxBatch; maxParallel groups at a time)
//
// Adds of the stream come in groups 2 ms apart, or less where many wait: whoever
// published them has been answered. One after a pause is written at once. Those of
// the API are grouped by what waits while earlier groups are being written, so
// that one alone is written at once. Cancels that come many at a time share a short way;
// see cancel.go.
//
// # How it fails
//
// If the store is full or silent, adds from the stream wait, unacknowledged, and
// are tried again; callers of the API get the error. A router that dies leaves its
// unacknowledged adds to be delivered again; the record that it may have written
// makes them duplicates. If such an add comes back only after its timer has fired,
// concluded and expired, it is looked up in timers.fired by its message id.
package router
