// Package fake simulates JetStream, as package store uses it, in memory: streams and buckets
// with compare-and-set, TTLs, roll-ups, direct gets that lag, a dedup window and consumers. The
// real store and this one pass the same conformance suite.
//
// Server is the state of the NATS servers. Its methods run at one instant, on one goroutine,
// and return the answer of the leader or of a replica that lags. Client has the calls of
// package store, made of the same requests in the same order. A Transport carries requests
// from a Client to the Server: that of the conformance suite (storetest) runs them at once,
// that of the simulation delays, loses and repeats them.
//
// It has no size limits except that of a message, so nothing is ever full, and it does not
// reuse sequences after a power loss, which tests of package store cover.
package fake
