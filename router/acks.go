package router

import (
	"sync"
	"time"
)

// ackHold is how long the newest add is held back at most, far below the
// consumer's ack wait.
const ackHold = 200 * time.Millisecond

// acks acknowledges adds of the stream, all but the newest at once. A work queue
// that is emptied makes nats-server remove the file behind it and create the next
// one, dearer than all else that is done for an add: with the queue drained as
// fast as it fills, that happened after every batch. So the newest stays until a
// newer one is acknowledged, or none has come for a while. If the process dies
// meanwhile it is delivered again, and found to be a duplicate.
type acks struct {
	send func(*add)
	hold time.Duration

	mu     sync.Mutex
	newest *add
	timer  *time.Timer
	closed bool
}

func newAcks(send func(*add), hold time.Duration) *acks {
	return &acks{send: send, hold: hold}
}

func (k *acks) ack(a *add) {
	if out := k.swap(a); out != nil {
		k.send(out)
	}
}

// swap keeps the newer of a and what is held, and returns what may go.
func (k *acks) swap(a *add) *add {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || k.newest != nil && a.seq <= k.newest.seq {
		return a
	}
	out := k.newest
	k.newest = a
	if k.timer == nil {
		k.timer = time.AfterFunc(k.hold, k.flush)
	} else {
		k.timer.Reset(k.hold)
	}
	return out
}

// flush acknowledges what is held.
func (k *acks) flush() {
	k.mu.Lock()
	out := k.newest
	k.newest = nil
	k.mu.Unlock()
	if out != nil {
		k.send(out)
	}
}

// close acknowledges what is held; nothing is held back from then on.
func (k *acks) close() {
	k.mu.Lock()
	k.closed = true
	if k.timer != nil {
		k.timer.Stop()
	}
	k.mu.Unlock()
	k.flush()
}
