package jet

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// ownWindow is the period in which the follower counts messages. After a window with manyOwn writes of this client it
	// takes them from memory. After quietWindows windows with fewer than fewOwn it uses a consumer again, because the direct
	// gets then cost about as much.
	ownWindow    = 250 * time.Millisecond
	manyOwn      = 50
	fewOwn       = 25
	quietWindows = 4
	// The follower also returns to the consumer if direct gets find more than manyForeign messages in a window, or if it
	// waits for missing messages for more than longBlocked of it.
	manyForeign = 25
	longBlocked = 0.5
	// ownPause is the least time before it then takes writes from memory again. The pause doubles up to maxOwnPause, unless
	// the follower took writes from memory for ownSteady.
	ownPause    = 10 * time.Second
	maxOwnPause = 5 * time.Minute
	ownSteady   = time.Minute
	// ownBatch is the number of writes that a follower takes from memory at a time.
	ownBatch = 256
	// foreignPace is the time between two direct gets while nothing shows that a message is missing. While a write of this
	// client has no acknowledgement it is busyPace: that acknowledgement will show what is missing before it. A direct get
	// would wait in the server until the write is stored, and so would all direct gets that follow it on the connection.
	foreignPace = 10 * time.Millisecond
	busyPace    = 100 * time.Millisecond
	// gapPatience is how long a follower waits for the acknowledgement that closes a gap between kept writes, before it
	// makes a direct get.
	gapPatience = 2 * roundPace
	// lookPatience bounds the time of one direct get.
	lookPatience = followHeartbeat * silentHalfBeats / 2
)

// ownFollower follows a stream to which this client writes often and others seldom.
//
//	     ┌──── this client writes much ─────────────────────────────────────┐
//	     │                                                                  ▼
//	consumer                                                   memory, and direct gets
//	     ▲                                                                  │
//	     └──── it writes little; others write much; the memory is full; ────┘
//	           direct gets are slow or fail; the connection breaks
//
// A consumer costs CPU in the server and the client for each message (ADR 31). From memory the follower delivers the
// messages that this client has written, in the order of their sequences. A missing sequence may belong to another
// client, to a write of this client that is not kept or not acknowledged yet, or to no message. The follower then asks
// the stream, by direct get, for its next message of any subject. It also does so every foreignPace, because a last
// message of another client leaves no gap.
//
// The stream remains the authority. The follower skips a sequence only if the stream returns a message with a later
// one: the messages before it are then read or removed. A "not found" proves nothing, because the server also gives it
// for a message that it cannot read. If it arrives while a kept write waits behind a gap, the follower returns to the
// consumer. A replica that is behind also answers "not found". Streams with replicas are read with a consumer only.
//
// The messages from memory have neither Time nor Header. Revisions that were replaced before they were delivered may be
// present.
type ownFollower struct {
	c      *Readers
	own    *ownWrites
	stream string
	after  *uint64 // the last sequence that was delivered or skipped
	fn     func(*Msg)
	// holds says that this follower uses the kept writes. Another follower of the stream has a consumer meanwhile.
	holds bool
	// broken is set when the connection breaks after read has begun. A server that has lost its last writes then gives
	// their sequences to others.
	broken atomic.Bool

	// notBefore is the earliest time at which the follower may take writes from memory. pause is the last pause.
	notBefore time.Time
	pause     time.Duration
	// since is the beginning of the present window; sent is the number of own writes then.
	since time.Time
	sent  uint64
}

// read follows with a consumer, and then from memory, until a consumer is better.
func (f *ownFollower) read(ctx context.Context, o ReaderOptions) error {
	f.broken.Store(false)
	forget, ok := f.c.conn.OnBreak(func() {
		f.broken.Store(true)
		f.own.end()
	})
	if !ok {
		return f.c.conn.DownError("follow " + f.stream)
	}
	defer forget()
	defer f.release()
	f.newWindow(time.Now())
	if err := f.c.follow(ctx, o, f.own.filter(), f.after, f.onConsumed); err != nil || f.broken.Load() {
		return err
	}
	info, err := f.c.streams.Stream(ctx, f.stream)
	if err != nil {
		return err
	}
	begun, quiet := time.Now(), false
	if info.Config.Replicas <= 1 {
		quiet, err = f.readOwn(ctx)
	}
	if !f.broken.Load() {
		f.setPause(quiet, begun, time.Now())
	}
	return err
}

// setPause sets when the follower may take writes from memory again, after it did so from begun to now.
func (f *ownFollower) setPause(quiet bool, begun, now time.Time) {
	switch {
	case quiet:
		f.pause = 0
	case now.Sub(begun) >= ownSteady:
		f.pause = f.own.pause
	default:
		f.pause = min(max(2*f.pause, f.own.pause), maxOwnPause)
	}
	f.notBefore = now.Add(f.pause)
}

// onConsumed delivers a message of the consumer. It returns false when the messages after it are in memory.
func (f *ownFollower) onConsumed(m *Msg) (more bool) {
	f.fn(m)
	if f.broken.Load() || f.holds && f.own.advance(m.Sequence) {
		return false
	}
	now := time.Now()
	past := now.Sub(f.since)
	if past < ownWindow {
		return true
	}
	busy := f.newWindow(now) >= manyOwn && past < 2*ownWindow // else it was quiet meanwhile
	switch {
	case !busy:
		f.release()
	case f.own.keeps.Load():
	case f.holds: // the memory is full: the consumer is far behind
		f.release()
		f.notBefore = now.Add(f.own.pause)
	case now.After(f.notBefore):
		f.begin(m.Sequence + 1)
	}
	return true
}

// begin begins to keep the writes from a sequence on, unless another follower uses them.
func (f *ownFollower) begin(next uint64) {
	if !f.own.inUse.CompareAndSwap(false, true) {
		return
	}
	f.holds = true
	if f.own.begin(next); f.broken.Load() {
		f.own.end()
	}
}

// release leaves the kept writes to other followers.
func (f *ownFollower) release() {
	if f.holds {
		f.holds = false
		f.own.end()
		f.own.inUse.Store(false)
	}
}

// newWindow begins a window, and returns the number of own writes in the one before.
func (f *ownFollower) newWindow(now time.Time) (sent uint64) {
	before := f.sent
	f.since, f.sent = now, f.own.sent.Load()
	return f.sent - before
}

// readOwn takes writes from memory, and makes direct gets for other messages, until a consumer is better. quiet is true
// if it stops because there are few own writes.
func (f *ownFollower) readOwn(ctx context.Context) (quiet bool, err error) {
	r := ownReading{f: f, buf: make([]ownWrite, 0, ownBatch), timer: time.NewTimer(time.Hour)}
	defer r.timer.Stop()
	f.newWindow(time.Now())
	f.own.takeLate()
	for ctx.Err() == nil {
		took, gap, ok := f.own.take(r.buf[:0])
		if !ok {
			return false, nil
		}
		for i := range took {
			f.deliver(&took[i])
		}
		clear(took)
		now := time.Now()
		r.progress(len(took) > 0, gap, now)
		if r.tooMany() {
			return false, nil
		}
		if now.Sub(f.since) >= ownWindow {
			if r.slow(now) {
				return false, nil
			}
			if r.nextWindow(now); r.quiet >= quietWindows {
				return true, nil
			}
		}
		switch {
		case len(took) == cap(took):
		case len(took) > 0 && gap == 0:
			r.rest(ctx)
		default:
			if leave, err := r.wait(ctx, now); leave || err != nil {
				return false, err
			}
		}
	}
	return false, ctx.Err()
}

// deliver delivers an own write.
func (f *ownFollower) deliver(w *ownWrite) {
	*f.after = w.seq
	if w.subject != "" {
		f.fn(&Msg{Subject: w.subject, Sequence: w.seq, Data: w.data})
	}
}

// ownReading is one run of readOwn.
type ownReading struct {
	f     *ownFollower
	buf   []ownWrite
	timer *time.Timer
	// gap is the sequence of the first kept write behind a gap, 0 if there is none. gapped is the time since which the
	// follower waits for a message in it.
	gap    uint64
	gapped time.Time
	// open is the look without an answer, and looked the time of the last look. again says that it has found a message, so
	// that more may follow.
	open   *look
	looked time.Time
	again  bool
	// foreign counts the messages that looks have found in the present window and that were not kept. It includes own
	// writes whose acknowledgement comes later, which tooMany subtracts. blocked is the time in the window that the
	// follower has waited for messages in gaps. quiet is the number of consecutive windows with fewer than fewOwn writes,
	// and windows the number of all.
	foreign        int
	blocked        time.Duration
	quiet, windows int
}

// look is one direct get, of the first message after the last that was delivered or skipped.
type look struct {
	begun  time.Time
	gap    uint64 // ownReading.gap when it began
	answer chan lookAnswer
}

// lookAnswer has the message, or nil if the stream says that it has none.
type lookAnswer struct {
	msg *Msg
	err error
}

// progress takes note of what the last take has returned.
func (r *ownReading) progress(took bool, gap uint64, now time.Time) {
	if r.gap != 0 && (took || gap != r.gap) {
		r.blocked += now.Sub(r.gapped)
		r.gapped = now
	}
	if r.gap == 0 {
		r.gapped = now
	}
	r.gap = gap
}

// tooMany reports whether others have written more in this window than the follower should read by direct gets. The
// first window does not count: writes that were sent before are not kept.
func (r *ownReading) tooMany() bool {
	if r.foreign > manyForeign {
		r.foreign -= r.f.own.takeLate()
	}
	return r.foreign > manyForeign && r.windows > 0
}

// slow reports whether the follower has waited for missing messages for much of the window.
func (r *ownReading) slow(now time.Time) bool {
	blocked := r.blocked
	if r.gap != 0 {
		blocked += now.Sub(r.gapped)
	}
	return blocked.Seconds() > longBlocked*now.Sub(r.f.since).Seconds()
}

// nextWindow begins a window.
func (r *ownReading) nextWindow(now time.Time) {
	r.f.own.takeLate()
	if r.foreign, r.blocked = 0, 0; r.gap != 0 {
		// The gap is still open. progress will add all time since gapped, so subtract the part before this window.
		r.blocked = r.gapped.Sub(now)
	}
	r.windows++
	if r.quiet++; r.f.newWindow(now) >= fewOwn {
		r.quiet = 0
	}
}

// rest keeps the pace of a consumer's rounds: a wake-up for each write would cost more than the write.
func (r *ownReading) rest(ctx context.Context) {
	r.timer.Reset(roundPace)
	select {
	case <-r.timer.C:
	case <-ctx.Done():
	}
}

// wait waits for the next own write or an answer of the stream, at most until the next look is due. leave says that the
// answer ends the reading from memory.
func (r *ownReading) wait(ctx context.Context, now time.Time) (leave bool, err error) {
	next := r.nextLook()
	if r.open == nil && !now.Before(next) {
		r.open = r.f.look(r.gap)
		r.looked, r.again = now, false
		next = r.nextLook()
	}
	var answer chan lookAnswer
	if r.open != nil {
		answer, next = r.open.answer, r.open.begun.Add(lookPatience)
		select {
		case a := <-answer: // it may have come long ago
			return r.onAnswer(a)
		default:
		}
	}
	r.timer.Reset(time.Until(next))
	select {
	case <-r.f.own.wake:
	case a := <-answer:
		return r.onAnswer(a)
	case <-r.timer.C:
		if r.open != nil && len(answer) == 0 {
			return true, r.f.c.conn.mapErr.errorf(ErrUnavailable, "read %s: no answer for %s", r.f.stream, lookPatience)
		}
	case <-ctx.Done():
	}
	return false, ctx.Err()
}

// nextLook returns when the next look is due.
func (r *ownReading) nextLook() time.Time {
	switch {
	case r.again:
		return r.looked
	case r.gap == 0 && r.f.own.open.Load() > 0:
		return r.looked.Add(busyPace)
	case r.gap == 0:
		return r.looked.Add(foreignPace)
	case r.gapped.After(r.looked):
		return r.gapped.Add(gapPatience)
	}
	return r.looked.Add(gapPatience)
}

// onAnswer delivers the message that a look has found. leave is true if there is none, although this client has written
// one.
func (r *ownReading) onAnswer(a lookAnswer) (leave bool, err error) {
	f, gap := r.f, r.open.gap
	r.open = nil
	switch {
	case a.err != nil:
		return true, a.err
	case a.msg == nil:
		return gap > *f.after, nil
	case a.msg.Sequence > *f.after:
		*f.after = a.msg.Sequence
		if !f.own.advance(a.msg.Sequence) {
			r.foreign++
		}
		if f.own.matches(a.msg.Subject) {
			f.fn(a.msg)
		}
		r.gapped, r.again = time.Now(), true
	}
	return false, nil
}

// look asks the stream by direct get. It returns nil if too many calls are in flight.
func (f *ownFollower) look(gap uint64) *look {
	l := &look{begun: time.Now(), gap: gap, answer: make(chan lookAnswer, 1)}
	op, conn := "read "+f.stream, f.c.conn
	ok := conn.pub.getNow(op, "$JS.API.DIRECT.GET."+f.stream, fmt.Appendf(nil, `{"seq":%d,"next_by_subj":">"}`, *f.after+1),
		func(m *nats.Msg) {
			switch status := m.Header.Get(headerStatus); {
			case m.Header.Get(jetstream.SequenceHeader) != "":
				msg, err := directMsg(m)
				if err != nil {
					err = conn.mapErr.wrap(op, err)
				}
				l.answer <- lookAnswer{msg, err}
			case status == "404":
				l.answer <- lookAnswer{}
			default:
				l.answer <- lookAnswer{err: conn.mapErr.errorf(ErrUnavailable, "%s: JetStream answers %s %s", op, status, m.Header.Get(headerDescription))}
			}
		},
		func(_ Ack, err error) { l.answer <- lookAnswer{err: err} })
	if !ok {
		return nil
	}
	return l
}
