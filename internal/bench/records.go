package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

func bucketStream(shard int) string { return "KV_" + schemas.BucketTimers(shard) }

func recordSubject(shard int) string { return "$KV." + schemas.BucketTimers(shard) + ".timer." }

// record reads a timer's record from its shard's leader; nil if there is none. It uses the older
// JetStream interface of nats.go, because the newer one may ask a replica that is behind.
func (e *Env) record(ctx context.Context, id schemas.TimerID) (*schemas.Record, error) {
	geo := schemas.DefaultGeometry()
	geo.Shards = e.shard
	shard := geo.Shard(id)
	js, err := e.js.Conn().JetStream()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, addTimeout)
	defer cancel()
	m, err := js.GetLastMsg(bucketStream(shard), recordSubject(shard)+id.String(), nats.Context(ctx))
	switch {
	case errors.Is(err, nats.ErrMsgNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case len(m.Data) == 0:
		return nil, nil // a delete marker
	}
	r, err := schemas.DecodeRecord(m.Data)
	return &r, err
}

// records counts the records of timers in all shards.
func (e *Env) records(ctx context.Context) (int, error) {
	n := 0
	for shard := range e.shard {
		here, err := e.countMessages(ctx, bucketStream(shard), recordSubject(shard)+"*")
		if err != nil {
			return 0, err
		}
		n += here
	}
	return n, nil
}

// countMessages counts the messages of a stream whose subject matches a filter.
func (e *Env) countMessages(ctx context.Context, stream, filter string) (int, error) {
	failed := func(err error) (int, error) {
		return 0, fmt.Errorf("count the messages of %s in %s: %w", filter, stream, err)
	}
	// The number of pending messages of a consumer is JetStream's only count by subject that is
	// exact and cheap.
	c, err := e.js.CreateConsumer(ctx, stream, jetstream.ConsumerConfig{
		FilterSubject: filter, AckPolicy: jetstream.AckNonePolicy, HeadersOnly: true, InactiveThreshold: time.Minute,
	})
	if err != nil {
		return failed(err)
	}
	if err := e.js.DeleteConsumer(ctx, stream, c.CachedInfo().Name); err != nil {
		return failed(err)
	}
	return int(c.CachedInfo().NumPending), nil
}

// states has the latest known states of the records of a run's timers.
type states struct {
	state []schemas.State
	at    []int64 // timestamp of the message with that state, Unix nanoseconds; 0 for none
	known int     // number of timers with a record
	final int     // number of timers in the wanted state
}

// follower reads the changes of the records of a run's timers until they are final.
type follower struct {
	env   *Env
	adder *Adder
	from  []uint64 // the last sequence of each shard that was read
	want  schemas.State
	st    *states
	moved time.Time // time of the last record that was read
	// read is the time of the last read of each shard. gap is the longest time between two reads
	// of a shard: a record that exists for less may be missed.
	read []time.Time
	gap  time.Duration
	// patience is the time without a new record after which the remaining timers count as
	// missing.
	patience time.Duration

	stop func() // ends the goroutine of beside
}

// followRecords returns a follower of the timers 0 to count-1 of an adder. Call it before they
// are added.
func (e *Env) followRecords(ctx context.Context, a *Adder, count int, want schemas.State) (*follower, error) {
	from, err := e.marks(ctx)
	if err != nil {
		return nil, err
	}
	return &follower{
		env: e, adder: a, from: from, want: want, st: &states{state: make([]schemas.State, count), at: make([]int64, count)},
		read: slices.Repeat([]time.Time{time.Now()}, e.shard), patience: accountPatience, stop: func() {},
	}, nil
}

// beside reads the records concurrently with the run, so that it sees each before it expires. It
// does nothing without Config.Retention. It ends with settled or stop.
func (f *follower) beside(ctx context.Context) {
	if f.env.Retention == 0 {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	f.stop = func() { cancel(); <-done }
	go func() {
		defer close(done)
		// Each record is read at least twice before it expires. More frequent reads would read
		// more records in states that are not final.
		for waitUntil(ctx, time.Now().Add(f.env.Retention/3)) {
			_ = f.pass(ctx, func() {}) // after an error the next pass continues
		}
	}()
}

// end ends the goroutine of beside.
func (f *follower) end() { f.stop() }

// account counts the timers that have a record, and those whose record is not in the wanted
// state.
func (f *follower) account(ctx context.Context, p *progress, v *Verified) error {
	st, err := f.settled(ctx, p)
	if err != nil {
		return err
	}
	v.Expected, v.Found = len(st.at), st.known
	f.verify(ctx, v)
	return nil
}

// pass reads the records that the shards have stored since the last pass.
func (f *follower) pass(ctx context.Context, show func()) error {
	var failed error
	for shard := range f.env.shard {
		before, begun := f.from[shard], time.Now()
		last, err := f.env.readRecords(ctx, shard, before+1, func(r *schemas.Record, at time.Time) {
			f.see(r, at)
			show()
		})
		if f.from[shard] = last; last > before {
			f.moved = time.Now()
		}
		if err != nil {
			failed = fmt.Errorf("read the records of shard %d: %w", shard, err)
			continue
		}
		f.gap, f.read[shard] = max(f.gap, time.Since(f.read[shard])), begun
	}
	return failed
}

func (f *follower) see(r *schemas.Record, at time.Time) {
	st := f.st
	n, ours := f.adder.number([]byte(r.EventID))
	if !ours || n >= len(st.at) {
		return
	}
	if st.at[n] == 0 {
		st.known++
	}
	if st.state[n] == f.want {
		st.final--
	}
	if r.State == f.want {
		st.final++
	}
	st.state[n], st.at[n] = r.State, at.UnixNano()
}

// settled reads until each timer is in the wanted state, or no record has come for patience. It
// fails if records may have expired unread.
func (f *follower) settled(ctx context.Context, p *progress) (*states, error) {
	f.stop()
	f.moved = time.Now()
	st, count := f.st, len(f.st.at)
	for {
		err := f.pass(ctx, func() { p.show("%d of %d records read, %d are %s", st.known, count, st.final, f.want) })
		if err != nil {
			if err := againAfter(ctx, err, f.moved, f.patience); err != nil {
				return nil, err
			}
		}
		switch keep := f.env.Retention; {
		case st.final == count:
			return st, nil
		case time.Since(f.moved) <= f.patience:
		case keep > 0 && f.gap > keep:
			return nil, fmt.Errorf("%d of %d records were not seen in state %s: records expire after %s, and up to %s passed between two reads; give a longer retention", count-st.final, count, f.want, keep, f.gap.Round(time.Second))
		default:
			return st, nil
		}
		p.show("%d of %d records are %s; waiting for the others", st.final, count, f.want)
		if !waitUntil(ctx, time.Now().Add(againPause)) {
			return nil, context.Cause(ctx)
		}
	}
}

// verify counts the timers whose record did not reach the wanted state, with the state that the
// leader has now as a reason. If the leader has the wanted state or no record, the timer has
// finished, and the follower missed that.
func (f *follower) verify(ctx context.Context, v *Verified) {
	looked := 0
	for n, at := range f.st.at {
		if at != 0 && f.st.state[n] == f.want {
			continue
		}
		v.Wrong++
		seen := "no record"
		if at != 0 {
			seen = f.st.state[n].String()
		}
		now := "not read again"
		if looked++; looked <= explainMost {
			r, err := f.env.record(ctx, f.adder.Timer(n))
			switch {
			case err != nil:
				now = "reading it again failed: " + err.Error()
			case r == nil:
				now = "none at the end"
			default:
				now = r.State.String() + " at the end"
			}
		}
		v.because(fmt.Sprintf("%s, not %s; %s", seen, f.want, now))
	}
}

// marks returns the last sequences of the shards' streams.
func (e *Env) marks(ctx context.Context) ([]uint64, error) {
	var out []uint64
	for shard := range e.shard {
		s, err := e.js.Stream(ctx, bucketStream(shard))
		if err != nil {
			return nil, err
		}
		out = append(out, s.CachedInfo().State.LastSeq)
	}
	return out, nil
}

// readerGone is the time after which the server removes an unused consumer of readRecords.
const readerGone = 10 * time.Second

// recordsRound bounds the records of one request.
const recordsRound = 2048

// readRecords calls see for each record in a shard's stream from a sequence to the end, and
// returns the last sequence that it read.
func (e *Env) readRecords(ctx context.Context, shard int, from uint64, see func(*schemas.Record, time.Time)) (uint64, error) {
	last := from - 1
	s, err := e.js.Stream(ctx, bucketStream(shard))
	if err != nil {
		return last, err
	}
	end := s.CachedInfo().State.LastSeq
	if end < from {
		return last, nil
	}
	c, err := e.js.CreateConsumer(ctx, bucketStream(shard), jetstream.ConsumerConfig{
		FilterSubject: recordSubject(shard) + "*", DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, InactiveThreshold: readerGone,
	})
	if err != nil {
		return last, err
	}
	// Fetch in rounds: the client's iterator makes timers for each message, and its cost would
	// count in the measurement.
	next := uint64(1) // consumer sequence of the next message
	for left := c.CachedInfo().NumPending; left > 0; {
		round, err := c.FetchNoWait(int(min(left, recordsRound)))
		if err != nil {
			return last, err
		}
		before := left
		for m := range round.Messages() {
			meta, err := m.Metadata()
			if err != nil {
				return last, err
			}
			if meta.Sequence.Consumer != next {
				// The next call begins with the dropped message.
				return last, fmt.Errorf("received message %d of the reader, want %d: the client dropped messages", meta.Sequence.Consumer, next)
			}
			next++
			left--
			last = meta.Sequence.Stream
			if len(m.Data()) == 0 {
				continue // a delete marker
			}
			r, err := schemas.DecodeRecord(m.Data())
			if err != nil {
				return last, err
			}
			see(&r, meta.Timestamp)
		}
		switch err := round.Error(); {
		case ctx.Err() != nil:
			return last, context.Cause(ctx)
		case err != nil:
			return last, err
		case left == before:
			return last, nil // the rest was removed after it was counted, or the next call reads it
		}
	}
	// Some messages before the end may be missing, because the number of messages may come from
	// another server than the end. The next call reads them.
	return last, nil
}
