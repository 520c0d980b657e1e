package jet

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// ownWindow is the time over which a follower counts writes, and manyOwn the number of this client's writes in it
	// from which the follower takes them from memory. fewOwn is the number below which it uses a consumer again.
	ownWindow = 250 * time.Millisecond
	manyOwn   = 50
	fewOwn    = 12
	// manyForeign is the number of messages of others in ownWindow from which a consumer is cheaper.
	manyForeign = 25
	// foreignPause is how long a follower then uses a consumer, at least; replicasPause is the same for a stream that has
	// replicas.
	foreignPause  = 10 * time.Second
	replicasPause = 10 * time.Minute
	// ownBatch is the number of writes that a follower takes from memory at a time.
	ownBatch = 256
	// foreignPace is the time between two looks into the stream, and so the most that a message of another client waits while this
	// client's writes come from memory.
	foreignPace = 10 * time.Millisecond
	// gapPatience is how long a follower waits for the acknowledgement that closes a gap between kept writes, before it looks
	// into the stream.
	gapPatience = 2 * roundPace
	// lookPatience bounds the time of one look.
	lookPatience = followHeartbeat * silentHalfBeats / 2
)

// ownFollower follows a stream of which this client writes most messages.
//
//	     ┌────────── much of the stream is written by this client ──────────┐
//	     │                                                                   ▼
//	consumer                                                        memory, and looks
//	     ▲                                                                   │
//	     └── little is, or much by others; the memory is full; connection ──┘
//
// A consumer costs the server and the client 8 µs a message. In the other mode the messages that this client has written come from its memory, in the order of
// their sequences. A sequence that is missing there is a message of another client, one without an answer yet, or
// one that is not for the follower. The follower then looks into the stream, by direct get, for the next message. It also
// looks every foreignPace, so that it sees what only others write. The stream remains the authority: the follower passes over a
// sequence only if it has its message, or if the server says that it has none for the follower before a later one.
//
// The messages have no Time and no Header. Revisions that were replaced before they were passed may be present.
type ownFollower struct {
	c              *Readers
	own            *ownWrites
	stream, filter string
	after          *uint64 // the last sequence that has passed
	fn             func(*Msg)
	// holds says that this follower uses the kept writes. Another follower of the stream has a consumer meanwhile.
	holds bool

	// notBefore is when the follower may take writes from memory.
	notBefore time.Time
	// since is the beginning of the present window; sent is the number of own writes then.
	since time.Time
	sent  uint64
}

// read follows with a consumer, and then from memory, until the consumer may be used again.
func (f *ownFollower) read(ctx context.Context, o ReaderOptions) error {
	forget, ok := f.c.conn.OnBreak(f.own.end)
	if !ok {
		return f.c.conn.DownError("follow " + f.stream)
	}
	defer forget()
	defer f.release()
	f.newWindow(time.Now())
	if err := f.c.follow(ctx, o, f.filter, f.after, f.passed); err != nil {
		return err
	}
	return f.readOwn(ctx)
}

// passed passes a message of the consumer. It returns false when the messages after it are in memory.
func (f *ownFollower) passed(m *Msg) (more bool) {
	f.fn(m)
	if f.holds && f.own.pass(m.Sequence) {
		return false
	}
	if now := time.Now(); now.Sub(f.since) >= ownWindow {
		if sent := f.newWindow(now); sent >= manyOwn && now.After(f.notBefore) && (f.holds || f.own.taken.CompareAndSwap(false, true)) {
			f.holds = true
			f.own.begin(m.Sequence + 1)
		}
	}
	return true
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

// readOwn takes writes from memory, and looks into the stream for other messages. It returns nil when a consumer is
// better.
func (f *ownFollower) readOwn(ctx context.Context) error {
	info, err := f.c.streams.Stream(ctx, f.stream)
	if err != nil {
		return err
	}
	if info.Config.Replicas > 1 {
		f.notBefore = time.Now().Add(replicasPause)
		return nil
	}
	r := ownReading{f: f, buf: make([]ownWrite, 0, ownBatch), timer: time.NewTimer(time.Hour)}
	defer r.timer.Stop()
	f.newWindow(time.Now())
	for ctx.Err() == nil {
		now := time.Now()
		took, gap, ok := f.own.take(r.buf[:0])
		if !ok {
			return nil
		}
		for i := range took {
			f.pass(&took[i])
		}
		r.setGap(gap, now)
		if now.Sub(f.since) >= ownWindow && !r.worthIt(now) {
			return nil
		}
		switch {
		case len(took) == cap(took):
		case len(took) > 0:
			r.rest(ctx)
		default:
			if err := r.wait(ctx, now); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
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
	// gap is the sequence of the first kept write after missing ones, gapped the time since which some are missing.
	// Both are zero if none is.
	gap    uint64
	gapped time.Time
	// open is the look without an answer, and looked the time of the last one.
	open   *look
	looked time.Time
	// foreign counts the messages in the present window that looks have found and this client has not written.
	foreign int
}

// look is a question to the stream: its first message for the follower after those that have passed.
type look struct {
	begun  time.Time
	gap    uint64 // ownReading.gap when it began
	answer chan lookAnswer
}

// lookAnswer has the message, or nil if the stream has none.
type lookAnswer struct {
	msg *Msg
	err error
}

func (r *ownReading) setGap(gap uint64, now time.Time) {
	switch r.gap = gap; {
	case gap == 0:
		r.gapped = time.Time{}
	case r.gapped.IsZero():
		r.gapped = now
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

// worthIt ends a window. It reports whether memory is still better than a consumer.
func (r *ownReading) worthIt(now time.Time) bool {
	foreign := r.foreign - r.f.own.lateOnes()
	r.foreign = 0
	if foreign > manyForeign {
		r.f.notBefore = now.Add(foreignPause)
		return false
	}
	return r.f.newWindow(now) >= fewOwn
}

// wait waits for the next own write or an answer of the stream, at most until the next look is due.
func (r *ownReading) wait(ctx context.Context, now time.Time) error {
	next := r.nextLook()
	if r.open == nil && !now.Before(next) {
		r.open, r.looked = r.f.look(now, r.gap), now
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
			return r.f.c.conn.mapErr.errorf(ErrUnavailable, "read %s: no answer for %s", r.f.stream, lookPatience)
		}
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// nextLook returns when the next look is due.
func (r *ownReading) nextLook() time.Time {
	next := r.looked.Add(foreignPace)
	if gapped := r.gapped.Add(gapPatience); r.gap != 0 && gapped.Before(next) {
		return gapped
	}
	return next
}

// onAnswer passes the message that a look has found. If there is none, it passes over the gap.
func (r *ownReading) onAnswer(a lookAnswer) error {
	f, gap := r.f, r.open.gap
	r.open = nil
	switch {
	case a.err != nil:
		return a.err
	case a.msg == nil && gap > *f.after:
		// The server had stored the write at gap before it answered, so it has no message for the follower before that.
		*f.after = gap - 1
		f.own.skipTo(gap)
	case a.msg != nil && a.msg.Sequence > *f.after:
		// It has none before this message either.
		*f.after = a.msg.Sequence
		if !f.own.pass(a.msg.Sequence) {
			r.foreign++
		}
		f.fn(a.msg)
		r.looked = time.Time{} // more may follow
	}
	return nil
}

// look asks the stream by direct get.
func (f *ownFollower) look(now time.Time, gap uint64) *look {
	l := &look{begun: now, gap: gap, answer: make(chan lookAnswer, 1)}
	op, conn := "read "+f.stream, f.c.conn
	body := fmt.Appendf(nil, `{"seq":%d,"next_by_subj":%q}`, *f.after+1, f.filter)
	conn.pub.ask(op, "$JS.API.DIRECT.GET."+f.stream, nil, body,
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
	return l
}
