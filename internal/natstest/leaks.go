package natstest

import "go.uber.org/goleak"

// ServerLeaks (work-around 17, docs/internals/nats-server.md) are goroutines that nats-server itself leaves behind now and then
// when it stops (2.15.2): a file store that was made while its stream was removed,
// as a replica's or by a start that was cut off, or that held an atomic batch which
// was cut off, and the clock that it keeps running. A package that has either hands them to goleak.
func ServerLeaks() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*msgBlock).flushLoop"),
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
	}
}
