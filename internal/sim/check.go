package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// Violation is a property that did not hold.
type Violation struct {
	Property string
	At       time.Duration // since the start of the simulation
	Text     string
}

// String is one line.
func (v Violation) String() string { return fmt.Sprintf("%s at %s: %s", v.Property, v.At, v.Text) }

// The properties, which are Belfry's guarantees and their consequences.
const (
	// PropKept: the timer of an acknowledged add fires.
	PropKept = "acknowledged is kept"
	// PropEarly: no timer is claimed or fires before it is due, by the latest of the
	// clocks that led the cluster since the oldest reading that the node still uses.
	PropEarly = "never early"
	// PropOnTime: without faults, and after the last one, every timer fires within
	// onTimeBound of its due time.
	PropOnTime = "on time"
	// PropFinished: when every timer must be on time, the final record of a timer without a callback follows
	// its event within finalBound.
	PropFinished = "a fired timer has its final record"
	// PropOnce: a run has one event on timers.fired, unless the stream has dropped an earlier
	// event of the run.
	PropOnce = "exactly once into timers.fired"
	// PropCalled: the callback of a fired timer is called, and its result is recorded.
	PropCalled = "at least once to the callback"
	// PropOwner: a node that claims or publishes owns the shard at that moment.
	PropOwner = "one owner"
	// PropCancel: a timer whose cancel was acknowledged before it fired never fires.
	PropCancel = "a cancel that was acknowledged never fires"
	// PropRefused: an operation on a timer is refused only if a record of the time of the operation refuses it.
	PropRefused = "refused by the newest record"
	// PropMark: no record due before the low watermark waits to fire, except records that the
	// tail has not read yet.
	PropMark = "the clock is a low watermark"
	// PropClock: low watermark, applied offset and epoch of a shard never go backwards, and
	// an epoch has one owner.
	PropClock = "the clock never goes backwards"
	// PropState: schemas.State allows each change of a record's state, so a final record
	// stays final.
	PropState = "finished stays finished"
	// PropAttempts: a record has the last attempts of its run, in order and without gaps.
	PropAttempts = "attempts are kept"
	// PropHistory: no write of a record loses a control operation.
	PropHistory = "operations are kept"
	// PropSwept: the sweeper finds no unfired timer before the low watermark.
	PropSwept = "the sweeper finds nothing"
	// PropFlow: no single record stops a shard. An event that can never be published
	// becomes one dead letter, and the low watermark moves on.
	PropFlow = "no single record stops a shard"
	// PropEnds: work ends; nothing is tried over and over without a pause.
	PropEnds = "work ends"
	// PropNewer: a record of a newer format waits for a node that reads it, and its shard
	// does not go back and forth between nodes that do not.
	PropNewer = "newer records wait for newer nodes"
	// PropDamaged: a damaged record stops no other timer. Its owner reports it by its key,
	// and nothing fires that was not added.
	PropDamaged = "a damaged record is reported and stops nothing"
	// PropCount: once the cluster is quiet, the number of pending timers in a shard's clock is
	// unknown, or at most the number of pending records. It may be lower by the number of
	// timers whose first revision was replaced before the owner's tail read it.
	PropCount = "the count of pending timers is right"
	// PropQuota: once the cluster is quiet, the numbers that the owner of a shard publishes are those of
	// the pending timers of the limited services.
	PropQuota = "the numbers of limited timers are right"
	// PropDeferral: an event that waits for its slot uses no attempt, and only its newest event is
	// called.
	PropDeferral = "a deferral uses no attempt"
	// PropPermitted: a callback is called only when the limit of its service permits it.
	PropPermitted = "called when permitted"
	// PropReturned: a timer that has ended does not fire again after a killed server has brought an earlier revision of its record
	// back, and the revision is deleted. Both hold from returnedBound after the return and the last fault.
	PropReturned = "an ended timer does not return"
	// PropLoaded: a load returns each record as of the tail, or a later revision.
	PropLoaded = "a load is as of the tail"
	// PropIndexed: a waiting record has an index entry.
	PropIndexed = "every waiting record is indexed"
)

// maxViolations end a run.
const maxViolations = 5

// onTimeBound is the lateness that PropOnTime allows: a few round trips, the uncertainty of
// the cluster's time, and a hand-over.
const onTimeBound = 250 * time.Millisecond

// finalBound is the longest time from an event to its final record that PropFinished allows. In that time the other
// shards of the node fire their due timers, and one write is repeated. It must be below the time for which
// final records wait for shards that do not leave the node's backlog, six seconds here.
const finalBound = 3 * time.Second

// settleFor is the time after the start from which on lateness counts in a cluster without
// faults.
const settleFor = 15 * time.Second

// checker observes every stored message, and every action of the schedulers.
type checker struct {
	w          *world
	violations []Violation
	published  map[string]bool // message ids that were on timers.fired or timers.retry
	byShard    [][]*life
	owners     []map[uint64]string // of each shard, by epoch
	tailBefore []uint64            // of each shard: Clock.Tail of the clock before the newest
	takeovers  []int               // of each shard, see calm
}

func newChecker(w *world) *checker {
	c := &checker{w: w, published: map[string]bool{}, byShard: make([][]*life, w.p.geo.Shards)}
	c.takeovers = make([]int, w.p.geo.Shards)
	for range w.p.geo.Shards {
		c.owners = append(c.owners, map[uint64]string{})
		c.tailBefore = append(c.tailBefore, 0)
	}
	return c
}

func (c *checker) fail(property, format string, args ...any) {
	v := Violation{Property: property, At: time.Duration(c.w.now - c.w.epoch), Text: fmt.Sprintf(format, args...)}
	c.w.trace("VIOLATION %s", v)
	c.violations = append(c.violations, v)
}

func (c *checker) watcher() fake.Watcher {
	w := fake.Watcher{Record: c.record, Clock: c.clock, Event: c.event}
	if c.w.calendars != nil {
		w.Calendar = c.w.calendars.stored
	}
	return w
}

// --- while it runs ---

// record sees every revision of every record.
func (c *checker) record(shard int, was, now store.Timer) {
	w := c.w
	l := w.byID[now.ID]
	r := &now.Record
	if l == nil {
		c.fail(PropRuns, "a record of no timer, schedule or claimed run: %s", now.ID)
		return
	}
	w.trace("%s: %s -> %s, due %s, epoch %d, revision %d", l, was.Record.State, r.State, c.w.ms(r.DueMs), r.Epoch, now.Rev)
	w.after(0, func() { w.tailsOf(shard) })
	c.used(shard, was, now)
	// A claim of a timer without an index entry is late: the sweeper has found it by the entry that another timer
	// shares with it.
	if was.ID.IsZero() || l.half && r.State != schemas.StateDelivered {
		l.half = !w.server.Indexed(now.ID, w.p.geo.Tick(r.DueMs))
	}
	if !l.seen {
		l.seen = true
		c.byShard[shard] = append(c.byShard[shard], l)
	}
	c.changed(l, was, now)
	c.overReturned(l, was, now)
	if born := l.run != nil && was.ID.IsZero() && r.State == schemas.StateDelivered; !born && !was.Record.State.CanBecome(r.State) {
		c.fail(PropState, "%s became %s from %s", l, r.State, was.Record.State)
	}
	if n := len(was.Record.History); len(r.History) < n {
		c.fail(PropHistory, "%s: %d operations became %d, with %s -> %s", l, n, len(r.History), was.Record.State, r.State)
	}
	c.deferred(l, &was.Record, r)
	if text := attemptsLost(&was.Record, r); text != "" {
		c.fail(PropAttempts, "%s: %s, with %s -> %s", l, text, was.Record.State, r.State)
	}
	if r.Pending() {
		l.dues = append(l.dues, r.DueMs)
	}
	switch {
	case l.sched != nil:
		c.scheduled(l.sched, was, now)
	case l.run != nil && !l.callback:
		c.fail(PropRuns, "%s has no callback, and a record", l)
	case r.State == schemas.StateDelivered && was.Record.Pending():
		if l.claimed == 0 {
			l.claimed = w.now
		}
		if l.claimedDueMs = was.Record.DueMs; r.DueMs != was.Record.DueMs {
			c.fail(PropEarly, "%s was due %s and claimed as if due %s", l, c.w.ms(was.Record.DueMs), c.w.ms(r.DueMs))
		}
	}
	if l.run != nil && r.State == schemas.StateSuccess && l.run.successMs == 0 {
		l.run.successMs = r.DoneMs
	}
	if r.State == schemas.StateCancelled && l.endedAt == 0 {
		l.endedAt = w.now
	}
	if r.State.Final() && !l.final {
		l.final, l.finalAt, l.finalRev = true, w.now, now.Rev
	}
}

// attemptsLost describes an error in the attempts of a record that replaces was; "" for none.
// A record counts all attempts of its run, and must list the last ones.
func attemptsLost(was, now *schemas.Record) string {
	want := min(int(now.Attempt), schemas.MaxKeptAttempts)
	if len(now.Attempts) != want {
		return fmt.Sprintf("%d attempts were made, %d are kept, of at most %d", now.Attempt, len(now.Attempts), schemas.MaxKeptAttempts)
	}
	for i, a := range now.Attempts {
		n := int(now.Attempt) - want + 1 + i
		if int(a.Number) != n { // the times are of several nodes, whose clocks differ
			return fmt.Sprintf("attempt %d is in the place of %d", a.Number, n)
		}
		for _, before := range was.Attempts {
			if before.Number == a.Number && before.AtMs != a.AtMs {
				return fmt.Sprintf("attempt %d has another time", n)
			}
		}
	}
	return ""
}

// published returns the message id under which a claimed record is published.
func published(t store.Timer) string {
	run := t.Record.RunID(t.ID)
	if s := t.Record.Schedule; s != nil && s.AlarmIsLast() {
		return schemas.OverdueID(t.ID, s.Alarm.NominalMs)
	} else if s != nil {
		return t.ID.MsgID(s.Last.Run)
	}
	if n := t.Record.Deferrals(); t.Record.Attempt > 0 || n > 0 {
		return run.RetryMsgIDAfter(t.Record.Attempt+1, n)
	}
	return run.String()
}

// event checks every message that is added to the streams of events.
func (c *checker) event(stream string, e fake.Event) {
	w := c.w
	w.offer(stream, e)
	if stream == schemas.StreamDead {
		c.letter(e)
		return
	}
	if stream == schemas.StreamOverdue {
		c.overdue(e)
		return
	}
	if stream != schemas.StreamFired && stream != schemas.StreamRetry {
		return
	}
	c.published[e.MsgID] = true
	w.trace("%s: %s, sequence %d", stream, e.MsgID, e.Seq)
	if stream == schemas.StreamRetry {
		return
	}
	id, err := schemas.ParseRunID(e.MsgID)
	if err != nil || w.byID[id.Timer] == nil {
		c.fail(PropState, "an event of no timer: %q", e.MsgID)
		return
	}
	l := w.byID[id.Timer]
	if l.sched != nil {
		c.ran(l.sched, id.Run, e)
		return
	}
	w.stats.Fired++
	switch {
	case l.claimed == 0:
		c.fail(PropOwner, "%s was published without a claim", l)
	case l.claimedDueMs*int64(time.Millisecond) > w.net.latest(l.claimed-int64(time.Hour)): // claims judges by the readings in use
		c.fail(PropEarly, "%s, due %s, was published %s early", l, c.w.ms(l.claimedDueMs), time.Duration(l.claimedDueMs*1e6-w.net.latest(w.now)))
	}
	if l.back.excused {
		l.fired = append(l.fired, copyOf{real: w.now, stampNs: e.StampNs})
		return
	}
	c.firedOnce(l, e)
	c.fires(l, e)
	if l.cancelled != 0 {
		c.fail(PropCancel, "%s: cancelled at %s", l, c.w.rel(l.cancelled))
	}
}

// firedOnce sees an event of a run, which must be the first in the stream.
func (c *checker) firedOnce(l *life, e fake.Event) {
	w := c.w
	if k := len(l.fired); k > 0 {
		w.stats.Refired++
		last := l.fired[k-1]
		gone := last.stampNs+int64(w.p.firedMaxAge) <= e.StampNs
		// The servers measure the dedup window by the leaders' clocks. A clock that was set
		// forward makes the window shorter than its true duration.
		leapt := last.stampNs+int64(w.p.dedup) <= e.StampNs && w.now-last.real < int64(w.p.dedup)
		if !gone && !leapt {
			c.fail(PropOnce, "%s: published at %s and again, %s later", l, c.w.rel(l.fired[k-1].real), time.Duration(w.now-l.fired[k-1].real))
		}
	}
	l.fired = append(l.fired, copyOf{real: w.now, stampNs: e.StampNs})
}

// letter checks a dead letter.
func (c *checker) letter(e fake.Event) {
	if e.Header.Get(schemas.HeaderPart) != "" {
		return // the first part stands for the letter
	}
	w := c.w
	id, err := schemas.ParseTimerID(e.MsgID[:schemas.TimerIDLength])
	if err != nil || w.byID[id] == nil {
		c.fail(PropState, "a dead letter of no timer: %q", e.MsgID)
		return
	}
	l := w.byID[id]
	if run, _, ok := strings.Cut(e.MsgID[schemas.TimerIDLength+1:], "."); ok && l.sched != nil {
		n, err := strconv.ParseUint(run, 10, 32)
		if r := l.sched.runs[uint32(n)]; err == nil && r != nil {
			l = r.life
		} else {
			c.fail(PropRuns, "%s: a dead letter of no run: %q", l, e.MsgID)
			return
		}
	}
	w.stats.DeadLetters++
	w.trace("%s: dead letter %s", l, e.MsgID)
	if e.Header.Get(schemas.HeaderErrorCode) != schemas.ReasonUndeliverable {
		return // functions publish a dead letter at least once
	}
	w.stats.Refused++
	if l.size == sizeSmall || l.size == sizeNoDead {
		c.fail(PropFlow, "%s could be published and is a dead letter", l)
	}
	if l.back.excused {
		return
	}
	if l.cancelled != 0 && l.size != sizeLarge { // a record that is too large is not claimed first
		c.fail(PropCancel, "%s: cancelled at %s, and then a dead letter", l, c.w.rel(l.cancelled))
	}
	// Each attempt of a run has an event of its own, and that of a later attempt may be refused after
	// that of an earlier one: the owner may not know that an earlier try was stored, and functions
	// retry that event.
	if k := len(l.letters); k > 0 && l.letterOf == letterEvent(e.MsgID) {
		last := l.letters[k-1]
		if leapt := last.stampNs+int64(w.p.dedup) <= e.StampNs && w.now-last.real < int64(w.p.dedup); !leapt {
			c.fail(PropFlow, "%s: a dead letter at %s and again, %s later", l, c.w.rel(last.real), time.Duration(w.now-last.real))
		}
	}
	l.letterOf = letterEvent(e.MsgID)
	l.letters = append(l.letters, copyOf{real: w.now, stampNs: e.StampNs})
}

// letterEvent returns the part of a dead letter's message id that names its event: timer, run and
// attempt.
func letterEvent(msgID string) string {
	parts := strings.SplitN(msgID, ".", 4)
	return strings.Join(parts[:min(len(parts), 3)], ".")
}

// cancelled records the answer to a client's cancel.
func (c *checker) cancelled(l *life) {
	if len(l.fired) > 0 {
		c.fail(PropCancel, "%s: published at %s, and then a cancel said that it had not fired", l, c.w.rel(l.fired[0].real))
	}
}

// operates checks the refusal of an operation on a timer: the record must refuse it, unless it has changed in
// the time of the operation. apply applies the operation to a copy of the record. The operation calls done with its error.
func (c *checker) operates(operation string, id schemas.TimerID, apply func(*schemas.Record) error) (done func(error)) {
	before, berr := c.w.server.Record(id)
	return func(err error) {
		code := schemas.CodeOf(err)
		if code != schemas.CodeNotFound && code != schemas.CodeAlreadyFired && code != schemas.CodeAlreadyDone {
			return
		}
		now, nerr := c.w.server.Record(id)
		if berr != nil || nerr != nil || before.Rev != now.Rev {
			return
		}
		rec := now.Record
		if code == schemas.CodeNotFound && rec.State.Final() {
			return // it may have expired, before the leader's clock was set back
		}
		if code == schemas.CodeNotFound || apply(&rec) == nil {
			c.fail(PropRefused, "the %s of %s was refused (%v), although its record at revision %d is %s", operation, id, err, now.Rev, now.Record.State)
		}
	}
}

// claims checks a claim that a term is about to send.
func (c *checker) claims(t *term, w store.Write) {
	c.owns(t, "claim", w.ID)
	dueMs := w.Record.DueMs
	if w.Record.Schedule != nil {
		dueMs = c.decidedMs(w)
	}
	since := c.w.now
	if len(t.n.readings) > 0 {
		since = t.n.readings[0]
	}
	if latest := c.w.net.latest(since); dueMs*int64(time.Millisecond) > latest {
		c.fail(PropEarly, "%s claims %s, due %s, %s early", t.n.name, c.w.byID[w.ID], c.w.ms(dueMs), time.Duration(dueMs*int64(time.Millisecond)-latest))
	}
}

// publishes checks an event or a dead letter that a term is about to publish.
func (c *checker) publishes(t *term, what string, m store.Msg) {
	id, err := schemas.ParseTimerID(m.MsgID[:schemas.TimerIDLength])
	if err != nil || c.w.byID[id] == nil {
		c.fail(PropState, "%s sets out to %s no timer: %q", t.n.name, what, m.MsgID)
		return
	}
	c.owns(t, what, id)
}

func (c *checker) owns(t *term, what string, id schemas.TimerID) {
	// While the clock is damaged, the shard's owner is the node that wrote it last.
	now := c.w.server.LastClock(t.shard)
	if now.Epoch != t.epoch || now.Owner != t.n.name {
		c.fail(PropOwner, "%s, of epoch %d, sets out to %s %s; shard %d is %q's since epoch %d", t.n.name, t.epoch, what, c.w.byID[id], t.shard, now.Owner, now.Epoch)
	}
}

// swept checks a record that a sweeper has found. The sweeper may have read it from a replica
// that lags; that does no harm and is no violation.
func (c *checker) swept(t *term, ev scheduler.EvSwept) {
	rec, err := c.w.server.Record(ev.Timer.ID)
	if err == nil && !ev.Redispatch && rec.Rev == ev.Timer.Rev && rec.Record.Pending() && !c.w.byID[rec.ID].half {
		c.fail(PropSwept, "%s, due %s, waits behind the low watermark %s of shard %d", c.w.byID[rec.ID], c.w.ms(rec.Record.DueMs), c.w.ms(c.w.server.LastClock(t.shard).TimeMs), t.shard)
	}
}

// called records the call of a callback.
func (c *checker) called(l *life, n *node, attempt uint32) {
	c.w.stats.Called++
	c.w.trace("%s: %s calls back, attempt %d", l, n.name, attempt)
	l.calls++
	if len(l.fired) == 0 {
		c.fail(PropCalled, "%s was called back and never published", l)
	}
}

// --- at the end ---

// settled reports whether every due timer is done.
func (c *checker) settled() bool {
	for _, l := range c.w.lives {
		if c.left(l) != "" {
			return false
		}
	}
	if !c.schedulesSettled() {
		return false
	}
	for shard := range c.w.p.geo.Shards {
		if c.stopped(shard) > 0 {
			return false
		}
	}
	return true
}

// markBound bounds the lag of a shard's low watermark once all timers are done. The owner
// writes the low watermark once in each heartbeat interval.
const markBound = 5 * time.Second

// stopped returns the lag of a shard's low watermark if it is above markBound; 0 otherwise.
func (c *checker) stopped(shard int) time.Duration {
	clock, _, err := c.w.server.Clock(shard)
	now := c.w.net.serverTime(c.w.net.leaderOf(fake.StreamClock)) / int64(time.Millisecond)
	if behind := time.Duration(now-clock.TimeMs) * time.Millisecond; err == nil && behind > markBound {
		if c.w.cfg.Newer && c.w.stuck(shard) {
			return 0
		}
		return behind
	}
	return 0
}

// left describes the missing step of a due timer; "" if the timer is done.
func (c *checker) left(l *life) string {
	t, err := c.w.server.Record(l.id)
	missing := err != nil
	r := &t.Record
	now := c.w.net.serverTime(c.w.net.leaderOf(fake.StreamClock)) / int64(time.Millisecond)
	switch {
	case l.damaged && c.w.server.Damaged(l.id):
		return c.damaged(l)
	case l.cancelled != 0, l.promised == 0 && (len(l.dues) == 0 || l.half):
		return ""
	case len(l.dues) == 0 && l.rejected:
		return ""
	case len(l.dues) == 0:
		return "was acknowledged and has no record"
	case !missing && r.State == schemas.StatePending && r.DueMs > now:
		return ""
	case !missing && r.Pending() && c.w.cfg.Newer && c.w.unreadable(l.id):
		return ""
	case !missing && r.Pending():
		return "waits, due " + c.w.ms(r.DueMs)
	case len(l.fired) == 0 && l.cancelAsked && (missing && l.final || r.State == schemas.StateCancelled):
		return "" // cancelled by a request whose answer was lost
	case len(l.letters) > 0 && l.final && (missing || r.State == schemas.StateFail):
		return ""
	case len(l.fired) == 0:
		return fmt.Sprintf("was not fired; it is %s", r.State)
	case l.callback && l.calls == 0 && l.endedAt == 0:
		return "was not called back"
	case !l.final:
		return fmt.Sprintf("has not concluded: it is %s", r.State)
	}
	return ""
}

func (c *checker) atEnd() {
	if len(c.violations) >= maxViolations {
		return
	}
	for _, l := range c.w.lives {
		if what := c.left(l); what != "" {
			property := PropKept
			switch {
			case l.size == sizeNoFire, l.size == sizeLarge:
				property = PropFlow
			case l.damaged:
				property = PropDamaged
			case len(l.fired) > 0:
				property = PropCalled
			}
			c.fail(property, "%s %s", l, what)
		}
		c.onTime(l)
		c.indexed(l)
		if c.w.cfg.Newer {
			c.held(l)
		}
	}
	c.schedulesAtEnd()
	for shard := range c.w.p.geo.Shards {
		if !c.w.cfg.Damage && !c.w.cfg.Newer {
			c.counted(shard)
		}
		if c.w.quotas != nil {
			c.quotas(shard)
		}
		if behind := c.stopped(shard); behind > 0 {
			c.fail(PropFlow, "the low watermark of shard %d is %s behind", shard, behind)
		}
	}
}

func (c *checker) onTime(l *life) {
	if len(l.fired) == 0 || len(l.moving) > 0 || l.promised == 0 || l.newer || l.damaged {
		return
	}
	if !l.late && (c.w.cfg.Seed%10 != 0 || l.bornAt < c.w.epoch+int64(settleFor)) {
		return
	}
	// A call to a dead server fails after callTimeout and is repeated after the longest pause.
	// In production the client repeats the request earlier.
	if l.bornAt < c.w.net.backAt+int64(callTimeout+2*time.Second) {
		return
	}
	// Compare with the true time: without faults, the cluster's clock is near it.
	from := max(l.claimedDueMs*int64(time.Millisecond)-c.skew(), l.promised)
	if late := time.Duration(l.fired[0].real - from); late > onTimeBound {
		c.fail(PropOnTime, "%s, due %s, fired %s late", l, c.w.ms(l.claimedDueMs), late)
	}
	if l.callback || l.sched != nil || l.run != nil {
		return
	}
	// The method left reports timers without a final record.
	if open := time.Duration(l.finalAt - l.fired[0].real); l.final && open > finalBound {
		c.fail(PropFinished, "%s fired at %s, and its final record came %s later", l, c.w.rel(l.fired[0].real), open)
	}
}

// skew returns how far the cluster's clock is ahead of the true time.
func (c *checker) skew() int64 {
	return c.w.net.serverTime(c.w.net.leaderOf(fake.StreamClock)) - c.w.now
}

func (c *checker) indexed(l *life) {
	t, err := c.w.server.Record(l.id)
	if c.w.unreadable(l.id) {
		return // its entry may have expired: the node that can read it reads the whole shard
	}
	if err == nil && t.Record.Pending() && l.promised != 0 && !c.w.server.Indexed(l.id, c.w.p.geo.Tick(t.Record.DueMs)) {
		c.fail(PropIndexed, "%s, due %s", l, c.w.ms(t.Record.DueMs))
	}
}
