// Package bench measures Belfry, and beside it the message schedules of nats-server: adds per
// second, lateness, bursts, sustained rates with and without callbacks, cancels, schedules, and the
// cost of pending timers and of services without work. Comparison measures both systems in turns;
// Table compares the figures of Belfry with required values; Growth measures how cost grows.
// Command belfry-bench runs any of them; `belfry bench` runs only Quick. Package report draws the
// results.
//
// # From outside
//
// The system under test has processes of its own, and the clients are in another process and
// connect over TCP. Config.InProcess runs server, node and clients in one process instead, without
// TCP; Quick does that, too. An in-process client saves system calls and context switches that no
// deployment saves, so such a result is marked wherever it is printed, and is no figure to publish.
//
// # Systems under test
//
// A workload reaches the system under test only through the interface system (system.go): add,
// cancel, the stream of fired events, an account of the others. It is the same code for Belfry and
// for the peer (peer.go), with the same events, connections and windows. Both run on the server
// library of this program, with the same sync settings. The floor (floor.go) is a third system: only
// the JetStream operations of Belfry's data model.
//
//	workload  what is timed                                  how it can mislead
//	add       from the first publish to the last             acknowledged is not able to fire: Belfry's
//	          acknowledgement, and until every add is a       router still has to store the timer, which
//	          stored timer                                    "timers stored" includes. Of a peer both are
//	                                                          the same moment
//	singles   each answer, from the call, or with a rate      without a rate a slow system is asked less
//	          from the planned start                          often, so its slow moments count less
//	steady    from the due time to the arrival at a           the clients share the CPUs with the system.
//	          subscriber, and to the stream's timestamp       With Ahead nothing is added meanwhile, which
//	                                                          is the easier case
//	burst     from the instant to the first and the last      the last arrival includes the subscriber's own
//	          arrival                                         work; "by the stream" does not
//	cancel    each answer; the rate is over all callers       a peer's cancel is a purge: it leaves no record
//	                                                          of what happened to the timer, Belfry's does
//	pending   resident memory above that of the empty         memory that the system may reuse counts, as it
//	          system, at Settle after the adds and after a    does for the machine; the least of it depends
//	          restart; the time from the start of the         on when the Go runtime returns it. A file
//	          killed processes until a timer that was due     cache outside the process does not count
//	          meanwhile has fired
//	day,      from the due time to the final record           peers have no record and no callbacks, so they
//	callback                                                  have no such figure
//
// The load of others is measured in every run: the busy time of the machine without that of the
// run's own processes, once for the measurement and once for the whole run.
//
// # Guarantees
//
// Each run accounts for every timer that it added. It fails if a timer is missing, fired twice
// or early, or if a timer's record is not in the expected state. A run takes the fired events
// from their stream (account.go) and the states from the records (records.go), or for a peer from
// the messages that wait. The live subscriber only measures times.
//
// A run measures lateness twice, both times from the due time in the event. The subscriber takes
// the time at which the event arrives, by this machine's clock. The stream gives the time at which
// it stored the event, by the server's clock. If the server is on another machine, the first value
// is only as exact as the two clocks agree.
//
// # Deployments
//
// The measured node has an embedded server (the default), one nats-server process, or three of
// them and three replicas (deploy.go); a peer has one nats-server process or three. The program
// that uses this package defines how to start these processes (Config.Child). A run ends them on
// every path, and they end by themselves when this process dies, because their standard input does.
//
// # Adding a workload
//
// A workload is one file with a type that implements Workload, and a line in Workloads. Run
// receives an Env. It starts or connects to the system (Env.Start), adds timers (Adder), watches
// them fire (Watch), shows progress, and returns a Result.
package bench
