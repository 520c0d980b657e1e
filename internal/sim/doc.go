// Package sim runs whole lives of timers, on whole clusters, in virtual time, from
// one seed: the decisions are those of production, all else is made up.
//
// # What is real
//
// scheduler's Core, Keeper, Tenure, Sweeper and wheel, router's Writer, Operations and
// circuit breakers, clustertime's Estimator,
// schemas' records and transitions, functions' policy. They are pure, so they can
// be called here as their shells call them in production.
//
// # What is simulated
//
//   - The servers and package store's calls: package fake, which passes the
//     conformance suite of the real store.
//   - What lies between (net.go): delays, reordering, requests lost before their
//     effect and answers lost after it, replicas that lag, streams without leader.
//   - The nodes (node.go, reign.go, keeping.go): scheduler's shell in a form that
//     one goroutine runs, processes that crash, stop, are paused amid a write, and
//     hosts whose clocks drift and jump.
//   - The acknowledgements of router/natsapi, and the steps of router's fast cancel, which
//     are asynchronous in production (router.go); functions' loop (callback.go); and
//     clients that add, cancel and move timers (client.go).
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
