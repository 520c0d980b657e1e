package natstest

import "go.uber.org/goleak"

// ServerLeaks are goroutines that nats-server itself leaves behind now and then
// when a clustered server stops (2.15.2): a replica's file store that was made
// while its stream was removed, and the clock that it keeps running. A package
// that uses Cluster3 hands them to goleak.
func ServerLeaks() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
	}
}
