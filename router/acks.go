package router

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// ackGather is for how long adds that are done are gathered.
	ackGather = 100 * time.Millisecond
	// ackHold is how long the newest add is held back.
	ackHold = 300 * time.Millisecond
	// ackPatience is how long one is held back that others stand before, which are
	// still worked on: below the consumer's ack wait.
	ackPatience = 2 * time.Second
	// ackMin is how many are worth a removal: it costs the server some ten fsyncs.
	ackMin = 32
	// ackSoon are removed without waiting for more. ackMost are held at most, far
	// below the consumer's pending limit.
	ackSoon = 2048
	ackMost = 8192
	// ackStale is how old what is done may be to be removed by its sequence. One
	// that is older was held by a process that stood still; if meanwhile the server
	// lost power, and with it adds that were not synced, their sequences may be those
	// of others by now.
	ackStale = 5 * time.Second
	// ackShared is for how long after others were seen to share the adds they are
	// acknowledged one by one.
	ackShared = 5 * time.Second
	// ackBound is how long a removal may take before adds are acknowledged instead.
	ackBound = time.Second
)

// acks takes adds that are done off the stream. An acknowledgement makes a work
// queue write, and sync, a record of its own for each message: as dear as the
// add itself. So they are gathered, and those that are the stream's oldest, none
// missing between, are removed at once. Where several routers share the adds,
// which is seen from sequences that did not come here, there is always one
// missing: there each is acknowledged by itself.
//
// The newest stays until a newer one is done, or none has come for a while: a
// work queue that is emptied makes nats-server remove the file behind it and
// create the next one. If the process dies meanwhile, what was gathered is
// delivered again, and found to be duplicates.
type acks struct {
	send func(*add)
	// remove takes sequences in rising order, removes those that it may, and
	// returns up to which.
	remove func(context.Context, []uint64) (through uint64, err error)

	// flushing is held while what was gathered is taken off.
	flushing sync.Mutex

	mu     sync.Mutex
	held   []doneAdd
	timer  *time.Timer // set while a flush is due
	soon   bool        // it is due at once
	closed bool

	newest uint64    // that was delivered here
	shared time.Time // when one was last seen that was not
}

// doneAdd is an add that is done, and since when.
type doneAdd struct {
	*add
	since time.Time
}

func newAcks(send func(*add), remove func(context.Context, []uint64) (uint64, error)) *acks {
	return &acks{send: send, remove: remove}
}

// deliver notes an add that the stream has delivered here, in its order.
func (k *acks) deliver(a *add) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if a.seq <= k.newest || a.deliveries > 1 {
		return
	}
	if k.newest != 0 && a.seq != k.newest+1 {
		k.shared = time.Now()
	}
	k.newest = a.seq
}

// ack takes an add off that is done.
func (k *acks) ack(a *add) {
	now := time.Now()
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		k.send(a)
		return
	}
	out := k.hold(doneAdd{a, now})
	k.mu.Unlock()
	if out != nil {
		k.send(out)
	}
}

// hold keeps an add for the next flush. It returns one that goes by itself.
func (k *acks) hold(d doneAdd) *add {
	var out *add
	if n := len(k.held); n > 0 && !k.shared.IsZero() && d.since.Sub(k.shared) < ackShared {
		// All but the newest go.
		last := &k.held[n-1]
		if d.seq <= last.seq {
			return d.add
		}
		out, *last = last.add, d
	} else {
		k.held = append(k.held, d)
	}
	if k.timer == nil {
		k.timer = time.AfterFunc(ackGather, k.flush)
	}
	if len(k.held) >= ackSoon && !k.soon {
		k.soon = true
		k.timer.Reset(0)
	}
	return out
}

// flush takes off what may go.
func (k *acks) flush() { k.takeOff(false) }

func (k *acks) takeOff(all bool) {
	k.flushing.Lock()
	defer k.flushing.Unlock()
	k.mu.Lock()
	if k.timer != nil {
		k.timer.Stop()
	}
	held := k.held
	k.held, k.timer, k.soon = nil, nil, false
	k.mu.Unlock()
	now := time.Now()
	held = slices.DeleteFunc(held, func(d doneAdd) bool {
		stale := now.Sub(d.since) >= ackStale
		if stale {
			k.send(d.add)
		}
		return stale
	})
	slices.SortFunc(held, func(a, b doneAdd) int { return cmp.Compare(a.seq, b.seq) })
	var keep []doneAdd
	if n := len(held); n > 0 && !all && now.Sub(held[n-1].since) < ackHold {
		keep, held = append(keep, held[n-1]), held[:n-1]
	}
	if len(held) < ackMin {
		k.each(held)
	} else {
		keep = append(k.bulk(held, now, all), keep...)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held = append(keep, k.held...); len(k.held) > 0 && k.timer == nil {
		k.timer = time.AfterFunc(ackGather, k.flush)
	}
}

func (k *acks) each(ds []doneAdd) {
	for _, d := range ds {
		k.send(d.add)
	}
}

// bulk removes what is the stream's oldest. Of what is not, it returns what may
// yet become that.
func (k *acks) bulk(held []doneAdd, now time.Time, all bool) (keep []doneAdd) {
	seqs := make([]uint64, 0, len(held))
	for _, d := range held {
		seqs = append(seqs, d.seq)
	}
	ctx, cancel := context.WithTimeout(context.Background(), ackBound)
	defer cancel()
	through, err := k.remove(ctx, slices.Compact(seqs))
	if err != nil {
		// It may have taken effect; then acknowledging does nothing.
		k.each(held)
		return nil
	}
	for _, d := range held {
		switch {
		case d.seq <= through:
		case all || len(held) >= ackMost || now.Sub(d.since) >= ackPatience:
			k.send(d.add)
		default:
			keep = append(keep, d)
		}
	}
	return keep
}

// close takes off all that is held; nothing is held back from then on.
func (k *acks) close() {
	k.mu.Lock()
	k.closed = true
	if k.timer != nil {
		k.timer.Stop()
	}
	k.mu.Unlock()
	k.takeOff(true)
}
