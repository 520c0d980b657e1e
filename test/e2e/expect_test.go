//go:build unix

package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/metrictest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/proc"
)

// overdueEvent is a message of TIMERS_OVERDUE.
type overdueEvent struct {
	msgID               string
	at                  time.Time // by the stream
	nominalMs, deadline int64
	count               int
	run                 uint32
	reason              string
	data                string
}

// overdue reads all overdue events of a service.
func (c *client) overdue(svc string) (all []overdueEvent) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), bound)
	defer cancel()
	s, err := c.js.Stream(ctx, schemas.StreamOverdue)
	if err != nil {
		c.t.Fatal(err)
	}
	for seq := uint64(1); ; {
		m, err := s.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(schemas.SubjectOverdue(svc)))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return all
		}
		if err != nil {
			c.t.Fatal(err)
		}
		seq = m.Sequence + 1
		all = append(all, parseOverdue(c.t, m))
	}
}

func parseOverdue(t *testing.T, m *jetstream.RawStreamMsg) overdueEvent {
	t.Helper()
	e, err := schemas.Body{Mode: schemas.ModeStructured, Data: m.Data}.Event()
	if err != nil {
		t.Fatal(err)
	}
	x := e.Extensions()
	o := overdueEvent{msgID: m.Header.Get(jetstream.MsgIDHeader), at: m.Time, count: 1, data: string(m.Data)}
	for name, ms := range map[string]*int64{schemas.AttrScheduled: &o.nominalMs, schemas.AttrOverdue: &o.deadline} {
		text, _ := x[name].(string)
		if *ms, err = schemas.ParseTime(text); err != nil {
			t.Fatalf("%s of %s: %v", name, m.Data, err)
		}
	}
	if n, ok := x[schemas.AttrMissed].(int32); ok {
		o.count += int(n)
	}
	if n, ok := x[schemas.AttrRun].(int32); ok {
		o.run = uint32(n)
	}
	o.reason, _ = x[schemas.AttrErrorCode].(string)
	return o
}

// checkOverdue checks that overdue events are not early, have the message ids of their nominal
// times, and that no two are about the same one. It returns the number of nominal times.
func checkOverdue(t *testing.T, id string, all []overdueEvent) (times int) {
	t.Helper()
	seen := map[int64]bool{}
	for _, o := range all {
		if times += o.count; seen[o.nominalMs] {
			t.Errorf("two overdue events about %s", schemas.FormatTime(o.nominalMs))
		}
		seen[o.nominalMs] = true
		if o.at.UnixMilli() < o.deadline {
			t.Errorf("the overdue event about %s came at %s, before its deadline %s", schemas.FormatTime(o.nominalMs), o.at, schemas.FormatTime(o.deadline))
		}
		if want := schemas.OverdueID(timerID(id), o.nominalMs); o.msgID != want {
			t.Errorf("message id %s, want %s", o.msgID, want)
		}
		if strings.Contains(o.data, "timercallback") {
			t.Errorf("the event has the callback: %s", o.data)
		}
	}
	return times
}

// TestExpect: each run without a success by its deadline has one overdue event, and no other
// run has one. Of a schedule that is skipped while its run is open, each nominal time has one.
func TestExpect(t *testing.T) {
	t.Parallel()
	n := node(t, nil)
	c := connect(t, n.NATSURL())
	answered := 0
	sub, err := c.nc.Subscribe("callbacks.some", func(m *nats.Msg) {
		if answered++; answered%2 == 1 { // every second run gets no answer
			if err := m.Respond(nil); err != nil {
				t.Errorf("respond: %v", err)
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	c.publish(structured(attrs{
		"id": "some", "timersvc": "some", "timerevery": "2s", "timerlimit": "4", "timercallback": "nats:callbacks.some", "timerexpect": "1500ms",
		"timermaxattempts": "1", "timertimeout": "500ms", "timeroverlap": "allow",
	}, `{}`))
	c.publish(structured(attrs{
		"id": "open", "timersvc": "open", "timerevery": "1s", "timerend": at(6 * time.Second), "timercallback": "nats:nobody.listens", "timerexpect": "3s", "timerbackoff": "1h..1h",
	}, `{}`))
	c.until("some", schemas.StateCompleted)
	info := c.until("open", schemas.StateCompleted)

	var runs schemas.RunsReply
	if err := c.call("schedule.runs", schemas.RunsRequest{TimerRef: schemas.TimerRef{Timer: timerID("some").String()}}, &runs); err != nil {
		t.Fatal(err)
	}
	events := c.overdue("some")
	checkOverdue(t, "some", events)
	barked := map[uint32]bool{}
	for _, o := range events {
		barked[o.run] = true
	}
	overdue := 0
	for _, r := range runs.Runs {
		deadline := r.Scheduled.Add(1500 * time.Millisecond)
		late := r.State != schemas.StateSuccess || r.Done.After(deadline)
		if late != r.Overdue {
			t.Errorf("run %d (%s, done %s, deadline %s) is listed as overdue %v", r.Run, r.State, r.Done, deadline, r.Overdue)
		}
		if late != barked[r.Run] && r.Missed == 0 {
			t.Errorf("run %d (%s, done %s, deadline %s) has an overdue event: %v", r.Run, r.State, r.Done, deadline, barked[r.Run])
		}
		if late {
			overdue++
		}
	}
	if overdue == 0 {
		t.Error("every run succeeded: the test showed nothing")
	}

	s := info.Schedule
	events = c.overdue("open")
	// One nominal time each second from the add to the end, and none succeeded.
	want := int((s.End.UnixMilli() - info.Added.UnixMilli()) / 1000)
	if got := checkOverdue(t, "open", events); got != want {
		t.Errorf("overdue events about %d nominal times, want %d: %+v", got, want, events)
	}
	if len(s.Overdue) == 0 || s.ExpectMs != 3000 {
		t.Errorf("the schedule's answer has %+v", s)
	}
	if got := metrictest.Sum(t, n.Registry(), "belfry_schedule_overdue_total"); got < float64(want) {
		t.Errorf("belfry_schedule_overdue_total is %v, want %d and those of the other schedule", got, want)
	}
}

// TestExpectOwnerDies kills the node between nominal times and deadlines, again and again: each
// nominal time has one overdue event in the end.
func TestExpectOwnerDies(t *testing.T) {
	t.Parallel()
	server := natstest.Run(t)
	p := proc.New(t, proc.Options{NATSURL: server.URL(), Config: "lease: 600ms\nshards: 2\n"})
	p.Start()
	p.Ready(t.Context())
	c := connect(t, server.URL())
	start := time.Now().Add(time.Second).Truncate(time.Second)
	const runs = 8
	c.publish(structured(attrs{
		"id": "dies", "timersvc": "dies", "timerevery": "1s", "timerstart": schemas.FormatTime(start.UnixMilli()), "timerend": schemas.FormatTime(start.Add((runs - 1) * time.Second).UnixMilli()),
		"timercallback": "nats:nobody.listens", "timerexpect": "2s", "timermaxattempts": "1", "timeroverlap": "allow", "timermisfire": "all",
	}, `{}`))
	waittest.Until(t, "the first run fired", func() bool { return c.left(schemas.StreamFired) > 0 })
	if n := len(c.overdue("dies")); n > 0 {
		t.Logf("%d overdue events before the first kill", n)
	}
	for range 4 {
		p.Kill()
		time.Sleep(700 * time.Millisecond) // the down time
		p.Start()
		p.Ready(t.Context())
	}
	p.Kill()
	last := node(t, func(o *app.Options) {
		o.NATSURL, o.Lease, o.Log = server.URL(), 600*time.Millisecond, zerolog.Nop()
	})
	c.until("dies", schemas.StateCompleted)
	if got := checkOverdue(t, "dies", c.overdue("dies")); got != runs {
		t.Errorf("overdue events about %d nominal times, want %d: %+v", got, runs, c.overdue("dies"))
	}
	if n := metrictest.Sum(t, last.Registry(), "belfry_missed_timers_total"); n != 0 {
		t.Errorf("the sweeper found %v timers, want none", n)
	}
}
