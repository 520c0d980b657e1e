// Package belfry is the Go client of Belfry, durable timers on NATS JetStream.
//
// A timer is a CloudEvent with a due time. When it is due, Belfry publishes the event to
// timers.fired.<service> and calls the callback that it names: a worker of this package, a
// NATS subject, or a URL.
//
//	c, err := belfry.Connect(ctx, "nats://127.0.0.1:4222")
//	...
//	e := event.New()
//	e.SetID("order-17")
//	e.SetSource("/shop")
//	e.SetType("order.timeout")
//	receipt, err := c.Add(ctx, e, belfry.After(15*time.Minute), belfry.ToWorker("orders"))
//
// # Adding timers
//
// [Client.Add] stores one timer and returns its due time. [Client.AddAsync] and
// [Client.AddBatch] store many. Options set the event's timer attributes; the last option
// wins, also over an attribute of the event. [At] and [After] give the due time, both here
// and in [Client.Reschedule].
//
// Adds are idempotent: the source and id of the event identify the timer, and adding the
// same event again changes nothing. So repeat an add whose error is [ErrUnavailable], which
// may or may not have been stored.
//
// # Handling timers
//
// [Client.Work] runs a [Handler] for each timer that was added with [ToWorker]. Belfry keeps
// the timer until a handler succeeds, retries it by the timer's policy, and records the
// outcome, which [Client.Get] returns. [Client.Handle] reads the stream of fired events
// instead: use it where several programs each need every event.
//
// Delivery is at least once. A handler that must not act twice deduplicates by the
// idempotency key, [Firing.Key].
//
// # Errors
//
// Errors of the client match one of the Err variables with errors.Is. They are of type
// [*Error], whose Code is stable. A call without a deadline in its context takes at most
// [DefaultRequestTimeout]. Credentials in URLs are redacted in all errors.
//
// A [Client] and all values of this package are safe for concurrent use.
package belfry
