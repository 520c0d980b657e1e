// Package sim runs production code on a simulated cluster in virtual time and checks
// Belfry's guarantees while it injects faults. A seed determines a run completely, so a
// seed that fails can be repeated.
//
// # Production code
//
//   - Decisions: scheduler's Core, Coordinator, Lease and wheel; router's Writer, Operations
//     and circuit breakers; clustertime's Estimator; schemas' records and state changes;
//     functions' policy; store.Waker and functions.Rester, the protocol that wakes feeds and
//     puts them to rest (feeds.go).
//   - The loop of a shard's owner: scheduler's Term and Sweeper (term.go). That includes
//     reading the shard's stream, renewing the lease, suspending, scanning and releasing.
//   - The loop that takes and releases shards: scheduler's CoordinatorLoop (coordinator.go).
//   - The forms of a dead letter: store.PublishLetter.
//   - A node's copy of the calendars: store.Calendars, also Run, its loop.
//
// # Simulated
//
//   - The NATS servers and the calls of package store: package fake. The real store and fake
//     pass the same conformance suite.
//   - The network (net.go): delays, reordering, requests lost before they are carried out,
//     answers lost afterwards, replicas that lag, streams without a leader, servers that led
//     a stream and still answer as its leader, also a write that the leader stores.
//   - Nodes (node.go): processes that crash, stop or pause, and hosts with clocks that drift
//     and jump.
//   - Clients (client.go), which add, cancel and reschedule timers.
//   - Damage: clocks that another client overwrites (faults.go), and records that a disk or
//     another client damages (damage.go).
//   - Servers that are killed and bring replaced revisions of records back (returned.go).
//
// # Written twice
//
// These files repeat a loop of production, because it cannot be driven from one goroutine or
// because it belongs to nats.go. A change of one needs the same change of the other.
//
//   - tail.go: the ordered consumer of nats.go, on which store.Tail is built.
//   - node.go, heartbeat: the loop of clustertime.Service. It is one call and one wait. No node has an embedded server,
//     so none reads the wall clock of its host (Service.SameClock).
//   - router.go: the acknowledgements of router/natsapi, and the order of the steps of a fast
//     cancel, which production runs in callbacks.
//   - callback.go, queue.go: the loop of package functions, which has a goroutine for each
//     message.
//   - damage.go, inspect: of the scheduler's inspector (inspect.go), only the call that reports
//     damaged records. The inspector also looks for lost messages, which the fake never loses,
//     and counts messages for the clock. Tests of package scheduler on real servers cover these.
//   - feedserve.go, feedpublish.go: the loops of package functions that rest and serve a feed,
//     the store's watch of the keys, and the call with which the sweeper wakes a feed. Tests of
//     functions, store and scheduler on real servers cover the originals.
//
// # One goroutine
//
// Only one goroutine runs at a time. Code that waits for an answer looks as in production and
// runs in a coroutine (proc.go), which continues when the event that it waits for occurs.
//
// # Checks
//
// check.go names the properties, which are Belfry's guarantees, and checks them while faults
// are active. The other files with checks are damage.go, count.go, newer.go, returned.go, feeds.go
// and feedpublish.go. plant.go and planted_test.go plant bugs that a number of seeds must find.
//
// # Schedules
//
// With Config.Schedules, as in TestSeeds, clients (scheduleclient.go) also add schedules, and
// pause, resume, trigger, update, backfill and delete them by production's Operations. Most of
// these simulations begin shortly before a time zone changes its offset (era.go). Recurrences
// (schedulerule.go) are drawn from random numbers of their own, so the one-shot timers of a seed
// are the same with and without schedules. Their histories differ, because all requests share
// the network.
//
// schedulecheck.go compares each stored revision of a schedule's record with the one before. It
// expands nominal times with package calendar, and uses nothing of package recurrence. It does
// not check that the calendar is right; the oracles of package calendar do.
//
// # Quotas
//
// With Config.Quotas the pending timers of some services are limited, and the limits change while
// timers are added and fire. quotas.go compares the numbers that the owners publish, at the end,
// with the records. Routers do not read the numbers here: package quota simulates that.
//
// # Returned revisions
//
// With Config.Returned, as in TestReturnedTimers, owners keep the lists of ended timers
// (docs/adr/0033-list-of-ended-timers.md). returned.go adds timers that are cancelled, or moved to an
// earlier time, long before they are due. Their final records expire while there are faults. At
// random times a killed server brings waiting revisions of such timers back. Each node then has lost
// its connection once, and some owners die or leave. The owners must delete the revisions within
// returnedBound. Some of the timers are added again, before or after the return, and must fire.
//
// A revision returns only if the list must have its timer: the list has it when the final record
// expires, the shard's clock says so, or an owner had the time to write it (mustList). Outages that
// are longer than the retention are left out, because the list may then lack timers.
//
// # Timers in memory
//
// With Config.Near, as in TestNearTimers, owners keep timers that are due soon in memory
// (docs/adr/0034-timers-due-soon-stay-in-memory.md). A process has memory for two shards. No load may return a revision
// which the tail has passed.
//
// # Calendars
//
// Two seeds of three with schedules (hasCalendars) also have calendars of excluded dates.
// calendars.go has their client, which puts, changes and deletes them by compare-and-set, and all
// versions that were stored. Each node has production's store.Calendars. One to three of the
// schedules exclude calendars, in a zone in which a date begins while the simulation runs.
// schedulecalendars.go checks them. Those schedules have neither jitter nor timerexpect.
//
// # Zone data
//
// In the third seed of three with schedules (hasZones) each process draws one of two releases of
// the zone data, and nodes restart more often, as in an upgrade and back. zones.go has schedules
// with fixed times in a zone that differs between the releases by some seconds, and checks their
// local times. Clients neither update nor backfill those. All other schedules are in zones that
// are the same in both releases: for them the zone data must make no difference.
//
// # Limits of the checks
//
// The number of pending timers that an owner reports is never too high. It may be too low by
// the adds that were rescheduled, cancelled or claimed before the owner's tail read them:
// the tail delivers only the newest revision of such a record, which does not show whether the
// add was counted. To know that, an owner would have to remember each timer that it has
// counted. A count of the shard (scheduler's recount.go) corrects the number. count.go checks
// exactly this.
//
// It may also be too low by the timers that were added again after an earlier revision had returned:
// the owner may learn of the delete of that revision after the next count has begun, and then takes
// the new record for it. An add that finds the returned revision is a duplicate and is not counted.
//
// A revision does not return if it has a later time than the final record, because the leader's clock
// was set back in between: the list does not void it.
//
// A record that is damaged in place is reported when its owner reads it: when the timer is
// due, at a count, or at an audit.
//
// The checker does not know which version of the calendars a decision follows. It accepts each
// version that the decision may have followed. In the time after the last fault and the last
// change it accepts one.
//
// A claim that is decided before the acknowledgement of a calendar may be stored after it, if the
// process is paused between the two. PropExcluded looks at the moment of the decision.
//
// A skip for overlap is right if the run before had no result within 30 s before the skip was
// stored (lookSlack), because the owner's look may be that old while there are faults.
//
// The following changes of store.Waker and functions.Rester have no mutant. The first two break
// no guarantee:
//
//   - WakeFor tries its compare-and-set once instead of wakeTries times: a caller that gets
//     ErrRevision repeats the wake or the publish after a short pause.
//   - Rest ignores that the feed is in use, or was a moment ago: the check that follows at once
//     finds the event and wakes the feed. This costs two writes and a consumer.
//
// The others can delay an event until the scheduler's sweeper wakes the feed (sweep-delay, 10
// minutes by default), if a second part of the protocol fails at the same time. 300 seeds do
// not reach them reliably, which is a gap of this simulation:
//
//   - Publish ignores that the wake before it failed.
//   - Rested ignores a change, or Publish does not read the key again after a late
//     acknowledgement: each makes up for the other, and the checks of functions for both.
//   - The check ends if the feed's floor is unchanged, as if the feed had been awake since.
//   - The last check after store.ServiceGrace does nothing.
//   - A publisher trusts for longer than half of the grace that a feed is awake. (Trust without end
//     is a mutant.)
package sim
