package belfrytest_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"go.uber.org/goleak"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/belfrytest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, natstest.ServerLeaks()...) }

// receiver is a server that callbacks call. It notes what the clock shows at each call.
type receiver struct {
	*httptest.Server
	mu    sync.Mutex
	calls []string // the id of the event, and the time of the clock
	fails int      // the number of calls that fail from now on
}

func receive(t *testing.T) *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.calls = append(r.calls, q.Header.Get("ce-id"))
		if r.fails > 0 {
			r.fails--
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) got() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

func (r *receiver) want(t *testing.T, ids ...string) {
	t.Helper()
	if got := r.got(); !slices.Equal(got, ids) {
		t.Fatalf("got calls %v, want %v", got, ids)
	}
}

// newEvent returns an event of service shop.
func newEvent(id string) event.Event {
	e := event.New()
	e.SetID(id)
	e.SetSource("/shop")
	e.SetType("reminder")
	return e
}

func add(t *testing.T, b *belfrytest.Belfry, id string, opts ...belfry.AddOption) belfry.Receipt {
	t.Helper()
	r, err := b.Client().Add(t.Context(), newEvent(id), append([]belfry.AddOption{belfry.WithService("shop")}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func get(t *testing.T, b *belfrytest.Belfry, id belfry.TimerID) belfry.Timer {
	t.Helper()
	timer, err := b.Client().Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return timer
}

const day = 24 * time.Hour

// TestReminder: a reminder in 30 days fires exactly then. Nothing fires before.
func TestReminder(t *testing.T) {
	t.Parallel()
	b, r := belfrytest.New(t), receive(t)
	start := b.Now()
	timer := add(t, b, "a", belfry.After(30*day), belfry.WithCallback(r.URL))
	if fired := b.Advance(30*day - time.Second); fired != 0 {
		t.Errorf("got %d events a second before the due time, want none", fired)
	}
	r.want(t)
	if fired := b.Advance(time.Second); fired != 1 {
		t.Errorf("got %d events, want 1", fired)
	}
	r.want(t, "a")
	if got := get(t, b, timer.Timer); got.State != belfry.StateSuccess || !got.Fired.Equal(start.Add(30*day)) || !got.Due.Equal(start.Add(30*day)) {
		t.Errorf("got %s, due %s, fired %s, want success, due and fired 30 days after %s", got.State, got.Due, got.Fired, start)
	}
	if now := b.Now(); !now.Equal(start.Add(30 * day)) {
		t.Errorf("the clock shows %s, want 30 days after %s", now, start)
	}
}

// TestOrder: one move passes due times in order, whenever their timers were added, with the timers
// that a callback adds.
func TestOrder(t *testing.T) {
	t.Parallel()
	b, r := belfrytest.New(t), receive(t)
	add(t, b, "c", belfry.After(300*day), belfry.WithCallback(r.URL))
	add(t, b, "a", belfry.After(time.Minute), belfry.WithCallback(r.URL))
	adds := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_, err := b.Client().Add(q.Context(), newEvent("b"), belfry.WithService("shop"), belfry.After(day), belfry.WithCallback(r.URL))
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	t.Cleanup(adds.Close)
	add(t, b, "adds", belfry.After(time.Hour), belfry.WithCallback(adds.URL))
	if fired := b.Advance(365 * day); fired != 4 {
		t.Errorf("got %d events, want 4", fired)
	}
	r.want(t, "a", "b", "c")
}

// TestDaylightSaving: a schedule at a local time that one night skips.
func TestDaylightSaving(t *testing.T) {
	t.Parallel()
	b := belfrytest.New(t)
	var mu sync.Mutex
	var got []string
	r := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		c, err := b.Client().Clock(q.Context())
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		got = append(got, c.Now.Format("01-02 15:04"))
	}))
	t.Cleanup(r.Close)
	b.To(time.Date(2027, 3, 27, 0, 0, 0, 0, time.UTC))
	add(t, b, "nightly", belfry.Cron("30 2 * * *"), belfry.Zone("Europe/Berlin"), belfry.WithCallback(r.URL))
	if fired := b.To(time.Date(2027, 3, 30, 0, 0, 0, 0, time.UTC)); fired != 3 {
		t.Errorf("got %d events, want 3", fired)
	}
	mu.Lock()
	defer mu.Unlock()
	// On 28 March there is no 02:30: the run is at 03:00, 01:00 UTC.
	if want := []string{"03-27 01:30", "03-28 01:00", "03-29 00:30"}; !slices.Equal(got, want) {
		t.Errorf("got runs at %v, want %v", got, want)
	}
}

// TestRetry: the retries of a callback follow the clock, and their number and time are right.
func TestRetry(t *testing.T) {
	t.Parallel()
	b, r := belfrytest.New(t), receive(t)
	r.fails = 2
	timer := add(t, b, "a", belfry.After(time.Hour), belfry.WithCallback(r.URL), belfry.WithBackoff(2*time.Hour, 2*time.Hour))
	b.Advance(time.Hour)
	r.want(t, "a")
	if got := get(t, b, timer.Timer); got.State != belfry.StateRetrying {
		t.Errorf("got state %s after a failed callback, want retrying", got.State)
	}
	b.Advance(time.Hour)
	r.want(t, "a")
	b.Advance(4 * time.Hour)
	r.want(t, "a", "a", "a")
	if got := get(t, b, timer.Timer); got.State != belfry.StateSuccess || got.Attempts != 3 {
		t.Errorf("got state %s after %d attempts, want success after 3", got.State, got.Attempts)
	}
}

// TestCancelBefore: a timer that is cancelled before its due time does not fire.
func TestCancelBefore(t *testing.T) {
	t.Parallel()
	b, r := belfrytest.New(t), receive(t)
	timer := add(t, b, "a", belfry.After(30*day), belfry.WithCallback(r.URL))
	b.Advance(29 * day)
	if _, err := b.Client().Cancel(t.Context(), timer.Timer); err != nil {
		t.Fatal(err)
	}
	if fired := b.Advance(30 * day); fired != 0 {
		t.Errorf("got %d events after the cancel, want none", fired)
	}
	r.want(t)
}

// TestRunUntilIdle: the clock goes to the last timer. A schedule without an end is an error that
// names it, or goes on until a time.
func TestRunUntilIdle(t *testing.T) {
	t.Parallel()
	b := belfrytest.New(t)
	start := b.Now()
	add(t, b, "a", belfry.After(time.Hour))
	add(t, b, "b", belfry.After(90*day))
	if fired, err := b.RunUntilIdle(t.Context()); err != nil || fired != 2 {
		t.Errorf("got %d events, error %v; want 2 and none", fired, err)
	}
	// On a slow machine the clock runs on while it waits for the last event.
	if now := b.Now(); now.Before(start.Add(90*day)) || now.After(start.Add(90*day+time.Minute)) {
		t.Errorf("the clock shows %s, want 90 days after %s", now, start)
	}
	s := add(t, b, "endless", belfry.Every("1h"))
	if fired, err := b.RunUntilIdle(t.Context(), belfry.ClockUntil(b.Now().Add(3*time.Hour))); err != nil || fired != 3 {
		t.Errorf("until a time: got %d events, error %v; want 3 and none", fired, err)
	}
	fired, err := b.RunUntilIdle(t.Context(), belfry.ClockMax(5))
	if !errors.Is(err, belfrytest.ErrNeverIdle) || !strings.Contains(err.Error(), s.Timer.String()) || fired != 5 {
		t.Errorf("got %d events, error %v; want 5, and ErrNeverIdle with the schedule %s", fired, err, s.Timer)
	}
}

// TestRetention: after the retention, by the clock, the record of a timer is gone, and the same event
// makes another timer, which fires.
func TestRetention(t *testing.T) {
	t.Parallel()
	b, r := belfrytest.New(t, belfrytest.Retention(time.Hour)), receive(t)
	due := b.Now().Add(time.Minute)
	timer := add(t, b, "a", belfry.At(due), belfry.WithCallback(r.URL))
	b.Advance(59 * time.Minute)
	if again := add(t, b, "a", belfry.At(due), belfry.WithCallback(r.URL)); !again.Duplicate {
		t.Error("within the retention the same event is no duplicate")
	}
	b.Advance(2 * time.Hour)
	if _, err := b.Client().Get(t.Context(), timer.Timer); !errors.Is(err, belfry.ErrNotFound) {
		t.Errorf("after the retention Get returns %v, want ErrNotFound", err)
	}
	if again := add(t, b, "a", belfry.At(due), belfry.WithCallback(r.URL)); again.Duplicate {
		t.Error("after the retention the same event is a duplicate")
	}
	b.Advance(0)
	r.want(t, "a", "a")
}

// TestRunning: with Running the clock runs by itself, and moves as well.
func TestRunning(t *testing.T) {
	t.Parallel()
	b, r := belfrytest.New(t, belfrytest.Running()), receive(t)
	b.Advance(30 * day)
	add(t, b, "a", belfry.After(time.Millisecond), belfry.WithCallback(r.URL))
	waittest.Until(t, "the timer has fired", func() bool { return len(r.got()) == 1 })
}
