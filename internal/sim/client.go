package sim

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/sim/fake"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// services are the services that timers fire for.
var services = [...]string{"a", "b", "c"}

// life is one timer: the operations of its client, and their results.
type life struct {
	n        int
	id       schemas.TimerID
	service  string
	callback bool
	fails    int  // attempts of its callback that fail
	refuses  bool // its callback is refused permanently
	// atMs is the requested due time in Unix milliseconds; if it is 0, afterMs counts from the
	// add.
	atMs, afterMs int64
	bornAt        int64 // true time of the first try to add it
	late          bool  // added after the last fault
	size          size
	viaAPI        bool

	// promised is the time at which the add was acknowledged; 0 if it was not.
	promised int64
	// moving holds the due times of acknowledged moves, and of moves without an answer.
	moving       []int64
	cancelAsked  bool
	cancelled    int64 // when a cancel was acknowledged while it had not fired
	claimed      int64 // when its run was first claimed
	claimedDueMs int64
	dues         []int64 // due times of its records, in order
	fired        []copyOf
	calls        int
	final        bool // its record was final once
	finalAt      int64
	finalRev     uint64
	finalRead    int64    // when an owner's tail has read that
	seen         bool     // its record was stored once
	letters      []copyOf // its dead letters
	letterOf     string   // the event of the last of them
	newer        bool     // its record was written in a newer format
	// firstRev is the revision that created its record. addRead says that an owner's tail has
	// read that revision. changedUnread counts first revisions that were replaced before.
	firstRev      uint64
	addRead       bool
	changedUnread int
	damaged       bool // its record was damaged in the store
	back          comeback
	overwritten   bool // by a new revision
	rejected      bool // because of its size
	// half says that the index entry was lost when the record was created. The router then
	// does not acknowledge the add, and its redelivery writes the entry again.
	half bool
	// endedAt is the true time at which the timer was cancelled while it waited for its slot or a
	// retry; 0 for never.
	endedAt int64
	// sched is the schedule whose record this is, run the run of a schedule; nil for a
	// one-shot timer.
	sched *schedule
	run   *run
}

// String names the timer in messages.
func (l *life) String() string {
	switch {
	case l == nil:
		return "an unknown timer"
	case l.sched != nil:
		return fmt.Sprintf("schedule %d", l.n)
	case l.run != nil:
		return fmt.Sprintf("run %d.%d", l.n, l.run.number)
	}
	return fmt.Sprintf("timer %d", l.n)
}

// copyOf is one event on timers.fired.
type copyOf struct{ real, stampNs int64 }

// due returns the last known due time.
func (l *life) due() int64 {
	if len(l.dues) > 0 {
		return l.dues[len(l.dues)-1]
	}
	return l.atMs
}

// asFired returns the attributes of the timer's or run's event.
func (l *life) asFired() schemas.Fired {
	if l.run != nil {
		return schemas.Fired{ScheduledMs: l.run.nominalMs, Missed: l.run.missed, Trigger: l.run.trigger}
	}
	return schemas.Fired{ScheduledMs: l.due()}
}

// size selects the messages of a timer that are refused permanently.
type size uint8

const (
	sizeSmall  size = iota
	sizeNoFire      // its event: more headers than JetStream stores
	sizeNoDead      // its dead letter in its unchanged form: the error makes it too large
	sizeLarge       // its record, once the servers' limit is smaller
)

// Sizes of headers and data. A fired event adds some 300 bytes of headers, a dead
// letter 700 more.
const (
	noFireHeaders = 65_400
	noDeadHeaders = 64_900
	largeData     = 100_000
	shrunkMessage = 80_000
)

// body returns the timer's event.
func (l *life) body() schemas.Body {
	b := eventBody
	switch l.size {
	case sizeNoFire:
		b.Headers = append(b.Headers[:1:1], schemas.HeaderField{Name: "X", Value: long[:noFireHeaders]})
	case sizeNoDead:
		b.Headers = append(b.Headers[:1:1], schemas.HeaderField{Name: "X", Value: long[:noDeadHeaders]})
	case sizeLarge:
		b.Data = []byte(long[:largeData])
	}
	return b
}

var long = strings.Repeat("x", largeData)

var eventBody = schemas.Body{Mode: schemas.ModeBinary, Headers: []schemas.HeaderField{{Name: "ce-id", Value: "1"}}, Data: []byte("e")}

// record returns the record that the router makes from the add.
func (l *life) record(addedMs int64) *schemas.Record {
	due := l.atMs
	if due == 0 {
		due = addedMs + l.afterMs
	}
	r := &schemas.Record{
		Definition: schemas.Definition{AddedMs: addedMs, Hash: [16]byte(l.id), Service: l.service, Source: "/sim", EventID: strconv.Itoa(l.n), Body: l.body()},
		RunState:   schemas.RunState{State: schemas.StatePending, Queued: true, Run: 1, MaxAttempt: l.spec().MaxAttempts, DueMs: due, ScheduledMs: due},
	}
	if l.callback {
		r.Callback = "nats:" + l.service
	}
	return r
}

func (l *life) spec() schemas.Spec {
	return schemas.Spec{Timer: l.id, Service: l.service, Hash: [16]byte(l.id), RetryPolicy: schemas.RetryPolicy{MaxAttempts: 4, BackoffFirst: 700 * time.Millisecond, BackoffTo: 4 * time.Second}, Callback: "nats:" + l.service}
}

func (l *life) callTakes(w *world) time.Duration {
	if w.oneIn(40) || l.run != nil && w.oneIn(4) {
		return w.between(time.Second, 4*time.Second)
	}
	return w.between(time.Millisecond, 100*time.Millisecond)
}

// outcome returns the callback's answer to an attempt.
func (l *life) outcome(w *world, attempt uint32) callback.Outcome {
	switch {
	case l.refuses:
		return callback.Permanent(callback.ReasonInternal, "refused")
	case int(attempt) <= l.fails && w.oneIn(4):
		return callback.Outcome{Retryable: true, NotNow: true, RetryAfter: w.between(0, 5*time.Second)}
	case int(attempt) <= l.fails:
		return callback.Retry(callback.ReasonInternal, "not yet")
	}
	return callback.Outcome{Success: true}
}

// --- clients ---

// scheduleClients plans the lives of all timers.
func (w *world) scheduleClients() {
	w.healed = w.epoch + int64(w.p.active) + int64(time.Second)
	desk := newNode(w, 0)
	w.desk = desk
	desk.name, desk.up, desk.known, desk.bootAt = "clients", true, true, w.epoch
	desk.client = fake.NewClient(w.server, link{n: desk}, desk.name, func() int64 { return w.now / int64(time.Millisecond) })
	instant := int64(w.between(5*time.Second, w.p.active))
	for i := range w.p.timers + w.p.timers/10 {
		l := &life{n: i, id: schemas.NewTimerID("/sim", strconv.Itoa(i)), service: services[w.rng.IntN(len(services))]}
		w.lives = append(w.lives, l)
		w.byID[l.id] = l
		l.bornAt = w.epoch + int64(w.between(50*time.Millisecond, w.p.active))
		if l.late = i >= w.p.timers; l.late {
			l.bornAt = w.settleAt() - int64(w.between(5*time.Second, 13*time.Second))
		}
		if l.callback = w.oneIn(2); l.callback {
			l.fails = max(0, w.rng.IntN(10)-5)
			l.refuses = w.oneIn(12)
		}
		l.viaAPI = w.oneIn(5)
		switch {
		case w.p.refusals && i%9 == 4:
			l.size = sizeNoFire
		case w.p.refusals && i%9 == 7:
			l.size = sizeNoDead
		case w.p.shrink && i%9 == 2 && !l.late:
			l.size = sizeLarge
		}
		w.chooseDue(l, instant)
		desk.life(l)
	}
}

func (w *world) chooseDue(l *life, instant int64) {
	bornMs := l.bornAt / int64(time.Millisecond)
	switch k := w.rng.IntN(20); {
	case l.late:
		l.atMs = bornMs + 200 + w.rng.Int64N(5000)
	case w.p.burst && k < 10:
		l.atMs = (w.epoch + instant) / int64(time.Millisecond)
	case k < 9:
		l.atMs = bornMs + w.rng.Int64N(12_000)
	case k < 13:
		l.afterMs = 1 + w.rng.Int64N(4000)
	case k < 15:
		l.atMs = bornMs - w.rng.Int64N(20_000)
	case k < 18:
		l.atMs = bornMs + 5_000 + w.rng.Int64N(25_000)
	case k < 19:
		l.atMs = bornMs + 3_600_000 // after the end of the run
	default:
		// Another revolution of the wheel, if the wheel is small.
		l.atMs = bornMs + 2000 + w.p.geo.WheelSize*w.p.geo.SlotWidth.Milliseconds()
	}
}

// life runs the client of one timer.
func (n *node) life(l *life) {
	w := n.w
	w.at(l.bornAt, func() {
		w.spawn(n, func(p *proc) {
			if !l.add(p) || l.late || w.plantNewer(l) || w.planDamage(l) {
				return
			}
			dueAt := l.atMs*int64(time.Millisecond) - w.now
			if l.atMs == 0 {
				dueAt = l.afterMs * int64(time.Millisecond)
			}
			switch k := w.rng.IntN(20); {
			case k < 2:
				l.cancel(p)
			case k < 5: // close to its due time
				p.sleep(time.Duration(dueAt) + w.between(-30*time.Millisecond, 30*time.Millisecond))
				l.cancel(p)
			case k < 7: // also while it is called back
				p.sleep(w.between(0, time.Duration(max(dueAt, 0))+8*time.Second))
				l.cancel(p)
			case k < 9:
				p.sleep(w.between(0, time.Duration(max(dueAt, 1))))
				l.reschedule(p)
			case k < 11:
				p.sleep(time.Duration(dueAt) + w.between(-30*time.Millisecond, 30*time.Millisecond))
				l.reschedule(p)
			}
		})
	})
}

// add repeats the add until it is acknowledged, or gives up after a while.
func (l *life) add(p *proc) bool {
	w := p.w
	w.stats.Timers++
	for range 8 {
		var err error
		if l.viaAPI {
			err = w.ask(p, func(n *node) error {
				return n.create(l, (n.latestNs()+int64(time.Millisecond)-1)/int64(time.Millisecond), 0).err
			})
		} else {
			_, _, err = p.n.client.Publish(within(callTimeout), store.Msg{Subject: schemas.SubjectAdd, Data: []byte(strconv.Itoa(l.n))})
		}
		if err == nil {
			w.trace("timer %d: add acknowledged, due %s", l.n, w.ms(l.due()))
			l.promised = w.now
			return true
		}
		if store.Permanent(err) {
			return false
		}
		p.sleep(w.between(10*time.Millisecond, time.Second))
	}
	return false
}

func (l *life) cancel(p *proc) {
	w := p.w
	l.cancelAsked = true
	for range 4 {
		var rec schemas.Record
		err := w.ask(p, func(n *node) (err error) {
			rec, err = n.cancelTimer(l.id, schemas.Caller{})
			return err
		})
		switch {
		case err == nil && rec.FiredMs == 0:
			w.trace("timer %d: cancel acknowledged", l.n)
			w.stats.Cancelled++
			l.cancelled = w.now
			w.check.cancelled(l)
			return
		case err == nil || errors.Is(err, schemas.ErrAlreadyFired):
			return
		}
		p.sleep(w.between(10*time.Millisecond, time.Second))
	}
}

func (l *life) reschedule(p *proc) {
	w := p.w
	due := w.now/int64(time.Millisecond) + w.rng.Int64N(16_000) - 1000
	l.moving = append(l.moving, due)
	for range 3 {
		err := w.ask(p, func(n *node) error {
			_, err := n.reschedule(l.id, due)
			return err
		})
		if err == nil {
			w.trace("timer %d: moved to %s", l.n, w.ms(due))
			w.stats.Moved++
			return
		}
		if !errors.Is(err, schemas.ErrUnavailable) && !errors.Is(err, schemas.ErrNotFound) {
			return
		}
		p.sleep(w.between(10*time.Millisecond, time.Second))
	}
}

// ask sends a request to a node, and waits for the answer as a client does. The request or its
// answer may be lost.
func (w *world) ask(p *proc, f func(n *node) error) error {
	got := error(schemas.ErrUnavailable)
	var answer signal
	n := w.someNode()
	if n == nil || w.net.loses() {
		p.sleep(w.between(time.Millisecond, 300*time.Millisecond))
		return got
	}
	inc := n.inc
	asked := true
	w.after(w.net.delay(), func() {
		n.run(inc, func() {
			w.spawn(n, func(*proc) {
				err := f(n)
				if w.now < n.cutUntil || w.net.loses() {
					return
				}
				w.after(w.net.delay(), func() {
					if asked {
						got = err
						answer.give()
					}
				})
			})
		})
	})
	p.sleepOr(callTimeout, &answer)
	asked = false
	return got
}
