package natstest

import "go.uber.org/goleak"

// ServerLeaks (work-around 17, docs/internals/nats-server.md) are goroutines that nats-server 2.15.2 sometimes leaves behind when it
// stops: the flush loops of a file store that was created while its stream was removed
// (for a replica, or in a start that was interrupted) or that held an incomplete atomic
// batch, and the clock of that store. A package whose tests cause either passes them to
// goleak.
func ServerLeaks() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*msgBlock).flushLoop"),
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
	}
}
