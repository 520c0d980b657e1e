// Package jet is the only place in Belfry that knows NATS JetStream: its API
// subjects, headers, error codes and consumers. It knows nothing of timers. Package
// store builds records, leases and events on it.
//
// # Parts
//
//	Connection     state and bounds of one connection, translation of errors
//	Writes         publishes and compare-and-sets; publisher pipelines them with one inbox
//	               for all answers, committer gathers writes of a stream into atomic batches
//	Reads          messages of the leader, of any replica (direct get), of a whole stream
//	Readers        Reader, the pull reader of every consumer; Follow and Watch on it; ownFollower,
//	               which takes what this client has written from memory
//	StreamAdmin    create, change, delete and describe streams
//	ConsumerAdmin  the same for consumers
//	Copies         copies of whole streams, for backups
//	Client         all of these
//
// # Types of NATS
//
// Conn and Header are aliases of types of nats.go. The program makes the connection, with
// options that are no concern of this package, and callbacks over NATS and the micro service
// use it too. Header is a map that is sent as it is: a type of its own would have to be
// converted, or be a conversion in disguise, at every write.
//
// StreamConfig, StreamInfo and ConsumerInfo are aliases of types of jetstream: the JSON of
// the server's API, with some sixty fields, of which the store compares all (doctor) and sets
// many. A copy would have to follow each version of the server. Nothing on the firing path
// uses them. All other types are this package's own.
//
// # Guarantees
//
// A call that returns nil was acknowledged by JetStream. A call that returns
// ErrUnavailable may or may not have taken effect. Every write is a compare-and-set
// or carries a message id, so the caller may read and try again.
//
// When the connection breaks, calls in flight fail at once, and calls made while it is
// down fail before anything is sent: no write comes through minutes later from a
// client's buffer. (In the instant in which it breaks a call may still reach that
// buffer, unless the connection was made with nats.ReconnectBufSize(-1).)
//
// Writes of one stream keep their order as long as none of them fails. Reads by direct
// get may be answered by any replica and may be stale; only a compare-and-set decides.
//
// # Failures
//
// Errors wrap one of ErrWrongRevision, ErrNotFound, ErrExists, ErrFull, ErrTooLarge,
// ErrBadHeader, ErrRefused and ErrUnavailable; an error of a cancelled context stays
// context.Canceled. Options.MapError turns them into the errors of the package above.
//
// A request that reaches a stream without a leader is never answered, not even by the
// leader that is elected a moment later. Everything that may be repeated is therefore
// sent again (quirk_hedge.go) long before Options.Timeout.
//
// Some code exists only because of a defect of nats-server: the files quirk_*.go, and
// places that name the number of a work-around. docs/internals/nats-server.md lists them
// all, and quirk_test.go shows each defect on a real server.
//
// The package needs nats-server 2.11 or later, 2.12 for batch commit; it is tested
// against 2.15.2.
package jet
