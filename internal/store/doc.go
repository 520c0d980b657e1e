// Package store is the only place in Belfry that knows JetStream's streams,
// buckets, keys, headers and error codes. Everything above it speaks of timers,
// records, revisions, ticks and clocks.
//
// # Layout
//
//	TIMERS_ADD     timers.add                     work queue, discard new
//	TIMERS_FIRED   timers.fired.*                 limits, max age, discard old, dedup window
//	TIMERS_RETRY   timers.retry.*                 work queue, discard new, dedup window
//	TIMERS_DEAD    timers.dead.*, timers.rejected limits, max age, dedup window
//	KV clock       clock.<shard>  node.<node>  meta
//	KV services    <svc>
//	KV timers_<n>  timer.<timerid>          the record (schemas.Record), the one authority
//	               slot.<slot>.<timerid>    an index entry: "look at that record when slot is due"
//	               meta                     one key that always exists; see LoadTicks
//
// The buckets of timers keep one message a key (history 1), allow per-message
// TTLs and direct gets, and discard new: a full bucket refuses writes.
//
// # What it guarantees
//
// A call that returns nil was acknowledged by JetStream. A call that returns
// schemas.ErrUnavailable may or may not have taken effect; every write is a
// compare-and-set (or idempotent), so the caller may look and try again. Errors
// tell conflicts (ErrRevision), a full stream (schemas.ErrStoreFull) and silence
// (schemas.ErrUnavailable) apart.
//
// The index is written before the record that needs it. So whatever dies in
// between: a record with Queued set always has its index entry, and an entry
// without a matching record is noise that its TTL removes. An entry's TTL ends
// IndexKeep after its tick is due; a scheduler that finds its mark further back
// than IndexKeep/2 loads by ScanQueued, which does not need the index.
//
// Reads of many are direct gets, which any replica may answer: they are hints,
// and only a compare-and-set decides. LoadTicks refuses the answer of a replica
// that is behind a sequence that the caller has already seen.
package store
