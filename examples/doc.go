// Package examples has the Go programs of docs/guides. A test of package test/guides
// compares them with the guides and runs them against a node.
//
//	order    the service of getting-started.md: a web server that is called
//	http     callbacks.md: callbacks over HTTP, with their signatures
//	nats     nats.md: callbacks over NATS
//	worker   workers.md: a worker with the Go client, and its test
package examples
