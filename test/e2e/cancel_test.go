//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/chaos/check"
)

func decode[T any](t *testing.T, b []byte) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// TestCancelRace cancels thousands of timers within a millisecond of their due times.
// Each is either cancelled or fired, never both and never neither. A worker adapts the
// moment of its cancels to the outcome of the last one, so that a slow machine races,
// too.
func TestCancelRace(t *testing.T) { // not in parallel: it needs the milliseconds
	const tries = 10
	rounds := testsize.Choose(t, "rounds", 1, 2, 4)
	r := &cancelRace{t: t, rate: 1000, size: 2500, rec: check.NewRecorder(nil)}
	a := node(t, nil)
	r.c = connect(t, a.NATSURL())
	lead := 2 * time.Second
	for run, try := 0, 0; run < rounds; try++ {
		begin := time.Now().Add(lead).Truncate(time.Millisecond)
		first := r.added
		r.add(begin)
		switch {
		case !time.Now().After(begin):
			r.race(first, begin)
			run++
		case try >= tries:
			t.Fatalf("%d timers are not stored within %s: the test needs them earlier", r.size, lead)
		default: // the rest fire without a race
			lead *= 2
		}
	}
	waittest.Until(t, "nothing is pending", func() bool {
		return r.c.none(schemas.ListRequest{States: []schemas.State{schemas.StatePending, schemas.StateDelivered}, Service: raceService})
	})
	for _, e := range r.c.firedEvents(raceService, 0) {
		r.rec.Put(check.Event{Kind: check.Fired, Source: e.source, ID: e.id, TimeNs: e.at.UnixNano(), Key: e.msgID, Data: e.data, Sequence: e.seq})
	}
	events, err := r.rec.Events()
	if err != nil {
		t.Fatal(err)
	}
	rep := check.Check(events)
	t.Logf("\n%s", rep)
	for i, v := range rep.Violations {
		if i == 20 {
			break
		}
		t.Error(v)
	}
	raced := int(r.raced.Load())
	if rep.Cancelled+rep.CancelsTooLate+rep.UnknownCan != raced {
		t.Errorf("cancelled %d, too late %d, unknown %d: of %d cancels", rep.Cancelled, rep.CancelsTooLate, rep.UnknownCan, raced)
	}
	if left := r.added - rep.Cancelled - rep.Fired; left < 0 || left > rep.UnknownCan {
		t.Errorf("cancelled %d, unknown %d, fired %d: of %d timers", rep.Cancelled, rep.UnknownCan, rep.Fired, r.added)
	}
	if rep.Cancelled == 0 || rep.CancelsTooLate == 0 {
		t.Errorf("not a race: %d cancelled, %d too late; want some of each", rep.Cancelled, rep.CancelsTooLate)
	}
}

const raceService = "race"

// cancelRace adds timers and cancels them.
type cancelRace struct {
	t          *testing.T
	c          *client
	rec        *check.Recorder
	rate, size int // timers due per second and per round
	added      int
	raced      atomic.Int64
}

func raceID(n int) string { return fmt.Sprintf("race-%d", n) }

func (r *cancelRace) due(n int, begin time.Time) time.Time {
	return begin.Add(time.Duration(n%r.size) * time.Second / time.Duration(r.rate))
}

// add adds the timers of a round and waits until they are stored.
func (r *cancelRace) add(begin time.Time) {
	r.t.Helper()
	calls := make([]int64, r.size)
	r.c.publishAll(r.size, func(i int) *nats.Msg {
		n := r.added + i
		due := r.due(n, begin).UnixMilli()
		calls[i] = r.rec.Put(check.Event{Kind: check.Add, Via: "publish", Source: "/e2e", ID: raceID(n), DueMs: due, Data: "x"})
		return binary(attrs{"id": raceID(n), "timersvc": raceService, "timerat": schemas.FormatTime(due)}, "text/plain", "x")
	})
	for _, call := range calls {
		r.rec.Put(check.Event{Kind: check.Answer, Call: call, OK: true})
	}
	r.added += r.size
	waittest.Until(r.t, "every add stored", func() bool { return r.c.left(schemas.StreamAdd) == 0 })
}

// race cancels the timers of a round. Timers whose moment has passed, because the machine
// stopped or the last cancel was slow, fire without a race.
func (r *cancelRace) race(first int, begin time.Time) {
	const (
		workers         = 32
		furthest, least = time.Second, 250 * time.Microsecond
	)
	var wg sync.WaitGroup
	for w := range workers {
		rng := rand.New(rand.NewPCG(uint64(first), uint64(w)))
		wg.Go(func() {
			ahead := time.Duration(0)
			for n := first + w; n < first+r.size; n += workers {
				// The request takes a fraction of a millisecond.
				wait := time.Until(r.due(n, begin)) - ahead - time.Duration(rng.Int64N(int64(3*time.Millisecond))) + 500*time.Microsecond
				if wait < -time.Millisecond {
					continue
				}
				time.Sleep(wait)
				switch r.cancel(n) {
				case "":
					ahead = max(ahead-max(ahead.Abs()/4, least), -furthest)
				case schemas.CodeAlreadyFired:
					ahead = min(ahead+max(ahead.Abs()/2, least), furthest)
				}
			}
		})
	}
	wg.Wait()
}

// cancel returns the code of the error, or "".
func (r *cancelRace) cancel(n int) schemas.Code {
	r.raced.Add(1)
	call := r.rec.Put(check.Event{Kind: check.Cancel, Via: "api", Source: "/e2e", ID: raceID(n)})
	var info schemas.TimerInfo
	err := r.c.callOnce(request("cancel", schemas.TimerRef{ID: raceID(n), Source: "/e2e"}), &info)
	code := schemas.CodeOf(err)
	if err != nil && code == "" {
		r.t.Errorf("%s: %v", raceID(n), err)
	}
	r.rec.Put(check.Event{Kind: check.Answer, Call: call, OK: err == nil, Code: string(code)})
	return code
}
