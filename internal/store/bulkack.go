package store

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

// Bounds of a bulkAcker.
const (
	// flushDelay is how long finished adds are collected before a flush.
	flushDelay = 100 * time.Millisecond
	// newestHold bounds how long the newest finished add stays in the buffer; see bulkAcker.
	newestHold = 300 * time.Millisecond
	// maxGapWait bounds how long a finished add waits for older, unfinished adds. It must
	// stay below RouterAckWait.
	maxGapWait = 2 * time.Second
	// minPurge is the smallest run worth a purge, which costs the server about ten fsyncs.
	minPurge = 32
	// flushSize is the number of buffered adds that starts a flush at once, before flushDelay.
	flushSize = 2048
	// maxBuffered bounds the buffer. It must stay far below RouterMaxAckPending.
	maxBuffered = 8192
	// maxPurgeAge is the oldest buffered add that may still be purged by sequence. After
	// a power loss the server reuses the sequences of unsynced messages, so a process
	// that was paused for longer must not purge by sequence.
	maxPurgeAge = 5 * time.Second
	// sharedFor is how long adds are acknowledged one by one after the last sign that another
	// router shares the stream.
	sharedFor = 5 * time.Second
	// purgeTimeout bounds a purge; after it the adds are acknowledged one by one.
	purgeTimeout = time.Second
)

// bulkAcker removes finished adds from TIMERS_ADD.
//
// Acknowledging a work-queue message costs the server one write and one fsync, as much as
// the add itself. bulkAcker therefore buffers finished adds and purges the oldest
// contiguous run of them with one request. When another router shares the stream, the
// sequences delivered here have gaps, and no run is contiguous; bulkAcker then acknowledges
// adds one by one.
//
// The newest finished add stays in the buffer until a newer add is finished, or for
// newestHold, so that a purge seldom empties the stream: then nats-server (2.15.2) would
// remove the message file and create the next one (work-around 4).
//
// If the process dies with a full buffer, the server redelivers those adds and the router
// recognises them as duplicates.
type bulkAcker struct {
	ackOne func(*Add)
	// purge removes the oldest messages of the stream up to the first message that is not in
	// the given sequences, which rise. It returns the last sequence that is removed; see
	// Adds.removeAdds.
	purge func(context.Context, []uint64) (through uint64, err error)

	flushing sync.Mutex // serialises flushes

	mu       sync.Mutex
	buffer   []finishedAdd
	timer    *time.Timer // non-nil while a flush is scheduled
	urgent   bool        // the scheduled flush starts at once
	closed   bool
	newest   uint64    // greatest sequence delivered here
	sharedAt time.Time // when the last gap was delivered here
}

// finishedAdd is an add that its router has finished.
type finishedAdd struct {
	*Add
	at time.Time // when it was finished
}

func newBulkAcker(ackOne func(*Add), purge func(context.Context, []uint64) (uint64, error)) *bulkAcker {
	return &bulkAcker{ackOne: ackOne, purge: purge}
}

// delivered notices gaps between the adds delivered to this router. Call it for each add in
// the order of delivery.
func (b *bulkAcker) delivered(a *Add) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.Seq <= b.newest || a.Deliveries > 1 {
		return
	}
	if b.newest != 0 && a.Seq != b.newest+1 {
		b.sharedAt = time.Now()
	}
	b.newest = a.Seq
}

// ack removes a finished add from the stream, at once or with a later flush.
func (b *bulkAcker) ack(a *Add) {
	now := time.Now()
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		b.ackOne(a)
		return
	}
	out := b.add(finishedAdd{a, now})
	b.mu.Unlock()
	if out != nil {
		b.ackOne(out)
	}
}

// add buffers a finished add. It returns an add that the caller must acknowledge, or nil.
// b.mu is held.
func (b *bulkAcker) add(f finishedAdd) *Add {
	var out *Add
	if n := len(b.buffer); n > 0 && !b.sharedAt.IsZero() && f.at.Sub(b.sharedAt) < sharedFor {
		// Another router shares the stream: keep only the newest add in the buffer.
		last := &b.buffer[n-1]
		if f.Seq <= last.Seq {
			return f.Add
		}
		out, *last = last.Add, f
	} else {
		b.buffer = append(b.buffer, f)
	}
	if b.timer == nil {
		b.timer = time.AfterFunc(flushDelay, func() { b.flush(false) })
	}
	if len(b.buffer) >= flushSize && !b.urgent {
		b.urgent = true
		b.timer.Reset(0)
	}
	return out
}

// flush removes finished adds from the stream. Unless all is set, it keeps in the buffer the
// newest add, for newestHold, and adds that wait for older ones, for maxGapWait.
func (b *bulkAcker) flush(all bool) {
	b.flushing.Lock()
	defer b.flushing.Unlock()
	b.mu.Lock()
	if b.timer != nil {
		b.timer.Stop()
	}
	adds := b.buffer
	b.buffer, b.timer, b.urgent = nil, nil, false
	b.mu.Unlock()
	now := time.Now()
	adds = slices.DeleteFunc(adds, func(f finishedAdd) bool {
		old := now.Sub(f.at) >= maxPurgeAge
		if old {
			b.ackOne(f.Add)
		}
		return old
	})
	slices.SortFunc(adds, func(x, y finishedAdd) int { return cmp.Compare(x.Seq, y.Seq) })
	var keep []finishedAdd
	if n := len(adds); n > 0 && !all && now.Sub(adds[n-1].at) < newestHold {
		keep, adds = append(keep, adds[n-1]), adds[:n-1]
	}
	if len(adds) < minPurge {
		b.ackEach(adds)
	} else {
		keep = append(b.purgeRun(adds, now, all), keep...)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buffer = append(keep, b.buffer...); len(b.buffer) > 0 && b.timer == nil {
		b.timer = time.AfterFunc(flushDelay, func() { b.flush(false) })
	}
}

func (b *bulkAcker) ackEach(adds []finishedAdd) {
	for _, f := range adds {
		b.ackOne(f.Add)
	}
}

// purgeRun purges the oldest contiguous run of the stream. Adds after the run wait for an older,
// unfinished add: purgeRun returns them, or acknowledges them if they have waited long enough.
func (b *bulkAcker) purgeRun(adds []finishedAdd, now time.Time, all bool) (keep []finishedAdd) {
	seqs := make([]uint64, 0, len(adds))
	for _, f := range adds {
		seqs = append(seqs, f.Seq)
	}
	ctx, cancel := context.WithTimeout(context.Background(), purgeTimeout)
	defer cancel()
	through, err := b.purge(ctx, slices.Compact(seqs))
	if err != nil {
		// The purge may have taken effect. Acknowledging a removed message does no harm.
		b.ackEach(adds)
		return nil
	}
	for _, f := range adds {
		switch {
		case f.Seq <= through:
		case all || len(adds) >= maxBuffered || now.Sub(f.at) >= maxGapWait:
			b.ackOne(f.Add)
		default:
			keep = append(keep, f)
		}
	}
	return keep
}

// close empties the buffer. Later adds are acknowledged at once.
func (b *bulkAcker) close() {
	b.mu.Lock()
	b.closed = true
	if b.timer != nil {
		b.timer.Stop()
	}
	b.mu.Unlock()
	b.flush(true)
}
