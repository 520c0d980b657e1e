// Package quota counts the pending timers of services with a limit (flow.Limit.Counts): the timers, the
// schedules among them, the bytes of their events, and the services of each tenant with pending timers.
// The owner of each shard counts with a Tally, each router with a Ledger. The package is pure.
//
//	tail of the shard ─▶ Tally ── once a second ─▶ key pending.<shard> (Count) ─▶ Ledger ─▶ admit or refuse
//	                      ▲ one scan                                               ▲
//	                 the owner of the shard                          the router's own adds since
//
// A timer counts in the states pending and paused (schemas.State.Waits). A schedule counts as one
// timer. Runs, retries, and events that wait for a slot or for their turn do not count. Only adds are
// refused: an update of a schedule may exceed a limit of bytes, and the next add is then refused.
//
// An owner publishes the services with the highest use, a few thousand a shard. For the others it
// publishes one sum for each tenant, so the sums of a tenant are complete. The number of a tenant's
// services counts only the services that are published one by one.
//
// # Guarantees
//
// A Ledger adds the adds of its own router to the published numbers until these include them. A Count
// states the last record that it includes, and each add has a sequence in the same stream. So one
// router alone never exceeds a limit. A router learns of the adds of other routers when an owner
// publishes them, so several routers together may exceed a limit by the adds of that interval. A Count
// may be late, but is never wrong: after the last change, every Ledger gets the exact number.
//
// A new owner begins with a scan, and publishes when the tail has reached the end of the scan
// (Tally.Settled). Until then the Ledgers use the last Count of the previous owner, and their own adds
// since.
package quota
