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
//	TIMERS_ADD ──▶ reader ──┐
//	                        ├─▶ batcher ──▶ validate ──▶ store.Create ──▶ done
//	timers.api.add ─────────┘   (whatever waits, up to maxBatch; maxParallel at a time)
//
// Adds are grouped by what waits while earlier groups are being written: an add
// alone is written at once, a flood in large groups. What comes by the stream has
// been answered, and waits up to 2 ms for company if a group has just begun. Cancels that come many at a
// time share a short way; see cancel.go.
//
// # How it fails
//
// If the store is full or silent, adds from the stream wait, unacknowledged, and
// are tried again; callers of the API get the error. A router that dies leaves its
// unacknowledged adds to be delivered again; the record that it may have written
// makes them duplicates. If such an add comes back only after its timer has fired,
// concluded and expired, it is looked up in timers.fired by its message id.
package router
