package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/chaos/check"
)

// This file has the operations of package belfry that join a run: workers, batches of
// adds, replays of dead letters, and rejected adds.

const (
	// workService is the service whose timers workers handle.
	workService = "chaos-work"
	// workersCount is the number of workers, each with a connection of its own.
	workersCount = 2
	// batchSize is large enough for an atomic batch.
	batchSize = 30
	// invalidPause is the time between two invalid adds.
	invalidPause = 300 * time.Millisecond
	// replayPause is the time between two searches for dead letters.
	replayPause = 500 * time.Millisecond
	// replayPage is the number of dead letters that one request replays.
	replayPage = 50
	// replayTimeout bounds one request.
	replayTimeout = 5 * time.Second
	// refusals is the number of permanent refusals for a timer with plan.refuse.
	refusals = 2
)

// errRefused is the error of a handler that fails an attempt.
var errRefused = errors.New("refused by the chaos run")

// useClient gives the client a belfry.Client on its connection.
func (c *client) useClient() {
	c.t.Helper()
	var err error
	if c.belfry, err = belfry.New(c.nc); err != nil {
		c.t.Fatal(err)
	}
}

// work serves the timers of workService until stop is called. Some attempts fail, and
// some are slow, so that faults interrupt them.
func (r *receiver) work(url string) (stop func()) {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range workersCount {
		c, err := belfry.New(dial(r.t, url))
		if err != nil {
			r.t.Fatal(err)
		}
		wg.Go(func() {
			// Work returns early if it cannot subscribe yet.
			for ctx.Err() == nil {
				if err := c.Work(ctx, workService, r.worked); err != nil {
					pause.For(ctx, 100*time.Millisecond)
				}
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	r.t.Cleanup(stop)
	return stop
}

// worked is the workers' handler.
func (r *receiver) worked(ctx context.Context, run *belfry.Run) error {
	r.rec.Put(check.Event{
		Kind: check.Called, Via: "work", Source: run.Event.Source(), ID: run.Event.ID(), TimeNs: time.Now().UnixNano(),
		Key: run.Key(), Data: string(run.Event.Data()),
	})
	refuse, took := r.draw()
	pause.For(ctx, took)
	if refuse || r.stuck(run.Key(), run.Event.Data()) {
		return errRefused
	}
	return nil
}

// addBatch adds the plans as one batch, and repeats the batch until it is stored.
func (c *client) addBatch(ctx context.Context, plans []*plan) {
	events := make([]event.Event, len(plans))
	for i, p := range plans {
		e, err := p.event()
		if err != nil {
			c.t.Error(err)
			return
		}
		events[i] = *e
	}
	until := time.Now().Add(c.repeat)
	for try := 0; try == 0 || time.Now().Before(until); try++ {
		calls := make([]int64, len(plans))
		for i, p := range plans {
			calls[i] = c.rec.Put(p.added())
			if try == 0 {
				close(p.begun)
			}
		}
		bounded, cancel := context.WithTimeout(ctx, 2*callTimeout)
		err := c.belfry.AddBatch(bounded, events)
		cancel()
		for _, call := range calls {
			if err != nil { // some of the batch may be stored
				c.rec.Put(check.Event{Kind: check.Unknown, Call: call, Note: err.Error()})
				continue
			}
			c.answer(call, nil)
		}
		if err == nil || !pause.For(ctx, time.Second) {
			return
		}
	}
}

// replays replays dead letters until ctx ends.
func (c *client) replays(ctx context.Context) {
	for pause.For(ctx, replayPause) {
		// Failed replays are repeated, at the latest by replayAll.
		_, _ = c.replayOnce(ctx)
	}
}

// replayOnce replays all present dead letters, the first by its timer and the others by their sequences,
// and returns their number.
func (c *client) replayOnce(ctx context.Context) (n int, err error) {
	list, cancel := context.WithTimeout(ctx, replayTimeout)
	defer cancel()
	var timer schemas.TimerID
	var rest []uint64
	for dead, err := range c.belfry.DeadLetters(list, "") {
		switch {
		case err != nil:
			return len(rest), err
		case timer.IsZero():
			timer = dead.Timer
		default:
			rest = append(rest, dead.Sequence)
		}
	}
	if timer.IsZero() {
		return 0, nil
	}
	one, cancel := context.WithTimeout(ctx, replayTimeout)
	defer cancel()
	if err := c.belfry.Replay(one, timer); err != nil && !errors.Is(err, belfry.ErrNotFound) {
		return 1 + len(rest), err
	}
	for page := range slices.Chunk(rest, replayPage) {
		if err := c.replayLetters(ctx, page); err != nil {
			return 1 + len(rest), err
		}
	}
	return 1 + len(rest), nil
}

// replayLetters replays dead letters in one request.
func (c *client) replayLetters(ctx context.Context, sequences []uint64) error {
	ctx, cancel := context.WithTimeout(ctx, replayTimeout)
	defer cancel()
	for _, err := range c.belfry.BulkReplay(ctx, belfry.DeadQuery{Sequences: sequences}) {
		if err != nil {
			return err
		}
	}
	return nil
}

const (
	// callbackBound bounds the time until every callback has a result once all schedules have ended. It is several times
	// the time after which an event is redelivered (functions.DefaultAckWait), and below clusterSweepDelay: a callback
	// whose event is lost would wait for the sweeper, or longer.
	callbackBound = 90 * time.Second
	// unchangedFor is how long the record of such a timer must then stay as it is to be reported.
	unchangedFor = 20 * time.Second
)

// replayAll replays until no dead letter is left and every timer has ended. A timer that
// failed without a dead letter would stay failed. After callbackBound it logs the records of the timers that are
// left, and fails the test if one of them has a callback and does not change.
func (c *client) replayAll(bound time.Duration) {
	c.t.Helper()
	begun := time.Now()
	var left map[schemas.TimerID]uint64 // revisions
	var leftAt time.Time
	eventually(c.t, bound, "every dead letter replayed", func(ctx context.Context) (bool, error) {
		// A round of many letters may take longer than ctx permits.
		dead, err := c.replayOnce(c.t.Context())
		switch {
		case err != nil:
			return false, fmt.Errorf("replay %d dead letters: %w", dead, err)
		case dead > 0:
			return false, fmt.Errorf("%d dead letters were there", dead)
		}
		open, adds, err := c.open(ctx, schemas.StateFail)
		if err != nil || len(open)+adds == 0 {
			return err == nil, err
		}
		switch {
		case left == nil && time.Since(begun) > callbackBound:
			c.overdue(ctx, schemas.StateFail)
			left, leftAt = map[schemas.TimerID]uint64{}, time.Now()
			for _, info := range open {
				if info.Callback != "" {
					left[info.Timer] = info.Revision
				}
			}
		case len(left) > 0 && time.Since(leftAt) > unchangedFor:
			for _, info := range open {
				if left[info.Timer] == info.Revision {
					c.t.Errorf("%s, due %s, is %s since revision %d, %s after all schedules have ended", info.ID, schemas.FormatTime(info.Due.UnixMilli()), info.State, info.Revision, time.Since(begun).Round(time.Second))
				}
			}
			clear(left)
		}
		return false, fmt.Errorf("%d timers have not ended or have failed, %d adds are not stored", len(open), adds)
	})
}

// invalid publishes invalid adds until ctx ends, and returns the IDs of the adds that JetStream
// has acknowledged.
func (c *client) invalid(ctx context.Context) map[string]bool {
	acked := map[string]bool{}
	for n := 0; pause.For(ctx, invalidPause); n++ {
		id := fmt.Sprintf("invalid-%d", n)
		m := &nats.Msg{Subject: schemas.SubjectAdd, Header: nats.Header{
			"ce-specversion": {"1.0"}, "ce-id": {id}, "ce-source": {clusterSource}, "ce-type": {"chaos.timer"},
			"ce-" + schemas.AttrAt: {"not a time"},
		}}
		if err := c.publish(ctx, m); err == nil {
			acked[id] = true
		}
	}
	return acked
}

// allRejected checks that each acknowledged invalid add is listed as rejected.
func (c *client) allRejected(acked map[string]bool) {
	c.t.Helper()
	var missing []string
	eventually(c.t, time.Minute, "every invalid add to be listed", func(ctx context.Context) (bool, error) {
		left := maps.Clone(acked)
		for r, err := range c.belfry.Rejections(ctx) {
			if err != nil {
				return false, err
			}
			delete(left, r.ID)
		}
		missing = slices.Sorted(maps.Keys(left))
		if len(missing) > 0 {
			return false, fmt.Errorf("%d of %d are not listed: %.200v", len(missing), len(acked), missing)
		}
		return true, nil
	})
	c.t.Logf("%d invalid adds were acknowledged, and are listed as rejected", len(acked))
}

// operate runs the operations that are not plans until stop is called. stop returns the
// IDs of the invalid adds that were acknowledged.
func (c *client) operate(t *testing.T) (stop func() map[string]bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var acked map[string]bool
	wg.Go(func() { c.replays(ctx) })
	wg.Go(func() { acked = c.invalid(ctx) })
	return func() map[string]bool {
		cancel()
		wg.Wait()
		return acked
	}
}
