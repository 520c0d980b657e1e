package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// Watch sees timers fire: live, by a subscription to timers.fired.<service>, and
// afterwards in TIMERS_FIRED.
type Watch struct {
	env     *Env
	service string
	dueMs   []int64
	index   map[string]int32 // by Nats-Msg-Id
	first   uint64           // sequence of the stream from which on it is ours

	mu       sync.Mutex
	received []int64 // Unix nanoseconds, 0 for not yet
	seen     int
	twice    int
	all      chan struct{} // closed when every timer was received
}

// Verified is the account of a run's timers.
type Verified struct {
	// Expected timers, and those Found in TIMERS_FIRED (or among the records, for
	// timers that are not due).
	Expected int `json:"expected"`
	Found    int `json:"found"`
	// Missing, Duplicates and Early are what must be 0.
	Missing    int `json:"missing"`
	Duplicates int `json:"duplicates"`
	Early      int `json:"early"`
}

func (v Verified) err() error {
	if v.Missing == 0 && v.Duplicates == 0 && v.Early == 0 {
		return nil
	}
	return fmt.Errorf("%w: of %d timers %d are missing, %d came twice, %d came early", ErrUnsound, v.Expected, v.Missing, v.Duplicates, v.Early)
}

// Watch begins to watch the timers 0 to len(dueMs)-1 of the adder.
func (e *Env) Watch(ctx context.Context, a *Adder, dueMs []int64) (*Watch, error) {
	w := &Watch{env: e, service: a.service, dueMs: dueMs, index: make(map[string]int32, len(dueMs)), received: make([]int64, len(dueMs)), all: make(chan struct{})}
	for n := range dueMs {
		w.index[a.Timer(n).MsgID(1)] = int32(n)
	}
	s, err := e.js.Stream(ctx, schemas.StreamFired)
	if err != nil {
		return nil, err
	}
	w.first = s.CachedInfo().State.LastSeq + 1
	nc, err := e.Connect("belfry bench subscriber")
	if err != nil {
		return nil, err
	}
	sub, err := nc.Subscribe(schemas.SubjectFired(a.service), w.receive)
	if err != nil {
		return nil, err
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, addTimeout)
	defer cancel()
	return w, nc.FlushWithContext(ctx)
}

func (w *Watch) receive(m *nats.Msg) {
	now := time.Now().UnixNano()
	n, ours := w.index[m.Header.Get(jetstream.MsgIDHeader)]
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !ours:
	case w.received[n] != 0:
		w.twice++
	default:
		w.received[n] = now
		if w.seen++; w.seen == len(w.received) {
			close(w.all)
		}
	}
}

// Seen is how many timers were received until now.
func (w *Watch) Seen() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen
}

// Wait waits until every timer was received. It gives up, without an error, when
// nothing has come for patience after the last due time: Account tells what is
// missing.
func (w *Watch) Wait(ctx context.Context, patience time.Duration, tick func(seen int)) error {
	last, moved := -1, time.Now()
	lastDue := time.UnixMilli(0)
	for _, ms := range w.dueMs {
		if d := time.UnixMilli(ms); d.After(lastDue) {
			lastDue = d
		}
	}
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-w.all:
			tick(len(w.dueMs))
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C:
		}
		now, seen := time.Now(), w.Seen()
		if seen != last || now.Before(lastDue) {
			last, moved = seen, now
		}
		if now.Sub(moved) > patience {
			return nil
		}
		tick(seen)
	}
}

// Account reads TIMERS_FIRED and compares it with what was asked for.
func (w *Watch) Account(ctx context.Context) (*Account, error) {
	acc := &Account{dueMs: w.dueMs, stored: make([]int64, len(w.dueMs))}
	c, err := w.env.js.OrderedConsumer(ctx, schemas.StreamFired, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{schemas.SubjectFired(w.service)}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: w.first, HeadersOnly: true,
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", schemas.StreamFired, err)
	}
	it, err := c.Messages(jetstream.PullMaxMessages(4096))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", schemas.StreamFired, err)
	}
	defer it.Stop()
	unhook := context.AfterFunc(ctx, it.Stop)
	defer unhook()
	info, err := c.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", schemas.StreamFired, err)
	}
	// A subscriber receives a message before the stream has stored it, so what was
	// there when the consumer was made need not be all.
	for left := int64(info.NumPending + info.Delivered.Consumer); left > 0 || acc.found < len(w.dueMs); left-- {
		m, err := it.Next(jetstream.NextMaxWait(accountWait))
		if errors.Is(err, nats.ErrTimeout) {
			break // what is missing, is missing
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", schemas.StreamFired, err)
		}
		if err := w.account(acc, m); err != nil {
			return nil, err
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	acc.received = append([]int64(nil), w.received...)
	acc.verify(w.twice)
	return acc, nil
}

func (w *Watch) account(acc *Account, m jetstream.Msg) error {
	n, ours := w.index[m.Headers().Get(jetstream.MsgIDHeader)]
	if !ours {
		return nil
	}
	meta, err := m.Metadata()
	if err != nil {
		return err
	}
	if acc.stored[n] != 0 {
		acc.Duplicates++
		return nil
	}
	acc.stored[n] = meta.Timestamp.UnixNano()
	acc.found++
	return nil
}

// Account is what became of a run's timers.
type Account struct {
	Verified
	dueMs, received, stored []int64
	found                   int
}

// accountWait is how long Account waits for a message that is to be there.
const accountWait = 10 * time.Second

func (a *Account) verify(twice int) {
	a.Expected = len(a.dueMs)
	a.Duplicates = max(a.Duplicates, twice)
	for n, due := range a.dueMs {
		switch at := a.stored[n]; {
		case at == 0 || a.received[n] == 0:
			a.Missing++
		case at < due*int64(time.Millisecond):
			a.Early++
			a.Found++
		default:
			a.Found++
		}
	}
}

// Lateness of the received or the stored events.
func (a *Account) Lateness() (bySubscriber, byStream *Latency) {
	return latencyOf("lateness at the subscriber", a.dueMs, a.received), latencyOf("lateness by the stream's timestamp", a.dueMs, a.stored)
}

func latencyOf(name string, dueMs, at []int64) *Latency {
	l := newLatency(name)
	for n, due := range dueMs {
		if at[n] != 0 {
			l.add(time.Duration(at[n] - due*int64(time.Millisecond)))
		}
	}
	return l
}

// Latency is a distribution of durations, kept to three digits from a
// microsecond to an hour.
type Latency struct {
	Name string
	h    *hdr.Histogram
}

const longest = time.Hour

func newLatency(name string) *Latency {
	return &Latency{Name: name, h: hdr.New(1, longest.Microseconds(), 3)}
}

// add records a duration; what is out of range is put at its end.
func (l *Latency) add(d time.Duration) {
	// The range was checked, so the histogram takes it.
	_ = l.h.RecordValue(min(max(d, 0), longest).Microseconds())
}

// At is a percentile, in milliseconds.
func (l *Latency) At(percentile float64) float64 {
	if percentile >= 100 {
		return float64(l.h.Max()) / 1000
	}
	return float64(l.h.ValueAtQuantile(percentile)) / 1000
}
