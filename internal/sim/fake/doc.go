// Package fake simulates JetStream, as package store uses it, in memory: streams and buckets
// with compare-and-set, TTLs, roll-ups, direct gets that lag, a dedup window and consumers. The
// real store and this one pass the same conformance suite.
//
// Server is the state of the NATS servers. Its methods take no time, run on one goroutine,
// and return the answer of the leader or of a replica that lags. Client implements the calls
// of package store with the same requests in the same order. A Transport carries requests
// from a Client to the Server. The transport of the conformance suite (storetest) runs them
// at once. The transport of the simulation delays, loses and repeats them.
//
// Two properties of JetStream are missing. The only size limit is the one of a message, so no
// stream is ever full. Sequences are not reused after a power loss; tests of package store
// cover that.
package fake
