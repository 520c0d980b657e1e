package bench

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/schemas"
)

// System is a system under test.
type System string

// The systems under test.
const (
	// Belfry is a node with its server.
	Belfry System = "belfry"
	// NATSSchedules is a nats-server without a node, whose message schedules fire the timers. It
	// is the server library of this program, so both systems run on the same version.
	NATSSchedules System = "nats-schedules"
	// Floor is a process that does only the JetStream operations of Belfry's data model, as a baseline
	// for Belfry; see floor.go.
	Floor System = "floor"
)

// Title returns the name of a system in tables.
func (s System) Title() string {
	switch s {
	case NATSSchedules:
		return "NATS schedules"
	case Floor:
		return "Floor"
	}
	return "Belfry"
}

// system is what the workloads need from a system under test. A workload does not know which
// system it measures, so the same code measures Belfry and its peer.
type system interface {
	// attach prepares the system for a run that has just connected to its server. A run that
	// restarts the server calls it again.
	attach(ctx context.Context) error
	// add returns the message that adds timer n of an adder. JetStream acknowledges it when the
	// add is stored.
	add(a *Adder, n int, dueMs int64) *nats.Msg
	// unstored returns the number of acknowledged adds that are not yet timers that can fire.
	unstored(ctx context.Context) (uint64, error)
	// fired returns the stream and the subject of the events of a service's timers that fired.
	// The service * stands for any.
	fired(service string) (stream, subject string)
	// receive calls handle for each of these events from a sequence of the stream on, when it
	// arrives at a client without acknowledgements.
	receive(ctx context.Context, name, subject string, from uint64, handle nats.MsgHandler) error
	// cancel cancels timer n of an adder. It fails unless the answer says that the timer was
	// pending and will not fire.
	cancel(ctx context.Context, nc *nats.Conn, a *Adder, n int) error
	// follow returns the ledger of the timers 0 to count-1 of an adder, which are to be pending
	// or cancelled at the end. Call it before they are added.
	follow(ctx context.Context, a *Adder, count int, want schemas.State) (ledger, error)
	// known returns the number of timers that are pending, or that have fired.
	known(ctx context.Context) (int, error)
	// explain says what became of timer n of an adder, which did not fire.
	explain(ctx context.Context, a *Adder, n int) (string, error)
}

// ledger accounts for timers that do not fire in a run.
type ledger interface {
	// beside reads what would be gone at the end, concurrently with the run, until account or end.
	beside(ctx context.Context)
	end()
	// account waits until the timers are in the state that the run expects, or none of them
	// changes any more, and counts them.
	account(ctx context.Context, p *progress, v *Verified) error
}

// sut returns the system under test of the run.
func (e *Env) sut() system {
	switch e.System {
	case NATSSchedules:
		return schedulesPeer{e}
	case Floor:
		return floorSystem{e}
	}
	return belfryNode{e}
}

// peer reports whether the run measures another system than Belfry.
func (c *Config) peer() bool { return c.System != "" && c.System != Belfry }

// belfryNode is Belfry as the system under test.
type belfryNode struct{ *Env }

func (b belfryNode) attach(ctx context.Context) error { return b.countShards(ctx) }

func (b belfryNode) add(a *Adder, n int, dueMs int64) *nats.Msg {
	return a.message(schemas.SubjectAdd, n, dueMs)
}

func (b belfryNode) unstored(ctx context.Context) (uint64, error) {
	s, err := b.js.Stream(ctx, schemas.StreamAdd)
	if err != nil {
		return 0, fmt.Errorf("read the state of %s: %w", schemas.StreamAdd, err)
	}
	return s.CachedInfo().State.Msgs, nil
}

func (b belfryNode) fired(service string) (stream, subject string) {
	return schemas.StreamFired, schemas.SubjectFired(service)
}

// receive subscribes to the subject, on which the node publishes to the stream, so every event from
// now on arrives. from does not matter.
func (b belfryNode) receive(ctx context.Context, name, subject string, _ uint64, handle nats.MsgHandler) error {
	_, err := b.subscribe(ctx, name, subject, handle)
	return err
}

func (b belfryNode) cancel(ctx context.Context, nc *nats.Conn, a *Adder, n int) error {
	return cancelOne(ctx, nc, a.Timer(n))
}

func (b belfryNode) follow(ctx context.Context, a *Adder, count int, want schemas.State) (ledger, error) {
	return b.followRecords(ctx, a, count, want)
}

func (b belfryNode) known(ctx context.Context) (int, error) { return b.records(ctx) }

func (b belfryNode) explain(ctx context.Context, a *Adder, n int) (string, error) {
	return b.explainRecord(ctx, a.Timer(n))
}
