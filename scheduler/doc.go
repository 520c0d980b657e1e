// Package scheduler fires timers. It owns shards, writes their clocks, reads timers ahead
// of their due times, and publishes the events of due timers.
//
// # Parts
//
//   - Core (core.go, readahead.go, fire.go, schedule.go, completion.go, recount.go, newer.go, undeliverable.go) makes
//     the decisions for one shard: Step(now, event) returns the actions to take. It does no
//     I/O, has no goroutine and reads no clock, so a simulation can run thousands of them.
//   - Coordinator (coordinator.go) decides for one node which shards to take and to release.
//     Lease (lease.go) decides how long a node may fire a shard. Both are pure like Core.
//     Assign (assign.go) spreads shards over nodes.
//   - Term (term.go, perform.go, performruns.go, renew.go) is the loop around a core and a lease during one
//     period of ownership. It carries out actions against the store and returns the results
//     as events. It has no goroutine: a driver calls Turn.
//   - termLoop (shard.go) drives a term with goroutines. The simulation drives the same term
//     with its only goroutine.
//   - CoordinatorLoop (coordinatorloop.go) is the loop around the coordinator: it reads
//     membership snapshots, takes shards, and requests releases. coordinatorDriver drives it.
//   - Sweeper (sweep.go) audits the records behind the low watermark. Each term runs one.
//   - inspector (inspect.go) looks for lost messages and damaged records during a term.
//   - Scheduler (scheduler.go) is the part that a node starts and stops.
//
// # The clock
//
// clock.<shard> holds {time, owner, epoch, tail}. A compare-and-set of this key, once a
// heartbeat interval, is the lock: the node that wrote it last owns the shard until its lease
// expires. time is the low watermark: no record due before it waits to be fired, except
// records that the tail has not delivered yet. tail is the applied offset, a sequence of the
// shard's stream: every record up to it is in a tick after time, or done. Both together are
// the whole recovery state of a new owner.
//
//	           clock released, or unchanged for a lease
//	standby ───────────────────────────────────────▶ owner ──┐ CAS every heartbeat
//	   ▲  ▲                                            │ ▲ ▲───┘
//	   │  │             CAS lost: deposed              │ │ renewed
//	   │  └────────────────────────────────────────────┤ │
//	   │                                               ▼ │
//	   └───────────────── CAS lost ────────────── suspended  (lease expired, store does not answer)
//
// Shards are assigned to the live nodes: their presence states that they schedule, and has
// changed within a lease. All nodes compute the same assignment. If a shard has been assigned
// to another node for two heartbeats, its owner hands it over: it stops firing, waits for its
// writes in flight, and writes a released clock. The other node meanwhile reads the clocks
// often. A node that leaves announces it first, and then hands over all its shards. If the
// assigned node does not take over a shard within a delay, the other live nodes try in rank
// order.
//
// A node measures how long a clock has been unchanged from when it saw the last change, and
// only while its own heartbeats succeed. While the store has no leader, no owner can renew
// and all owners are suspended. When the store answers again, they have a whole lease to
// renew.
//
// An owner trusts its lease from the start of its last successful write, on the monotonic
// clock, less a margin. A suspended owner fires nothing. If its next CAS succeeds, no other
// node has owned the shard in between, and it resumes.
//
// # The life of an entry in the core
//
//	tail, load ──▶ waiting ──due──▶ ready ──▶ claiming ──▶ publishing ──▶ done
//	                  ▲                          │ CAS lost
//	                  └───── newer record ── rereading
//	   (claimed by an earlier owner) ──▶ dedup check ──▶ publishing, or done
//
// The entries of schedules and of their runs have further states; see schedule.go.
//
// # Guarantees
//
//   - Nothing fires early: an entry is due only when the lower bound of the cluster's time
//     has reached its due time.
//   - A claim (compare-and-set pending → delivered) precedes every publish, so an
//     acknowledged cancel never fires. After a crash between claim and publish, the next
//     owner searches timers.fired for the events of claims of earlier epochs, and publishes
//     a missing event with the same message id.
//   - A claim without an answer may be stored later, even after a reread has found the revision before it and
//     the core has claimed that revision again (extra.unclearMs). So may a claim that was refused because of its revision,
//     if a server refused it that led the stream before. Only one of the two claims can be stored, and its event is published.
//   - A service with many due timers does not delay another: due entries wait in a queue per
//     service, and the queues are served round robin.
//   - Every queue is bounded: entries by MaxLoaded (the read-ahead stops, then the tail),
//     writes in flight by MaxInflight. The claims of a burst begin with few in flight; see
//     claimwindow.go.
//   - In a burst the events come before the final records. A final record waits while due timers of its
//     shard wait for their claims. It waits for ten seconds at most while another shard of the node is
//     claiming due timers. While timers of its shard fire and claims are slow, it waits until the oldest one in the
//     queue is half a second old. Bounds and exceptions are in completion.go and backlog.go.
//
// # Failures
//
// If the store does not answer, nothing fires and nothing is lost: entries stay in memory,
// writes are retried with backoff, and the low watermark does not move. A damaged record is
// skipped, logged and counted; it never stops the shard. A record of a newer format holds the
// low watermark back, but other timers of the shard fire: see newer.go.
package scheduler
