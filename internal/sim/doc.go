// Package sim runs whole lives of timers, on whole clusters, in virtual time, from
// one seed: the decisions are those of production, all else is made up.
//
// # What is real
//
//   - Decisions: scheduler's Core, Coordinator, Lease and wheel, router's Writer, Operations
//     and circuit breakers, clustertime's Estimator, schemas' records and transitions,
//     functions' policy, and the protocol of feeds (feeds.go).
//   - The loop that fires timers: scheduler's Term and Sweeper, with take-over of the
//     tail's position, renewal of the lease, trust, suspension, scans, hand-over, and the
//     order of all of these. term.go drives it with this package's goroutine.
//   - The loop that takes shards and gives them back: scheduler's CoordinatorLoop, driven
//     by coordinator.go.
//   - The forms of a dead letter: store.PublishLetter.
//
// # What is simulated
//
//   - The servers and package store's calls: package fake, which passes the
//     conformance suite of the real store.
//   - What lies between (net.go): delays, reordering, requests lost before their
//     effect and answers lost after it, replicas that lag, streams without leader.
//   - The nodes (node.go): processes that crash, stop, are paused amid a write, and
//     hosts whose clocks drift and jump.
//   - Clients that add, cancel and move timers (client.go).
//
// # What is typed twice
//
// These files repeat loops of production. Change both.
//
//   - tail.go: the ordered consumer below store.Tail, which belongs to nats.go and its
//     server.
//
//   - node.go, heartbeat: clustertime.Service's loop, which is one call and one wait.
//
//   - router.go: the acknowledgements of router/natsapi, and the steps of router's fast
//     cancel, which are asynchronous in production.
//
//   - callback.go, queue.go: functions' loop. It has a goroutine for each message, so there
//     is no stepper yet to share.
//
//   - damage.go, inspect: of the scheduler's inspector (inspect.go), only the call that reports
//     damaged records. It does not look for lost messages, because the fake loses none, and
//     does not count messages for the clock. Tests of package scheduler with real servers
//     cover these.
//
// Everything runs on one goroutine at a time. Code that waits for answers is
// written as it is in production, in coroutines (proc.go), each of which runs only
// when the event that it waits for has come. So one seed is one history.
//
// # What is checked
//
// check.go states section 2 of the design as properties, by name, and the checker
// runs while faults are on. plant.go makes bugs that the checker has to find.
package sim
