// Package store keeps timers in JetStream. It is the only place that knows Belfry's
// streams, buckets and keys; package jet, below it, knows JetStream itself. Everything
// above store speaks of timers, records, revisions, ticks and clocks.
//
// # Layout
//
//	TIMERS_ADD     timers.add                     work queue, discard new
//	TIMERS_FIRED   timers.fired.*                 limits, max age, discard old, dedup window
//	TIMERS_RETRY   timers.retry.*                 work queue, discard new, dedup window
//	TIMERS_DEAD    timers.dead.*                  limits, max age, discard old, dedup window
//	TIMERS_REJECTED timers.rejected               limits, max age, discard old, dedup window
//	KV clock       clock.<shard>  node.<node>  meta  count.dead
//	               copy.<shard>  copy.meta       earlier states of clocks, and of meta (clock.go)
//	               damage.<shard>                what the owner knows of damage (damage.go)
//	KV services    <svc>
//	KV timers_<n>  timer.<timerid>              the record (schemas.Record), the one authority
//	               slot.<slot>.<a>.<b>.<c>.<d>  an index entry: "look at that record when slot
//	                                            is due"; a to d are the timer id in parts, or a
//	                                            random id where timers share an entry (index.go)
//	               meta                         one key that always exists; see LoadTicks
//
// The buckets of timers allow per-message TTLs and direct gets, and discard new: a
// full bucket refuses writes. New timers are refused earlier, while a part of the
// bucket is left for claims and conclusions of the timers that are in it (room.go).
//
// It needs nats-server 2.11 or later, for per-message TTLs and multi-subject direct
// gets; it is tested against 2.15.2.
//
// # What it guarantees
//
// A call that returns nil was acknowledged by JetStream. A call that returns
// schemas.ErrUnavailable may or may not have taken effect; every write is a
// compare-and-set (or idempotent), so the caller may look and try again. Errors
// tell conflicts (ErrRevision), a full stream (schemas.ErrStoreFull) and silence
// (schemas.ErrUnavailable) apart. When the connection breaks, calls under way fail
// at once, and calls made while it is down fail before anything is sent: nothing
// that was given up comes through later from a client's buffer.
//
// The index is written before the record that needs it. So whatever dies in
// between: a record with Queued set has its index entry, and an entry without a
// matching record is noise that its TTL removes. Only where the entry was lost on
// its way, or refused, and the record was not, is there a record without one; its
// add is not acknowledged then, and the next try puts it right (package router). An entry's TTL ends
// IndexKeep after its tick is due; a scheduler that finds its mark further back
// than IndexKeep/2 loads by ScanQueued, which does not need the index.
//
// Reads of many are direct gets, which any replica may answer: they are hints,
// and only a compare-and-set decides. LoadTicks refuses the answer of a replica
// that is behind a sequence that the caller has already seen.
//
// # What never returns
//
// A record whose last state has expired is gone, also after SIGKILL. That takes
// care, because a revision that a KV bucket drops for its history limit leaves no
// trace in the file: nats-server 2.15.2, killed after the newest revision expired,
// rebuilt the older ones in 2,000 of 2,000 cases, with and without
// sync_interval: always. Here every superseded revision is removed by a roll-up or
// a delete, which the file does record; supersede.go says which and when.
package store
