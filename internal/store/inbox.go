package store

import (
	"context"
	"sync"
	"time"

	"github.com/belfryio/belfry/internal/pause"
)

// Bounds of an Inbox's retries.
const (
	// reopenPause is the first pause before a lost consumer is made again. It doubles up
	// to reopenPauseMax.
	reopenPause    = 100 * time.Millisecond
	reopenPauseMax = 2 * time.Second
	// readSteady is how long a reader must have worked for its failure to start with
	// reopenPause again.
	readSteady = 10 * time.Second
)

// Inbox is one router's access to TIMERS_ADD. It delivers adds, reopens the routers'
// consumer when it is lost, and removes finished adds from the stream (see bulkAcker).
type Inbox struct {
	adds   *Adds
	from   door
	acker  *bulkAcker
	reader *AddReader
}

// OpenInbox creates the routers' consumer of timers.add if necessary and starts to read it.
// The caller must call Close. Errors: schemas.ErrUnavailable.
func (a *Adds) OpenInbox(ctx context.Context) (*Inbox, error) { return a.openInbox(ctx, defaultDoor) }

// OpenTenantInbox is OpenInbox for the adds of tenants. The store must have Config.Tenants.
func (a *Adds) OpenTenantInbox(ctx context.Context) (*Inbox, error) {
	return a.openInbox(ctx, tenantDoor)
}

func (a *Adds) openInbox(ctx context.Context, from door) (*Inbox, error) {
	r, err := a.readAdds(ctx, from, addsExpiry)
	if err != nil {
		return nil, err
	}
	in := &Inbox{adds: a, from: from, reader: r}
	in.acker = newBulkAcker(in.ackOne, func(ctx context.Context, seqs []uint64) (uint64, error) { return a.removeAdds(ctx, from, seqs) })
	a.readers.Add(1)
	return in, nil
}

func (in *Inbox) ackOne(a *Add) {
	if err := a.ack(); err != nil {
		in.adds.log.Warn().Err(err).Uint64("sequence", a.Seq).Msg("add stored but not acknowledged; it is redelivered as a duplicate")
	}
}

// Read passes groups of 1 to most adds to handle until ctx ends, in the stream's order. handle should block while it has
// enough adds: Read then asks for no more. A second goroutine passes stranded adds (readStranded), out of order, so handle
// must be safe for concurrent use. Read is called once, by one goroutine.
func (in *Inbox) Read(ctx context.Context, most int, handle func([]*Add)) {
	var stranded sync.WaitGroup
	defer stranded.Wait()
	stranded.Go(func() { in.readStranded(ctx, most, handle) })
	wait := reopenPause
	for in.reader != nil {
		started := time.Now()
		some, err := in.readUntilError(ctx, most, handle)
		in.handleRest(most, handle)
		if ctx.Err() != nil {
			return
		}
		if some || time.Since(started) > readSteady {
			wait = reopenPause
		}
		in.reopen(ctx, err, &wait)
	}
}

// readUntilError reads until the reader or ctx ends, and reports whether there were adds.
func (in *Inbox) readUntilError(ctx context.Context, most int, handle func([]*Add)) (some bool, err error) {
	for {
		group, err := in.reader.Next(ctx, most)
		if len(group) > 0 {
			some = true
			in.pass(group, handle)
		}
		if err != nil {
			return some, err
		}
	}
}

// handleRest ends the reader and handles the adds that have arrived. Left unacknowledged
// they would be redelivered only after RouterAckWait.
func (in *Inbox) handleRest(most int, handle func([]*Add)) {
	rest := in.reader.Rest()
	in.reader = nil
	for len(rest) > 0 {
		n := min(len(rest), most)
		in.pass(rest[:n:n], handle)
		rest = rest[n:]
	}
}

func (in *Inbox) pass(group []*Add, handle func([]*Add)) {
	for _, a := range group {
		a.inbox = in
		in.acker.delivered(a)
	}
	in.adds.arrivals.deliver(group)
	handle(group)
}

// reopen makes another reader after an error, unless ctx ends first.
func (in *Inbox) reopen(ctx context.Context, err error, wait *time.Duration) {
	for in.reader == nil {
		in.adds.log.Warn().Err(err).Str("consumer", in.from.consumer).Msg("reading adds failed; retrying")
		if !pause.For(ctx, *wait) {
			return
		}
		for !in.adds.jet.Conn().IsConnected() { // the connection's own handler logs this
			if !pause.For(ctx, reopenPause) {
				return
			}
		}
		*wait = min(2**wait, reopenPauseMax)
		if in.reader, err = in.adds.readAdds(ctx, in.from, addsExpiry); err != nil {
			in.reader = nil
		}
	}
}

// Close removes the finished adds that are still buffered. Adds finished later are
// acknowledged one by one. It must be called after Read has returned.
func (in *Inbox) Close() {
	if in.reader != nil { // Read was not called
		in.reader.Rest()
		in.reader = nil
	}
	in.acker.close()
	in.adds.readers.Add(-1)
}
