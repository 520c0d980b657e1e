//go:build unix

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// secret is in the data of every timer of team billing; team orders must never see it.
const secret = "of billing alone"

// holidays is a calendar that schedules of team billing exclude.
const holidays = "billing-holidays"

const calendarSubject = "$KV." + schemas.BucketCalendars + "." + holidays

// attacked is a node that runs on the shipped nats.conf with two teams. Team orders
// attacks the timers of team billing.
type attacked struct {
	t       *testing.T
	server  *natstest.Production
	admin   *client // of account BELFRY
	orders  *client
	billing *client
	victims []schemas.TimerID
	before  map[string]stored
	names   []string // of all streams
}

// stored is the last message of a subject.
type stored struct {
	seq  uint64
	data []byte
}

func (c *client) last(stream, subject string) stored {
	c.t.Helper()
	s, err := c.js.Stream(c.t.Context(), stream)
	if err != nil {
		c.t.Fatal(err)
	}
	m, err := s.GetLastMsgForSubject(c.t.Context(), subject)
	if err != nil {
		c.t.Fatalf("%s: %v", subject, err)
	}
	return stored{m.Sequence, m.Data}
}

func recordKey(id schemas.TimerID) (stream, subject string) {
	bucket := schemas.BucketTimers(schemas.Geometry{Shards: 2}.Shard(id))
	return "KV_" + bucket, "$KV." + bucket + ".timer." + id.String()
}

func newAttacked(t *testing.T) (*attacked, *app.App) {
	s := natstest.RunProduction(t, "../../nats.conf", natstest.AddTeam("billing"))
	a := node(t, func(o *app.Options) { o.NATSURL, o.TLS.CA = s.URLOf("belfry"), s.CA })
	as := func(user string) *client {
		// The server reports refused publishes; the test expects them.
		nc := s.ConnectAs(user, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
		js := natstest.JetStream(t, nc)
		return &client{t: t, nc: nc, js: js}
	}
	x := &attacked{t: t, server: s, admin: as("admin"), orders: as("orders"), billing: as("billing"), before: map[string]stored{}}
	if err := x.admin.call("calendar.put", schemas.CalendarPutRequest{Name: holidays, Dates: []string{"2020-01-01"}}, &schemas.CalendarPutReply{}); err != nil {
		t.Fatal(err)
	}
	x.before[calendarSubject] = x.admin.last("KV_"+schemas.BucketCalendars, calendarSubject)
	for n := range 12 { // so that each shard has some timers and some schedules
		id := fmt.Sprintf("victim-%d", n)
		var reply schemas.AddReply
		when, value := "timerafter", "1h"
		if n%2 == 1 {
			when, value = "timerevery", "P1D"
		}
		extra := attrs{"id": id, "source": "/billing", "timersvc": "billing", "timergroup": "billing", when: value}
		if n%4 == 3 {
			extra[schemas.AttrExclude] = holidays
		}
		m := structured(extra, `"`+secret+`"`)
		m.Subject = schemas.SubjectAPIPrefix + "add"
		if err := x.billing.callMsg(m, &reply); err != nil {
			t.Fatal(err)
		}
		x.victims = append(x.victims, reply.Timer)
		stream, subject := recordKey(reply.Timer)
		x.before[subject] = x.admin.last(stream, subject)
	}
	x.names = x.streams()
	x.before["$KV.clock.meta"] = x.admin.last("KV_clock", "$KV.clock.meta")
	return x, a
}

// doors returns the subjects to which a team may publish.
func doors(team string) []string {
	return []string{
		"timers.add", "timers.api.add", "timers.api.get", "timers.api.cancel", "timers.api.reschedule",
		"timers.api.schedule.pause", "timers.api.schedule.resume", "timers.api.schedule.trigger", "timers.api.schedule.backfill", "timers.api.schedule.update",
		"timers.api.schedule.delete", "timers.api.schedule.preview", "timers.api.schedule.runs", "timers.api.schedule.why",
		"JS.BELFRY.API.CONSUMER.INFO.TIMERS_FIRED." + team, "JS.BELFRY.API.CONSUMER.MSG.NEXT.TIMERS_FIRED." + team,
		"$JS.ACK.TIMERS_FIRED." + team + ".1.1.1.1.1",
	}
}

// targets returns subjects of account BELFRY to which an attacker would like to write.
func (x *attacked) targets() []string {
	out := []string{
		"$KV.clock.clock.0", "$KV.clock.clock.1", "$KV.clock.meta", "$KV.clock.node.belfry-1", "$KV.services.billing",
		"timers.add", "timers.fired.billing", "timers.fired.orders", "timers.retry.billing", "timers.dead.billing", "timers.rejected",
		"timers.overdue.billing", calendarSubject, "timers.api.calendar.put", "timers.api.calendar.delete", "timers.api.calendar.get",
		"$JS.API.STREAM.PURGE.TIMERS_OVERDUE", "$JS.API.STREAM.PURGE.KV_calendars",
		"timers.work.billing", "callbacks.billing.pay", "timers.api.list", "timers.api.dead.replay", "timers.api.schedule.pause", "timers.api.schedule.delete", "timers.api.flow.set", "timers.api.flow.pause", "timers.api.flow.reset", "timers.api.flow.list", "timers.api.order.list", "$KV.flows.limit.Kg", "$SRV.INFO.timers",
		"$JS.API.STREAM.PURGE.TIMERS_FIRED", "$JS.API.STREAM.DELETE.TIMERS_ADD", "$JS.API.CONSUMER.DELETE.TIMERS_ADD.router",
		"$JS.API.DIRECT.GET.KV_clock", "$JS.ACK.TIMERS_ADD.router.1.1.1.1.0", "_R_.guessed.reply", "_GR_.abcdef.ghijkl.$KV.clock.clock.0",
	}
	for _, id := range x.victims {
		_, subject := recordKey(id)
		out = append(out, subject)
	}
	return out
}

// messages returns requests for a subject, valid and invalid.
func messages(door, id string) []*nats.Msg {
	event := structured(attrs{"id": id, "source": "/orders", "timersvc": "orders", "timerafter": "1h"}, `{}`)
	event.Subject = door
	// A schedule with the attributes that Belfry sets, and a calendar of its choice.
	schedule := structured(attrs{
		"id": id + "-schedule", "source": "/orders", "timersvc": "orders", "timerevery": "P1D", schemas.AttrExclude: holidays,
		schemas.AttrRun: "7", schemas.AttrScheduled: at(-time.Hour), schemas.AttrMissed: "3", schemas.AttrTrigger: "manual", schemas.AttrOverdue: at(-time.Hour),
	}, `{}`)
	schedule.Subject = door
	ref := fmt.Sprintf(`{"id":%q,"source":"/orders","after":"2h"}`, id)
	return []*nats.Msg{event, schedule, {Subject: door, Data: []byte(ref)}, {Subject: door, Data: []byte(`{"group":"billing"}`)}, {Subject: door, Data: []byte("rubbish")}, {Subject: door}}
}

// send publishes as the attacker. The server may refuse the message.
func (c *client) send(m *nats.Msg) {
	c.t.Helper()
	if err := c.nc.PublishMsg(m); err != nil {
		c.t.Fatalf("%s: %v", m.Subject, err)
	}
}

// TestAttacksFromAnotherAccount attacks a node with the permissions of a team: with reply
// subjects on everything that a team may publish, with headers, with direct publishes and
// with subscriptions. Nothing of another team or of Belfry may be read or changed.
func TestAttacksFromAnotherAccount(t *testing.T) {
	t.Parallel()
	x, a := newAttacked(t)
	if _, err := x.admin.js.CreateConsumer(t.Context(), schemas.StreamFired, jetstream.ConsumerConfig{
		Durable: "orders", FilterSubject: schemas.SubjectFired("orders"), AckPolicy: jetstream.AckExplicitPolicy,
	}); err != nil {
		t.Fatal(err)
	}
	// Team billing answers its callbacks. It must receive only callbacks from Belfry.
	answered := make(chan *nats.Msg, 1024)
	for _, subject := range []string{"callbacks.billing.>", "timers.work.billing"} {
		if _, err := x.billing.nc.ChanSubscribe(subject, answered); err != nil {
			t.Fatal(err)
		}
	}
	heard := make(chan *nats.Msg, 64<<10)
	for _, subject := range []string{">", "timers.fired.billing", "timers.fired.*", "timers.dead.>", "$KV.>", "_INBOX.>", "$JS.EVENT.>", "callbacks.billing.>", "_R_.>"} {
		if _, err := x.orders.nc.ChanSubscribe(subject, heard); err != nil {
			t.Fatal(err)
		}
	}

	x.byReply()
	x.byHeader()
	x.directly()

	x.unharmed(a)
	for {
		select {
		case m := <-heard:
			if bytes.Contains(m.Data, []byte(secret)) {
				t.Errorf("orders has read a timer of billing on %s: %s", m.Subject, m.Data)
			}
			continue
		case m := <-answered:
			t.Errorf("billing was called on %s: %.200q", m.Subject, m.Data)
			continue
		default:
		}
		break
	}

	// A node that starts now finds nothing damaged.
	stop(t, a)
	again := node(t, func(o *app.Options) { o.NATSURL, o.TLS.CA = x.server.URLOf("belfry"), x.server.CA })
	x.unharmed(again)
	x.fires()
}

// byReply sends each message that a team may send, with each target as its reply subject.
func (x *attacked) byReply() {
	for n, target := range x.targets() {
		for m, door := range doors("orders") {
			for _, msg := range messages(door, fmt.Sprintf("reply-%d-%d", n, m)) {
				msg.Reply = target
				x.orders.send(msg)
			}
		}
	}
}

// byHeader sends adds with each header that JetStream interprets. None may change another
// add, or make the server publish to a subject that the header names.
func (x *attacked) byHeader() {
	victim, _ := recordKey(x.victims[0])
	key := strings.TrimPrefix(victim, "KV_")
	headers := []nats.Header{
		{jetstream.MsgRollup: {"all"}}, {jetstream.MsgRollup: {"sub"}}, {"Nats-TTL": {"1s"}}, {"Nats-Incr": {"1"}},
		{"Nats-Expected-Stream": {"KV_clock"}}, {"Nats-Expected-Last-Sequence": {"0"}}, {"Nats-Expected-Last-Subject-Sequence-Subject": {"$KV." + key + ".>"}, "Nats-Expected-Last-Subject-Sequence": {"0"}},
		{"Nats-Schedule": {"@every 1s"}, "Nats-Schedule-Target": {"$KV.clock.clock.0"}}, {"Nats-Schedule": {"@at 2026-01-01T00:00:00Z"}, "Nats-Schedule-Target": {"timers.fired.billing"}},
		{"Nats-Batch-Id": {"b"}, "Nats-Batch-Sequence": {"1"}}, {"Nats-Batch-Id": {"b"}, "Nats-Batch-Sequence": {"2"}, "Nats-Batch-Commit": {"1"}},
		{"Nats-Trace-Dest": {"$KV.clock.clock.0"}}, {"Nats-Trace-Dest": {"$KV.clock.clock.0"}, "Nats-Trace-Only": {"true"}},
		{"Nats-Request-Info": {`{"acc":"BILLING","user":"billing"}`}}, {"Belfry-Claim": {"0.1.1"}}, {"KV-Operation": {"PURGE"}},
		{"Status": {"409"}, "Description": {"Consumer Deleted"}},
	}
	for n, h := range headers {
		for _, door := range doors("orders")[:2] {
			for _, reply := range []string{"", "$KV.clock.clock.0", x.orders.nc.NewInbox()} {
				m := structured(attrs{"id": fmt.Sprintf("header-%d", n), "source": "/orders", "timersvc": "orders", "timerafter": "1h"}, `{}`)
				m.Subject, m.Reply = door, reply
				for k, v := range h {
					m.Header[k] = v
				}
				x.orders.send(m)
			}
		}
	}
}

// directly publishes to subjects that a team must not use, with and without a reply
// subject.
func (x *attacked) directly() {
	for _, target := range x.targets() {
		if strings.HasPrefix(target, "timers.add") {
			continue
		}
		for _, reply := range []string{"", x.orders.nc.NewInbox()} {
			for _, data := range []string{"", "{}", `{"service":"billing"}`, `{"name":"` + holidays + `","dates":["2021-01-01"]}`, "+ACK", "+TERM"} {
				x.orders.send(&nats.Msg{Subject: target, Reply: reply, Data: []byte(data)})
			}
		}
	}
	// A group is not a team's own: its name selects the timers of all teams.
	for _, door := range doors("orders") {
		if strings.HasPrefix(door, "timers.api.") {
			x.orders.send(&nats.Msg{Subject: door, Reply: x.orders.nc.NewInbox(), Data: []byte(`{"group":"billing"}`)})
		}
	}
	// A push consumer would write to its deliver subject.
	for _, subject := range []string{"$JS.API.CONSUMER.CREATE.TIMERS_FIRED", "JS.BELFRY.API.CONSUMER.CREATE.TIMERS_FIRED", "$JS.API.CONSUMER.CREATE.TIMERS_FIRED.orders.timers.fired.orders", "JS.BELFRY.API.CONSUMER.CREATE.TIMERS_FIRED.orders.timers.fired.orders"} {
		body := `{"stream_name":"TIMERS_FIRED","config":{"name":"orders","deliver_subject":"$KV.clock.clock.0","ack_policy":"none","deliver_policy":"all"}}`
		x.orders.send(&nats.Msg{Subject: subject, Reply: x.orders.nc.NewInbox(), Data: []byte(body)})
	}
	// The subjects of another team.
	for _, door := range doors("billing") {
		if strings.HasPrefix(door, "timers.") {
			continue
		}
		x.orders.send(&nats.Msg{Subject: door, Reply: x.orders.nc.NewInbox(), Data: []byte(`{"batch":10,"no_wait":true}`)})
	}
}

// unharmed checks that the records, settings and calendars are unchanged to the byte, that clocks
// are readable and move, that no stream is damaged, and that adds and callbacks work.
func (x *attacked) unharmed(a *app.App) {
	x.t.Helper()
	if err := x.orders.nc.FlushTimeout(bound); err != nil {
		x.t.Fatal(err)
	}
	waittest.Until(x.t, "every add of the attack is done with", func() bool { return x.admin.left(schemas.StreamAdd) == 0 })
	for subject, want := range x.before {
		stream := "KV_" + strings.Split(subject, ".")[1]
		if got := x.admin.last(stream, subject); got.seq != want.seq || !bytes.Equal(got.data, want.data) {
			x.t.Errorf("%s was revision %d with %d bytes, and is revision %d: %.200q", subject, want.seq, len(want.data), got.seq, got.data)
		}
	}
	clock := func(shard int) (c store.Clock) {
		got := x.admin.last("KV_clock", fmt.Sprintf("$KV.clock.clock.%d", shard))
		if err := json.Unmarshal(got.data, &c); err != nil || c.Version == 0 || c.Owner != a.Node() {
			x.t.Fatalf("clock of shard %d: %.200q (%v)", shard, got.data, err)
		}
		return c
	}
	for shard := range 2 {
		first := clock(shard).TimeMs
		waittest.Until(x.t, "the clock moves", func() bool { return clock(shard).TimeMs > first })
	}
	for stream, want := range map[string]uint64{schemas.StreamFired: 0, schemas.StreamRetry: 0, schemas.StreamOverdue: 0} {
		if n := x.admin.left(stream); n != want {
			x.t.Errorf("%s has %d messages, want %d", stream, n, want)
		}
	}
	for _, id := range x.victims {
		var i schemas.TimerInfo
		if err := x.billing.call("get", schemas.TimerRef{Timer: id.String()}, &i); err != nil || i.State != schemas.StatePending {
			x.t.Errorf("victim %s: %+v, %v", id, i, err)
		}
	}
	if names := x.streams(); !slices.Equal(names, x.names) {
		x.t.Errorf("streams %v, were %v", names, x.names)
	}
}

func (x *attacked) streams() []string {
	var names []string
	for info := range x.admin.js.ListStreams(x.t.Context()).Info() {
		names = append(names, info.Config.Name)
	}
	slices.Sort(names)
	return names
}

// fires makes the victims due now: each fires, and only its own team receives it.
func (x *attacked) fires() {
	x.t.Helper()
	sub, err := x.billing.nc.SubscribeSync("timers.fired.billing")
	if err != nil {
		x.t.Fatal(err)
	}
	for n, id := range x.victims {
		ref := schemas.TimerRef{Timer: id.String()}
		err := x.billing.call("reschedule", schemas.RescheduleRequest{TimerRef: ref, After: "0s"}, &schemas.TimerInfo{})
		if n%2 == 1 {
			err = x.billing.call("schedule.trigger", schemas.TriggerRequest{TimerRef: ref}, &schemas.TimerInfo{})
		}
		if err != nil {
			x.t.Fatal(err)
		}
	}
	for range x.victims {
		if m, err := sub.NextMsg(bound); err != nil || !bytes.Contains(m.Data, []byte(secret)) {
			x.t.Fatalf("got %+v, %v", m, err)
		}
	}
	m := structured(attrs{"id": "after", "timersvc": "orders", "timerafter": "10ms"}, `{}`)
	x.orders.publish(m)
	x.orders.until("after", schemas.StateSuccess)
}

// TestAttackerInsideTheAccount shows why users belong in accounts of their own: any user
// of account BELFRY can make JetStream write an answer to a subject where the user may
// not publish. It also shows that the other test would notice a successful attack.
func TestAttackerInsideTheAccount(t *testing.T) {
	t.Parallel()
	x, _ := newAttacked(t)
	for _, subject := range []string{"timers.add", "timers.api.get", "timers.api.schedule.pause"} {
		m := structured(attrs{"id": "inside", "timersvc": "orders", "timerafter": "1h"}, `{}`)
		m.Subject, m.Reply = subject, "$KV.services.inside-"+strings.ReplaceAll(subject, ".", "-")
		x.admin.send(m)
	}
	bucket, err := x.admin.js.KeyValue(t.Context(), schemas.BucketServices)
	if err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the server's answer in the bucket", func() bool {
		e, err := bucket.Get(t.Context(), "inside-timers-add")
		return err == nil && bytes.Contains(e.Value(), []byte(schemas.StreamAdd))
	})
}
