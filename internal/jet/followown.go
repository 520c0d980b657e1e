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
	// ownWindow is the time over which a follower counts. With manyOwn writes of this client in a window it begins to
	// take them from memory; after quietWindows windows with less than fewOwn it uses a consumer again. At fewOwn the
	// looks cost about as much as the consumer.
	ownWindow    = 250 * time.Millisecond
	manyOwn      = 50
	fewOwn       = 25
	quietWindows = 4
	// manyForeign is the number of messages of others in a window, and longBlocked the part of it in which the follower
	// waits for missing ones, above which a consumer is better.
	manyForeign = 25
	longBlocked = ownWindow / 2
	// ownPause is how long a follower then uses a consumer, at least. It doubles each time, up to maxOwnPause.
	ownPause    = 10 * time.Second
	maxOwnPause = 5 * time.Minute
	// ownBatch is the number of writes that a follower takes from memory at a time.
	ownBatch = 256
	// foreignPace is the time between two looks into the stream while nothing shows that a message is missing.
	foreignPace = 10 * time.Millisecond
	// gapPatience is how long a follower waits for the acknowledgement that closes a gap between kept writes, before it
	// looks into the stream.
	gapPatience = 2 * roundPace
	// lookPatience bounds the time of one look.
	lookPatience = followHeartbeat * silentHalfBeats / 2
)

// ownFollower follows a stream of which this client writes most messages.
//
//	     ┌──── this client writes much ─────────────────────────────────────┐
//	     │                                                                  ▼
//	consumer                                                       memory, and looks
//	     ▲                                                                  │
//	     └──── it writes little; others write much; the memory is full; ────┘
//	           looks are slow or fail; the connection breaks
//
// A consumer costs the server and the client 8 to 12 µs a message. From memory the follower passes the messages that
// this client has written, in the order of their sequences. A sequence that is missing there is a message of another
// client, a message without an acknowledgement yet, or none: the follower looks into the stream, by direct get, for the
// next message of any subject. It also looks every foreignPace, for what only others write.
//
// The stream remains the authority. The follower passes over a sequence only if the stream has given it a message with a later
// one, whose predecessors are therefore read or removed. It does not do so because the stream says that it has nothing: the
// server says that as well if it cannot read a message. Such an answer behind a gap ends the reading from memory. A replica that is behind
// answers later or not at all, but not with a later message. Nevertheless streams with replicas are read with a consumer.
//
// The messages from memory have neither Time nor Header. Revisions that were replaced before they were passed may be present.
type ownFollower struct {
	c              *Readers
	own            *ownWrites
	stream, filter string
	after          *uint64 // the last sequence that has passed
	fn             func(*Msg)
	// holds says that this follower uses the kept writes. Another follower of the stream has a consumer meanwhile.
	holds bool
	// broken is set when the connection breaks after read has begun. A server that has lost its last writes then gives
	// their sequences to others.
	broken atomic.Bool

	// notBefore is when the follower may take writes from memory, and pause the time that it waits next.
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
	if err := f.c.follow(ctx, o, f.filter, f.after, f.passed); err != nil {
		return err
	}
	info, err := f.c.streams.Stream(ctx, f.stream)
	if err != nil {
		return err
	}
	quiet := false
	if info.Config.Replicas <= 1 {
		quiet, err = f.readOwn(ctx)
	}
	if quiet {
		f.pause = 0
	} else {
		f.pause = min(max(2*f.pause, ownPause), maxOwnPause)
	}
	f.notBefore = time.Now().Add(f.pause)
	return err
}

// passed passes a message of the consumer. It returns false when the messages after it are in memory.
func (f *ownFollower) passed(m *Msg) (more bool) {
	f.fn(m)
	if f.holds && f.own.pass(m.Sequence) {
		return false
	}
	if now := time.Now(); now.Sub(f.since) >= ownWindow && f.newWindow(now) >= manyOwn && now.After(f.notBefore) {
		f.begin(m.Sequence + 1)
	}
	return true
}

// begin begins to keep the writes from a sequence on, unless another follower uses them.
func (f *ownFollower) begin(next uint64) {
	if !f.holds && !f.own.taken.CompareAndSwap(false, true) {
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
		f.own.taken.Store(false)
	}
}

// newWindow begins a window, and returns the number of own writes in the one before.
func (f *ownFollower) newWindow(now time.Time) (sent uint64) {
	before := f.sent
	f.since, f.sent = now, f.own.sent.Load()
	return f.sent - before
}

// readOwn takes writes from memory, and looks into the stream for other messages, until a consumer is better. quiet
// says that this is so because there are few writes.
func (f *ownFollower) readOwn(ctx context.Context) (quiet bool, err error) {
	r := ownReading{f: f, buf: make([]ownWrite, 0, ownBatch), timer: time.NewTimer(time.Hour)}
	defer r.timer.Stop()
	f.newWindow(time.Now())
	for ctx.Err() == nil {
		now := time.Now()
		took, gap, ok := f.own.take(r.buf[:0])
		if !ok {
			return false, nil
		}
		for i := range took {
			f.pass(&took[i])
		}
		clear(took)
		r.progress(len(took) > 0, gap, now)
		switch {
		case r.tooMany():
			return false, nil
		case now.Sub(f.since) >= ownWindow:
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

// pass passes an own write.
func (f *ownFollower) pass(w *ownWrite) {
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
	// foreign counts the messages in the present window that looks have found and this client has not written, and blocked
	// the time that the follower has waited for messages in gaps. quiet counts the last windows with few writes.
	foreign int
	blocked time.Duration
	quiet   int
}

// look is a question to the stream: its first message after those that have passed.
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

// tooMany reports whether others have written more in this window than the follower should read by looks.
func (r *ownReading) tooMany() bool {
	if r.foreign > manyForeign {
		r.foreign -= r.f.own.takeLate()
	}
	return r.foreign > manyForeign
}

// slow reports whether the follower has waited for missing messages for much of the window.
func (r *ownReading) slow(now time.Time) bool {
	if r.gap != 0 {
		return r.blocked+now.Sub(r.gapped) > longBlocked
	}
	return r.blocked > longBlocked
}

// nextWindow begins a window.
func (r *ownReading) nextWindow(now time.Time) {
	r.f.own.takeLate()
	if r.foreign, r.blocked = 0, 0; r.gap != 0 {
		r.blocked = r.gapped.Sub(now) // what has been counted
	}
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
		r.open = r.f.look(now, r.gap)
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
		if r.open != nil {
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
	case r.gap == 0:
		return r.looked.Add(foreignPace)
	case r.gapped.After(r.looked):
		return r.gapped.Add(gapPatience)
	}
	return r.looked.Add(gapPatience)
}

// onAnswer passes the message that a look has found. leave is true if there is none, although this client has written
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
		if !f.own.pass(a.msg.Sequence) {
			r.foreign++
		}
		if f.own.passes(a.msg.Subject) {
			f.fn(a.msg)
		}
		r.again = true
	}
	return false, nil
}

// look asks the stream by direct get. It returns nil if too many calls are in flight.
func (f *ownFollower) look(now time.Time, gap uint64) *look {
	l := &look{begun: now, gap: gap, answer: make(chan lookAnswer, 1)}
	op, conn := "read "+f.stream, f.c.conn
	ok := conn.pub.askNow(op, "$JS.API.DIRECT.GET."+f.stream, fmt.Appendf(nil, `{"seq":%d,"next_by_subj":">"}`, *f.after+1),
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
