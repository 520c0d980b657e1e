// Package fake is JetStream as package store uses it, in memory: streams and
// buckets with compare-and-set, TTLs, roll-ups, direct gets that lag, a dedup
// window and consumers' reads.
//
// It has two halves, as the real thing has. Server is what the NATS servers keep:
// every function of it happens at one instant, on one goroutine, and says what the
// leader, or a replica that lags, would answer. Client is package store's own
// calls, made of the same requests in the same order as the real ones. What lies
// between is a Transport: the conformance suite (storetest) uses one that runs
// requests at once, the simulator one that delays, loses and repeats them. So the
// suite that holds the real store to its promises holds this one to them, too.
//
// What it leaves out: bytes (nothing is ever full), and revisions that come back
// after a kill (package store sees to that; it is tested there).
package fake
