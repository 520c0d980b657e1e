// Package quota counts what the pending timers of services with a limit use (flow.Limit.Counts): how
// many there are, how many of these are schedules, the bytes of their events, and the services of a tenant that
// have any. A Tally counts in the owner of each shard, a Ledger in each router. It is pure.
//
//	tail of the shard ─▶ Tally ── once a second ─▶ key pending.<shard> (Count) ─▶ Ledger ─▶ admit or refuse
//	                      ▲ one scan                                               ▲
//	                 the owner of the shard                          the router's own adds since
//
// A timer is pending in the states pending and paused (schemas.State.Waits). A schedule is one
// timer; its runs, retries and events that wait for a slot or for their turn are none. Only adds are
// refused: an update of a schedule may make its event larger than the limit permits, and the next add is refused.
//
// An owner publishes the services that use most, a few thousand a shard; of the others it publishes the sums of
// each tenant, so a tenant's sums are complete. The number of a tenant's services counts only the former.
//
// # What holds
//
// A Ledger adds the adds that its router has admitted to the published numbers, until a number
// includes them: a Count states the last record that it includes, and each add has a sequence in
// the same stream. So one router alone never exceeds a limit. It does not know the adds of other routers
// until their number is published, so these may exceed the limit by what they admit in that time. A Count is
// late, never wrong: when nothing changes any more, every Ledger has the exact number.
//
// A new owner begins with a scan, and publishes when the tail has come to the end of the scan (Tally.Settled). Until it has published, the Ledgers use the last Count of the
// previous owner, and their own adds since.
package quota
