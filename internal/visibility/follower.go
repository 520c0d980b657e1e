package visibility

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

const (
	// tailPace is the interval at which a shard is read. Several changes of a timer within it count as
	// one.
	tailPace = 250 * time.Millisecond
	// writePace is the interval of transactions.
	writePace = time.Second
	// checkPace is the interval at which the offsets are compared with the streams.
	checkPace = 2 * time.Second
	// prunePace is the interval at which old entries are removed. savePace is the interval at which
	// the offsets are written when nothing changes.
	prunePace = 10 * time.Second
	savePace  = time.Minute
	// minCounting is the minimum time for which the Follower only counts, so that it does not change
	// its mode too often.
	minCounting = 5 * time.Second
	// retryPace is the pause after a failure.
	retryPace = 2 * time.Second
)

// Buckets is the part of the store that is followed; *store.Store has it.
type Buckets interface {
	Geometry() schemas.Geometry
	// Retention returns the time for which the record of a timer stays after the timer is done.
	Retention() time.Duration
	TailAtPace(ctx context.Context, shard int, after uint64, pace time.Duration, fn func(store.Timer), skipped func(revision uint64)) (*store.Tail, error)
	Newest(ctx context.Context, shard int) (store.Newest, error)
	HasNext(ctx context.Context, shard int, after uint64) (bool, error)
	EachRecord(ctx context.Context, shard int, fn func(id schemas.TimerID, revision uint64, open bool)) error
}

// follower follows the buckets into one open Store. It is for one goroutine, except queue.
type follower struct {
	o      *Options
	store  Store
	queue  *queue
	log    zerolog.Logger
	report func(func(*Progress))

	offsets []Offset // by shard, as they are stored
	asOf    []asOf   // by shard
	tails   []*store.Tail
	// target has the revisions at which it has caught up.
	target []uint64
	// rowCost is the measured time of a row.
	rowCost time.Duration
	// counted is the time since which it only counts.
	counted time.Time

	wrote, checked, pruned, saved time.Time
	// compared is the time at which all open entries were last compared with the records, and compareTook how long it took.
	compared    time.Time
	compareTook time.Duration
	// pace decides how much CPU writing may take.
	pace pacer
	// yielded is true if the tails waited for room while the follower yielded, or before the queue had its whole bound
	// again: it missed changes. catchesUp is true while the follower reads the missed changes, and caughtUp is the time
	// at which it had last read them all. If the queue is full again within yieldMost of caughtUp, timers change faster
	// than they can be written.
	yielded, catchesUp bool
	caughtUp           time.Time
	waited             bool // a tail has waited for room in a queue below its whole bound since the last noteBehind
	// rate is the number of changes a second since the last batch.
	rate float64
	// grown is the number of changes written since entries were removed.
	grown int
}

// errOther is the error for a store with the rows of other buckets.
var errOther = errors.New("the entries belong to other buckets")

// run follows until ctx ends, or an error makes another store necessary.
func (f *follower) run(ctx context.Context) error {
	if err := f.open(ctx); err != nil {
		return err
	}
	if err := f.begin(ctx); err != nil {
		return err
	}
	defer f.stopTails()
	defer context.AfterFunc(ctx, f.queue.end)() // the tails read no more while the last changes are written
	for {
		err := f.wait(ctx)
		if err == nil {
			err = f.step(ctx)
		}
		if ctx.Err() != nil {
			f.stopTails()
			return errors.Join(f.flush(), ctx.Err())
		}
		if err != nil {
			return err
		}
	}
}

// flush writes the queued changes when the node stops.
func (f *follower) flush() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopBound/2)
	defer cancel()
	return f.writeQueued(ctx, false)
}

// open reads the stored offsets, and checks that they belong to these buckets.
func (f *follower) open(ctx context.Context) error {
	shards := f.o.Buckets.Geometry().Shards
	f.offsets, f.asOf, f.target = make([]Offset, shards), make([]asOf, shards), make([]uint64, shards)
	stored, err := f.store.Offsets(ctx)
	if err != nil {
		return err
	}
	for shard := range f.offsets {
		newest, err := f.o.Buckets.Newest(ctx, shard)
		if err != nil {
			return err
		}
		o, ok := stored[shard]
		if ok && (o.Stream != newest.Stream || o.Revision > newest.LastSeq) {
			return errOther
		}
		o.Stream = newest.Stream
		f.offsets[shard], f.asOf[shard] = o, asOf{ms: o.AsOfMs, sinceMs: newest.AtMs}
		if o.Revision > 0 {
			f.asOf[shard].sinceMs = o.AsOfMs
			f.asOf[shard].gap = newest.AtMs-o.AsOfMs > f.o.kept().Milliseconds()
		}
	}
	f.compared = time.Now()
	if len(stored) > shards {
		return errOther
	}
	return nil
}

// begin starts to read after the stored offsets.
func (f *follower) begin(ctx context.Context) error {
	after := make([]uint64, len(f.offsets))
	for shard := range f.offsets {
		after[shard] = f.offsets[shard].Revision
		newest, err := f.o.Buckets.Newest(ctx, shard)
		if err != nil {
			return err
		}
		f.target[shard] = newest.LastSeq
	}
	f.queue.begin(after)
	f.report(func(p *Progress) { p.CatchingUp, p.CountsOnly = true, false })
	for shard := range after {
		skipped := func(revision uint64) { f.queue.passBy(shard, revision) }
		tail, err := f.o.Buckets.TailAtPace(ctx, shard, after[shard], tailPace, func(t store.Timer) { f.offer(shard, &t) }, skipped)
		if err != nil {
			f.stopTails()
			return err
		}
		f.tails = append(f.tails, tail)
	}
	return nil
}

// offer is called by the tails.
func (f *follower) offer(shard int, t *store.Timer) {
	r := &t.Record
	if t.Unread != store.Readable || r.State.Final() && r.DoneMs > 0 && r.DoneMs < f.o.keepAfter() {
		f.queue.passBy(shard, t.Rev)
		return
	}
	c := Change{Shard: shard, ID: t.ID, Revision: t.Rev, StoredMs: t.StoredMs, Record: *r, Attributes: f.o.attributes(&r.Body)}
	c.Record.Body = schemas.Body{} // it would keep the whole message in memory
	f.queue.put(&c)
}

func (f *follower) stopTails() {
	f.queue.end()
	for _, t := range f.tails {
		t.Stop()
	}
	f.tails = nil
}

// wait waits until the next write: until the pause after the last write has ended, and the queue is full
// or writePace has passed. Meanwhile it looks at the machine every lookPace.
func (f *follower) wait(ctx context.Context) error {
	for {
		now := time.Now()
		if f.pace.next.After(now) {
			f.apply(f.pace.lookInPause(now))
		} else {
			f.apply(f.pace.look(now))
		}
		until, wake := f.pace.next, (<-chan struct{})(nil)
		if !until.After(now) {
			until, wake = f.wrote.Add(writePace), f.queue.wake
		}
		if !until.After(now) {
			return ctx.Err()
		}
		if next := f.pace.looked.Add(lookPace); next.Before(until) {
			until = next
		}
		if woken, err := waitFor(ctx, until, wake); woken || err != nil {
			return err
		}
	}
}

// waitFor waits until a time, or until wake has a value.
func waitFor(ctx context.Context, until time.Time, wake <-chan struct{}) (woken bool, err error) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-timer.C:
		return false, nil
	case <-wake:
		return true, nil
	}
}

// step writes the queued changes, and does the work of checkPace, prunePace and savePace that is due.
func (f *follower) step(ctx context.Context) error {
	if err := f.store.Err(); err != nil {
		return err
	}
	f.follow(ctx, f.pace.look(time.Now()))
	f.reportMode()
	if err := f.writeQueued(ctx, true); err != nil {
		return err
	}
	now := time.Now()
	if now.Sub(f.checked) >= f.o.checkPace() {
		if err := f.check(ctx); err != nil {
			return err
		}
		f.checked = time.Now()
	}
	if now.Sub(f.pruned) >= f.o.prunePace() {
		if err := f.prune(ctx); err != nil {
			return err
		}
	}
	return f.changeMode(ctx)
}

// apply makes the queue small while the follower yields, and large again afterwards, at the pace at which the machine can
// read changes. It notes whether a tail has waited for room in it, so that changes wait in the streams.
func (f *follower) apply(l load) {
	switch l {
	case busy:
		f.queue.throttle()
		f.pace.widened = time.Now()
	case free:
		if !f.queue.isWhole() {
			f.queue.widen(f.pace.readable(time.Now()))
		}
	case pressed: // follow decides about the small queue
	}
	if f.queue.takeWaited() {
		f.yielded, f.waited = true, true
	}
}

// follow decides about a full queue. On a busy machine the queue is small, and the follower waits. When CPU time is
// spare again, it reads the changes that wait in the streams, unless it has caught up less than yieldMost ago. Otherwise,
// and if the machine stays busy for yieldMost, it begins to count.
func (f *follower) follow(ctx context.Context, l load) {
	f.apply(l)
	m, _, _ := f.queue.state()
	full := f.queue.isFull()
	switch {
	case l == busy:
	case l == free && (m == catchingUp || !full):
	case l == free && m == following && f.yielded && time.Since(f.caughtUp) >= yieldMost:
		f.catchUp(ctx)
	default:
		f.pace.recovered()
		if f.yielded = false; f.catchesUp {
			// The machine stayed busy for yieldMost before the follower had caught up.
			f.catchesUp = false
			f.queue.setMode(catchingUp, following)
		}
		f.queue.overflow()
		f.queue.widen(f.queue.most)
	}
}

// catchUp ends a time in which the follower yielded, or did not write. The changes of that time are read in mode
// catchingUp: they fill the queue, but that does not mean that timers change faster than they can be
// written. If the newest revisions are not known, catchUp does nothing and is called again.
func (f *follower) catchUp(ctx context.Context) {
	target := make([]uint64, len(f.target))
	for shard := range target {
		newest, err := f.o.Buckets.Newest(ctx, shard)
		if err != nil {
			return
		}
		target[shard] = newest.LastSeq
	}
	f.pace.recovered()
	f.target, f.yielded, f.catchesUp = target, false, true
	f.queue.setMode(following, catchingUp)
}

// writeQueued writes the queued changes. If it is paced, it pauses between slices of the transaction until ctx ends.
func (f *follower) writeQueued(ctx context.Context, paced bool) error {
	begun := time.Now()
	most := math.MaxInt
	if paced {
		most = f.pace.rows(f.rowCost)
	}
	changes, read, arrived, replaced := f.queue.take(most)
	defer f.queue.wrote(len(changes))
	b := Batch{Changes: changes, Offsets: map[int]Offset{}}
	// The order of due times writes neighbouring index entries together.
	slices.SortFunc(b.Changes, func(a, b *Change) int { return cmp.Compare(a.Record.DueMs, b.Record.DueMs) })
	save := begun.Sub(f.saved) >= savePace
	for shard := range f.offsets {
		o := f.offsets[shard]
		if o.Revision == read[shard] && (!save || o.AsOfMs >= f.asOf[shard].ms) {
			continue
		}
		o.Revision, o.AsOfMs = read[shard], f.asOf[shard].ms
		b.Offsets[shard] = o
	}
	f.rate = float64(arrived) / max(begun.Sub(f.wrote), time.Millisecond).Seconds()
	f.wrote = begun
	if len(b.Changes) == 0 && len(b.Offsets) == 0 {
		return nil
	}
	var paused time.Duration
	sliceRest, sliceBegun := len(b.Changes), begun
	if paced {
		b.Between = func(rows int) {
			sliceRest -= rows
			ended := time.Now()
			f.queue.wrote(rows)
			f.pauseBetween(ctx, f.pace.slice(rows, ended.Sub(sliceBegun)))
			sliceBegun = time.Now()
			paused += sliceBegun.Sub(ended)
		}
	}
	if err := f.store.Write(ctx, b); err != nil {
		f.queue.giveBack(changes, replaced)
		return err
	}
	f.queue.uncount(changes, f.target)
	if save {
		f.saved = begun
	}
	for shard, o := range b.Offsets {
		f.offsets[shard] = o
	}
	took := time.Since(begun) - paused
	f.pace.wrote(sliceRest, time.Since(sliceBegun), time.Now())
	if n := len(b.Changes); n > 100 {
		f.rowCost = (3*f.rowCost + took/time.Duration(n)) / 4
	}
	f.grown += len(b.Changes)
	f.o.metrics.written(len(b.Changes), replaced, took)
	return nil
}

// pauseBetween pauses between two slices of a transaction, and looks at the machine every lookPace. A higher duty does not
// shorten the pause.
func (f *follower) pauseBetween(ctx context.Context, d time.Duration) {
	if d == 0 {
		return
	}
	begun := time.Now()
	defer func() { f.pace.rested(time.Since(begun)) }()
	for d > 0 {
		part := min(d, lookPace)
		if !pause.For(ctx, part) {
			return
		}
		d -= part
		if now := time.Now(); now.Sub(f.pace.looked) >= lookPace {
			f.apply(f.pace.look(now))
		}
	}
}

// check compares the offsets with the streams. Errors are those of the store.
func (f *follower) check(ctx context.Context) error {
	if err := f.compareIfDue(ctx); err != nil {
		return err
	}
	var behind uint64
	reached := true
	oldest := int64(0)
	for shard := range f.offsets {
		have := f.offsets[shard].Revision
		newest, err := f.o.Buckets.Newest(ctx, shard)
		more := false
		if err == nil && have < newest.LastSeq {
			more, err = f.o.Buckets.HasNext(ctx, shard, have)
		}
		if err != nil {
			if ctx.Err() == nil {
				f.log.Debug().Err(err).Int("shard", shard).Msg("the newest revision of a shard is not known")
			}
			return nil
		}
		if more {
			behind += newest.LastSeq - have
		}
		if f.asOf[shard].look(have, newest, more, max(f.o.kept(), leastAway).Milliseconds()) {
			compared, err := f.compare(ctx, shard)
			if compared {
				f.asOf[shard].compared()
			}
			return err // the next check looks again
		}
		if more && have < f.target[shard] {
			reached = false
		}
		if at := f.asOf[shard].ms; shard == 0 || at < oldest {
			oldest = at
		}
	}
	if reached {
		if f.catchesUp {
			f.catchesUp, f.caughtUp = false, time.Now()
		}
		f.queue.setMode(catchingUp, following)
	}
	f.noteBehind(behind)
	rows, bytes := f.store.Size()
	f.report(func(p *Progress) {
		p.Behind, p.Rows, p.Bytes = behind, rows, bytes
		if oldest > 0 {
			p.AsOf = schemas.TimeOf(oldest)
		}
	})
	return nil
}

// noteBehind ends the consequences of a yield (yielded, pacer.widening) if the follower is current. behind is 0 if it has every
// record of the streams. While timers change all the time it never has. Then it counts as current if it does not read missed changes (catchingUp), the
// queue has its whole bound, and no tail has waited for room in a smaller one since the last call.
func (f *follower) noteBehind(behind uint64) {
	m, _, _ := f.queue.state()
	if behind == 0 || m == following && f.queue.isWhole() && !f.waited {
		f.yielded = false
		f.pace.recovered()
	}
	f.waited = false
}

// prune removes old entries for at most writePace, or for longer until it has removed more entries than
// were written since the last prune. So a store that is too large does not grow, even if writes are
// slow. It pauses between its transactions.
func (f *follower) prune(ctx context.Context) error {
	begun := time.Now()
	for total := 0; ; {
		sliceBegun := time.Now()
		removed, more, err := f.store.Prune(ctx, f.o.keepAfter(), f.o.HistoryBytes)
		if err != nil {
			return err
		}
		f.pauseBetween(ctx, f.pace.slice(removed, time.Since(sliceBegun)))
		f.o.metrics.removed(removed)
		total += removed
		if !more || ctx.Err() != nil || total > f.grown && time.Since(begun) > writePace {
			f.pruned, f.grown = time.Now(), 0
			if more {
				f.pruned = f.pruned.Add(writePace - f.o.prunePace()) // again soon
			}
			return nil
		}
	}
}

// reportMode publishes the mode in Progress.
func (f *follower) reportMode() (m mode, queued int, skipped uint64) {
	m, queued, skipped = f.queue.state()
	f.report(func(p *Progress) { p.CatchingUp, p.CountsOnly, p.Skipped = m == catchingUp, m == counting, skipped })
	return m, queued, skipped
}

// changeMode publishes the mode in Progress, and ends counting when the load is low enough to write
// rows.
func (f *follower) changeMode(ctx context.Context) error {
	m, queued, skipped := f.reportMode()
	f.report(func(p *Progress) { p.Problem = "" })
	now := time.Now()
	switch {
	case m != counting:
		f.counted = time.Time{}
		return nil
	case f.counted.IsZero():
		f.counted = now
		f.log.Warn().Msg("timers change faster than the search index can be written: outcomes are counted, and entries are read later")
		return nil
	case queued > 0 || now.Sub(f.counted) < f.o.minCounting() || !f.affordable():
		return nil
	}
	f.log.Info().Uint64("counted", skipped).Msg("the search index catches up")
	f.stopTails()
	return f.begin(ctx)
}

// affordable reports whether the changes since the last batch could have been written.
func (f *follower) affordable() bool {
	return f.rate*f.rowCost.Seconds() < f.pace.duty
}
