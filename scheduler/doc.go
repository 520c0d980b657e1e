// Package scheduler fires timers: it owns shards, keeps their clocks, reads
// ahead of them, and publishes what is due.
//
// # Parts
//
//   - Core (core.go, fire.go) is the pure heart of one shard: Step(now, event)
//     returns the actions to take. It does no I/O, owns no goroutine and reads
//     no clock, so a simulation can run thousands of them.
//   - Coordinator (coordinator.go) decides for one node which shards to take and to give
//     back, and Tenure (tenure.go) how long a shard that was taken may be relied
//     on. Both are pure, too. Assign (assign.go) spreads shards over nodes.
//   - Term (term.go, perform.go, renew.go) is the loop around a core and a tenure for
//     one period of ownership: it carries out actions against the store, and brings
//     the answers back as events. It has no goroutine of its own: a driver calls Turn.
//   - termLoop (shard.go) drives a term with goroutines; the simulation drives the same
//     term with its only goroutine.
//   - CoordinatorLoop (coordinatorloop.go) is the same for the coordinator: it reads membership
//     snapshots, takes shards, and requests releases. coordinatorDriver drives it.
//   - Sweeper (sweep.go) audits what is behind the low watermark. A term runs one.
//   - inspector (inspect.go) looks for damage in a shard's stream during a term.
//   - Scheduler (scheduler.go) is what a node starts and stops.
//
// # The clock
//
// clock.<shard> holds {time, owner, epoch, tail}. Moving it by compare-and-set
// once a tick is the lock: the node that last moved it owns the shard until its
// lease runs out. time is the low-water mark: no record at or below it waits to
// be fired, except what the tail has yet to bring. tail is a sequence of the
// shard's stream: every record up to it is in a tick after time, or done. Both
// together are the whole recovery state, so a new owner needs no other.
//
//	           clock released, or silent for a lease
//	standby ───────────────────────────────────────▶ owner ──┐ CAS every tick
//	   ▲  ▲                                            │ ▲ ▲───┘
//	   │  │             CAS lost: deposed              │ │ renewed
//	   │  └────────────────────────────────────────────┤ │
//	   │                                               ▼ │
//	   └───────────────── CAS lost ────────────── suspended  (lease ran out, store silent)
//
// Shards are assigned to the nodes whose presence says that they schedule and that
// have beaten within a lease: all nodes come to the same result by themselves. A
// node that owns what is assigned to another hands it over, once the assignment
// has held for two ticks: it stops firing, waits for its writes in flight, and
// writes a released clock, which the other is by then waiting for. A node that
// leaves says so first, and does the same with all that it owns. If whom a shard
// is assigned to does not come for it, the others do after a while, in turn.
//
// Silence is counted from when a node saw the clock move last, and only while its
// own beats are written: while the store has no leader nobody can renew, owners
// are suspended, and when it is back they have a whole lease to go on.
//
// Trust in a lease runs from when the attempt that won it was started, on the
// monotonic clock, less a margin. A suspended owner fires nothing; if the store
// comes back and its CAS still succeeds, nobody else can have owned the shard in
// between and it goes on.
//
// # The life of an entry in the core
//
//	tail, load ──▶ waiting ──due──▶ ready ──▶ claiming ──▶ publishing ──▶ done
//	                  ▲                          │ CAS lost
//	                  └───── newer record ── rereading
//	   (a claim of an earlier owner) ──▶ confirming ──▶ publishing, or done
//
// # What it guarantees
//
//   - Nothing fires early: an entry is due only when the cluster's time, at its
//     earliest, has reached it.
//   - A claim (compare-and-set pending → delivered) precedes every publish, so
//     an acknowledged cancel never fires. A crash between claim and publish is
//     made good by the next owner: claims of earlier epochs are looked up in
//     timers.fired and published if they are missing, under the same Msg-Id.
//   - One flooding service does not delay another: due entries wait in a queue
//     per service and are claimed in turns.
//   - Every queue is bounded: entries by MaxLoaded (the read-ahead stops, then
//     the tail), writes in flight by MaxInflight.
//
// # How it fails
//
// If the store is silent, nothing fires and nothing is forgotten: entries keep
// their place, writes are tried again with back-off, and the mark stands still.
// A damaged record is skipped, logged and counted; it never stops the shard. A
// record of a newer format holds the clock, but not the shard: see newer.go.
package scheduler
