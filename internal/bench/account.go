package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// Verified has the numbers of correct and incorrect timers of a run.
type Verified struct {
	// Expected is the number of timers of the run. Found is the number of timers found in the
	// stream of fired events, or among the records if they are not due.
	Expected int `json:"expected"`
	Found    int `json:"found"`
	// Missing, Duplicates (in that stream), Early and Wrong (records not in the expected
	// state) must be 0.
	Missing    int `json:"missing"`
	Duplicates int `json:"duplicates"`
	Early      int `json:"early"`
	Wrong      int `json:"wrong"`
	// Why counts the missing and wrong timers by reason.
	Why map[string]int `json:"why,omitempty"`
	// Unseen counts the events in TIMERS_FIRED that did not reach the live subscriber. Repeated
	// counts the events that reached it, or the callback, more than once. Neither is an error:
	// core NATS does not guarantee delivery, and a callback is called at least once.
	Unseen   int `json:"unseen,omitempty"`
	Repeated int `json:"repeated,omitempty"`
	// Removed counts the events that TIMERS_FIRED had removed by its limits before they were read, as in a run
	// with more timers than its limit for each service. The live subscriber is the proof that they fired.
	Removed int `json:"removed,omitempty"`
}

func (v *Verified) because(why string) {
	if v.Why == nil {
		v.Why = map[string]int{}
	}
	v.Why[why]++
}

// Reasons lists Why: "3 pending still, 1 never stored".
func (v Verified) Reasons() string {
	var out []string
	for why, n := range v.Why {
		out = append(out, fmt.Sprintf("%d %s", n, why))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// Err returns an error that wraps ErrUnsound if a timer is missing, early, duplicated or
// in a wrong state.
func (v Verified) Err() error {
	if v.Missing == 0 && v.Duplicates == 0 && v.Early == 0 && v.Wrong == 0 {
		return nil
	}
	err := fmt.Errorf("%w: of %d timers %d are missing, %d came twice, %d came early, %d are in a wrong state", ErrUnsound, v.Expected, v.Missing, v.Duplicates, v.Early, v.Wrong)
	if len(v.Why) > 0 {
		err = fmt.Errorf("%w (%s)", err, v.Reasons())
	}
	return err
}

// Account is the state of a run's timers at its end.
type Account struct {
	Verified
	dueMs, received, stored []int64
	// covered marks the nominal times of schedules that did not fire, because a later run
	// fired for them; nil if all fired.
	covered []bool
	// missing are the numbers of the timers that count as missing.
	missing []int
	// fromMs is the time from which the lateness of each timer counts: its due time, or its add
	// if that was later.
	fromMs []int64
}

const (
	// accountQuiet bounds the wait for a message of TIMERS_FIRED. After it the stream's state
	// shows whether there is one.
	accountQuiet = time.Second
	// accountPatience is the time without a message after which the remaining timers count as
	// missing.
	accountPatience = 30 * time.Second
)

// Account reads the stream of the events that fired, the only proof of firing that a crash leaves, until it contains
// every timer that its limits have not removed, or no more messages come. Then it reads the record of each missing timer.
func (w *Watch) Account(ctx context.Context, p *progress) (*Account, error) {
	return w.accountPatient(ctx, p, accountPatience)
}

func (w *Watch) accountPatient(ctx context.Context, p *progress, patience time.Duration) (*Account, error) {
	acc := &Account{dueMs: w.dueMs, stored: make([]int64, len(w.dueMs)), fromMs: slices.Clone(w.dueMs)}
	next, moved := w.first, time.Now()
	found := 0
	var removed uint64
	for {
		last, err := w.read(ctx, next, func(n int, at time.Time, addedMs int64, event []byte) {
			acc.fromMs[n] = max(acc.fromMs[n], addedMs)
			if acc.stored[n] != 0 {
				acc.Duplicates++
			} else {
				acc.stored[n] = at.UnixNano()
				found += 1 + acc.cover(n, w.adder.recur.missed(event))
			}
			moved = time.Now()
			p.show("%d of %d accounted for", found, len(w.dueMs))
		})
		next = last + 1
		if err != nil {
			// The consumer may be lost with its leader; the next consumer continues.
			if err := againAfter(ctx, err, moved, patience); err != nil {
				return nil, fmt.Errorf("read the events that fired: %w", err)
			}
			continue
		}
		if removed, err = w.removed(ctx); err != nil {
			return nil, err
		}
		if found+int(removed) >= len(w.dueMs) || time.Since(moved) > patience {
			break
		}
		p.show("%d of %d accounted for; waiting for the others", found, len(w.dueMs))
	}
	acc.received, acc.Repeated = w.result()
	acc.verify(int(removed))
	return acc, w.explain(ctx, acc)
}

// removed returns the number of messages that the stream of the events has removed since the watch began.
func (w *Watch) removed(ctx context.Context) (uint64, error) {
	name, _ := w.adder.fired()
	s, err := w.env.js.Stream(ctx, name)
	if err != nil {
		return 0, err
	}
	return removedEver(s) - w.removedBefore, nil
}

// removedEver returns the number of messages that a stream has removed since it was made.
func removedEver(s jetstream.Stream) uint64 {
	state := &s.CachedInfo().State
	return state.LastSeq - state.Msgs
}

// againPause is the pause before a failed read of a stream is repeated.
const againPause = 100 * time.Millisecond

// againAfter waits before a failed read is repeated. It returns an error if ctx ended, or if
// nothing has come for too long.
func againAfter(ctx context.Context, err error, moved time.Time, patience time.Duration) error {
	if time.Since(moved) > patience {
		return err
	}
	if !waitUntil(ctx, time.Now().Add(againPause)) {
		return context.Cause(ctx)
	}
	return nil
}

// read calls see for each timer in the stream from a sequence to the end, and returns the last
// sequence that it read.
func (w *Watch) read(ctx context.Context, from uint64, see func(n int, at time.Time, addedMs int64, event []byte)) (uint64, error) {
	last := from - 1
	stream, subject := w.adder.fired()
	c, err := w.env.js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{subject}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		InactiveThreshold: readerGone,
	})
	if err != nil {
		return last, err
	}
	it, err := c.Messages(jetstream.PullMaxMessages(2048))
	if err != nil {
		return last, err
	}
	defer it.Stop()
	unhook := context.AfterFunc(ctx, it.Stop)
	defer unhook()
	for {
		m, err := it.Next(jetstream.NextMaxWait(accountQuiet))
		switch {
		case ctx.Err() != nil:
			return last, context.Cause(ctx)
		case errors.Is(err, nats.ErrTimeout):
			info, err := c.Info(ctx)
			if err != nil || info.NumPending == 0 {
				return last, err
			}
			continue
		case err != nil:
			return last, err
		}
		meta, err := m.Metadata()
		if err != nil {
			return last, err
		}
		last = meta.Sequence.Stream
		if n, ours := w.adder.number(m.Data()); ours && n < len(w.dueMs) {
			// An event that Belfry did not publish, also one of a peer, has no claim, and 0 for its
			// AddedMs.
			claim, _ := schemas.ParseClaim(m.Headers().Get(schemas.HeaderClaim))
			see(n, meta.Timestamp, claim.AddedMs, m.Data())
		}
	}
}

// cover marks the missed nominal times before that of run n, and returns their number.
func (a *Account) cover(n, missed int) int {
	if missed == 0 {
		return 0
	}
	if a.covered == nil {
		a.covered = make([]bool, len(a.dueMs))
	}
	marked := 0
	for i := max(n-missed, 0); i < n; i++ {
		if !a.covered[i] {
			a.covered[i] = true
			marked++
		}
	}
	return marked
}

func (a *Account) covers(n int) bool { return a.covered != nil && a.covered[n] }

// verify counts the timers. A timer that is not in the stream counts as found if the subscriber received it, as long as
// the stream has removed as many.
func (a *Account) verify(removed int) {
	a.Expected = len(a.dueMs)
	for n, due := range a.dueMs {
		at := a.stored[n]
		if a.covers(n) {
			if at != 0 {
				a.Duplicates++
			}
			a.Found++
			continue
		}
		if at == 0 {
			if a.Removed == removed || a.received[n] == 0 {
				a.missing = append(a.missing, n)
				continue
			}
			a.Removed++
			at = a.received[n]
		}
		a.Found++
		if at < due*int64(time.Millisecond) {
			a.Early++
		}
		if a.received[n] == 0 {
			a.Unseen++
		}
	}
	a.Missing = len(a.missing)
}

// explainMost bounds the records that explain reads, one by one.
const explainMost = 1000

// explain counts the missing timers by the state of their records.
func (w *Watch) explain(ctx context.Context, acc *Account) error {
	for i, n := range acc.missing {
		if i >= explainMost {
			acc.because("not looked at")
			continue
		}
		why, err := w.env.sut().explain(ctx, w.adder, n/w.adder.runs())
		if err != nil {
			return fmt.Errorf("look up a missing timer: %w", err)
		}
		acc.because(why)
	}
	return nil
}

// explainRecord describes the record of a timer that did not fire.
func (e *Env) explainRecord(ctx context.Context, id schemas.TimerID) (string, error) {
	r, err := e.record(ctx, id)
	if err != nil {
		return "", err
	}
	switch {
	case r == nil:
		s, err := e.js.Stream(ctx, schemas.StreamAdd)
		if err != nil {
			return "", err
		}
		if s.CachedInfo().State.Msgs > 0 {
			return "not yet stored, adds wait for the router", nil
		}
		return "never stored", nil
	case r.State == schemas.StatePending:
		return "pending still", nil
	case r.State == schemas.StateDelivered:
		return "claimed, not published", nil
	}
	return r.State.String() + ", but not in " + schemas.StreamFired, nil
}

// latenessAtSubscriber is the name of the distribution that figures and goals use.
const latenessAtSubscriber = "lateness at the subscriber"

// Lateness returns the lateness of the received and of the stored events. An event that did not
// reach the subscriber counts in both with the stream's timestamp. If it were left out, the
// latest events might be missing, and the result would be too good.
func (a *Account) Lateness() (bySubscriber, byStream *Latency) {
	received := append([]int64(nil), a.received...)
	for n, at := range received {
		if at == 0 {
			received[n] = a.stored[n]
		}
	}
	return latencyOf(latenessAtSubscriber, a.fromMs, received), latencyOf("lateness by the stream's timestamp", a.fromMs, a.stored)
}
