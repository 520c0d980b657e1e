// Package bench measures Belfry: adds a second, lateness, bursts, what is kept up
// with and without callbacks, cancels, what pending timers cost, and all of it in
// one table. Command belfry-bench runs all of it, `belfry bench` the few runs of Quick.
// Package report draws the results.
//
// # Guarantees
//
// Each run accounts for every timer that it added. It fails, however good its figures
// look, if a timer is missing, fired twice or early, or if its record is not in the
// expected state. What fired is what TIMERS_FIRED
// holds (account.go), what was concluded is what the records say (records.go); the
// live subscriber only takes times.
//
// Lateness is measured twice, always from the due time that the timer asked for:
// by a subscriber of timers.fired on a connection of its own, when the event
// arrives, and by the timestamp that JetStream gave the event in TIMERS_FIRED.
// The first is by this machine's clock, so with a server elsewhere it is only as
// good as the two clocks agree; the second is by the server's alone.
//
// # What is measured on
//
// A node in this process, on an embedded server (the default), on a nats-server
// process, or on three with three replicas (deploy.go). The pending workload kills
// the node, so there the node is a process, too. A program that uses this
// package says how these processes are started (Config.Child): children end with the
// run, and servers also when this process dies.
//
// # Adding a workload
//
// A workload is one file: a type with Name, About and Run, and a line in
// Workloads. Run is handed an Env, which has a running Belfry (Env.Start) or the
// address of one, adds timers (Adder), watches them fire (Watch), shows progress
// and collects a Result.
package bench
