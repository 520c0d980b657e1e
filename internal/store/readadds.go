package store

import (
	"context"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

// Add is a message of timers.add, delivered to one router. The server redelivers it to any
// router unless Done, Retry or Working is called within RouterAckWait.
type Add struct {
	Header map[string][]string
	Data   []byte
	// Seq is the sequence in TIMERS_ADD; Deliveries counts deliveries, this one included.
	Seq, Deliveries uint64
	// Account is the account of a tenant's add; "" for an add on timers.add.
	Account string
	// Stored is the time at which the stream stored the add, by its leader's clock.
	Stored time.Time
	// Old is true for a stranded add whose timer may have had a record that has expired. The router must write no record
	// for it.
	Old bool

	inbox   *Inbox
	d       delivery
	arrival *arrival
}

// delivery acknowledges, postpones or prolongs one delivery of an add. Implementations: *jet.Delivery, strandedDelivery.
type delivery interface {
	Ack() error
	Nak(after time.Duration) error
	Working() error
}

// Done removes the add from the stream, at once or together with others; see bulkAcker.
func (a *Add) Done() {
	a.settle()
	a.inbox.acker.ack(a)
}

// Working restarts RouterAckWait. If the message is lost, the add is redelivered, which the
// router recognises as a duplicate. It does nothing for a stranded add.
func (a *Add) Working() { _ = a.d.Working() }

// Retry requests a redelivery after a pause. If the request is lost, the redelivery comes
// after RouterAckWait. A stranded add comes again with the next look for such adds.
func (a *Add) Retry(after time.Duration) {
	a.settle()
	_ = a.d.Nak(after)
}

// settle notes that the add is done or put off. Adds of an AddReader without an Inbox have no arrival.
func (a *Add) settle() {
	if a.arrival != nil {
		a.arrival.settled.Store(true)
	}
}

func (a *Add) ack() error { return a.d.Ack() }

// Bounds of an AddReader.
const (
	// addsMost bounds the adds that a reader has requested and not returned yet. A router
	// stores that many well within RouterAckWait, also if the server syncs every write.
	addsMost = 1024
	// addsBytes bounds the bytes of each request.
	addsBytes = 32 << 20
	// addsPace is the minimum time between two groups, unless many adds wait. In groups of
	// two or three an add costs 50 % more, and no client waits for adds of the stream. It
	// adds to the lateness of timers that are due at once.
	addsPace      = 2 * time.Millisecond
	addsExpiry    = 30 * time.Second
	addsHeartbeat = time.Second
)

// AddReader reads the adds that are delivered to one router, in groups. It is for one
// goroutine.
type AddReader struct {
	r    *jet.Reader
	last time.Time // when the last group was read
	// moved is Config.Moved.
	moved func(time.Time) time.Time
}

// door is one of the two consumers of TIMERS_ADD.
type door struct{ consumer, filter string }

var (
	defaultDoor = door{RouterConsumer, schemas.SubjectAdd}
	tenantDoor  = door{TenantConsumer, schemas.SubjectTenantAdd}
)

// ReadAdds creates the consumer of timers.add that all routers share, if it does not exist, and
// starts to read it. Errors: schemas.ErrUnavailable.
func (a *Adds) ReadAdds(ctx context.Context) (*AddReader, error) {
	return a.readAdds(ctx, defaultDoor, addsExpiry)
}

func (a *Adds) readAdds(ctx context.Context, from door, expiry time.Duration) (*AddReader, error) {
	err := a.jet.EnsureDurable(ctx, jet.Durable{
		Stream: schemas.StreamAdd, Name: from.consumer, Filter: from.filter, AckWait: RouterAckWait, MaxAckPending: RouterMaxAckPending,
	})
	if err != nil {
		return nil, err
	}
	r, err := a.jet.Read(jet.ReaderOptions{
		Stream: schemas.StreamAdd, Consumer: from.consumer, Pace: jet.Refill, Most: addsMost,
		// The server never delivers a message larger than the bytes requested.
		MaxBytes: max(addsBytes, 2*a.jet.MaxPayload()), Expiry: expiry, Heartbeat: addsHeartbeat,
	})
	if err != nil {
		return nil, err
	}
	return &AddReader{r: r, moved: a.moved}, nil
}

// Next waits for adds and returns 1 to most of them, in the stream's order. After an error
// (the consumer is lost, or ctx has ended) the caller ends the reader with Rest.
func (r *AddReader) Next(ctx context.Context, most int) ([]*Add, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d, err := r.r.Next(ctx)
	if err != nil {
		return nil, err
	}
	if rest := addsPace - time.Since(r.last); rest > 0 && r.r.Waiting() < most/2 {
		pause.For(ctx, rest)
	}
	r.last = time.Now()
	adds := []*Add{addOf(&d.Msg, d.Deliveries, d, r.moved)}
	for len(adds) < most {
		if d, err = r.r.TryNext(); err != nil || d == nil {
			return adds, err
		}
		adds = append(adds, addOf(&d.Msg, d.Deliveries, d, r.moved))
	}
	return adds, nil
}

// addOf returns the add in a message of TIMERS_ADD.
func addOf(m *jet.Msg, deliveries uint64, d delivery, moved func(time.Time) time.Time) *Add {
	return &Add{Header: m.Header, Data: m.Data, Seq: m.Sequence, Deliveries: deliveries, Account: schemas.TenantAddAccount(m.Subject), Stored: at(moved, m.Time), d: d}
}

// Rest ends the reader and returns the adds that have arrived. The server would redeliver
// them only after RouterAckWait.
func (r *AddReader) Rest() []*Add {
	var adds []*Add
	for _, d := range r.r.Drain() {
		adds = append(adds, addOf(&d.Msg, d.Deliveries, d, r.moved))
	}
	return adds
}
