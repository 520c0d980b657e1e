// Package bench measures Belfry: adds a second, lateness, bursts, and what
// pending timers cost. It is what `belfry bench` runs.
//
// # What it guarantees
//
// A figure is reported only with what it was taken from. Each run accounts for
// every timer that it added: those that are missing, came twice or came early are
// counted and make the run an error, however good its figures look.
//
// Lateness is measured twice, always from the due time that the timer asked for:
// by a subscriber of timers.fired on a connection of its own, when the event
// arrives, and by the timestamp that JetStream gave the event in TIMERS_FIRED.
// The first is by this machine's clock, so with a server elsewhere it is only as
// good as the two clocks agree; the second is by the server's alone.
//
// # Adding a workload
//
// A workload is one file: a type with Name, About and Run, and a line in
// Workloads. Run is handed an Env, which has a running Belfry (Env.Start) or the
// address of one, adds timers (Adder), watches them fire (Watch), shows progress
// and collects a Result.
package bench
