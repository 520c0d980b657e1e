// Package bench measures Belfry: adds per second, lateness, bursts, sustained rates with and
// without callbacks, cancels, schedules, and the cost of pending timers and of services without
// work. Table compares the figures with required values; Growth measures how cost grows. Command
// belfry-bench runs any of them; `belfry bench` runs only Quick. Package report draws the
// results.
//
// # Guarantees
//
// Each run accounts for every timer that it added. It fails if a timer is missing, fired twice
// or early, or if a timer's record is not in the expected state. A run takes the fired events
// from the stream TIMERS_FIRED (account.go) and the states from the records (records.go). The
// live subscriber only measures times.
//
// A run measures lateness twice, both times from the due time in the event. The subscriber of
// timers.fired takes the time at which the event arrives, by this machine's clock. The stream
// gives the time at which it stored the event, by the server's clock. If the server is on
// another machine, the first value is only as exact as the two clocks agree.
//
// # Deployments
//
// The measured node runs in this process with an embedded server (the default), with one
// nats-server process, or with three of them and three replicas (deploy.go). With Config.Apart,
// and in the workloads pending, services and daily schedules, the node is a separate process too.
// The program that uses this package defines how to start these processes (Config.Child). They
// end with the run; servers also end when this process dies.
//
// # Adding a workload
//
// A workload is one file with a type that implements Workload, and a line in Workloads. Run
// receives an Env. It starts or connects to Belfry (Env.Start), adds timers (Adder), watches
// them fire (Watch), shows progress, and returns a Result.
package bench
