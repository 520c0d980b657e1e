//go:build unix

package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	cejs "github.com/cloudevents/sdk-go/protocol/nats_jetstream/v2"
	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/chaos/check"
)

// plan is a timer that a client adds.
type plan struct {
	source, id string
	dueMs      int64
	service    string
	via        string // publish, api, sdk or batch
	callback   string // "", an URL, or nats:…
	data       string
	cancel     time.Duration // lead before the due time, negative for after it; 0 for no cancel
	soon       time.Duration // time from the first attempt to add to a cancel; 0 for none
	move       time.Duration // lead of a reschedule before the due time; 0 for no reschedule
	movedMs    int64         // the new due time, Unix milliseconds
	binary     bool
	refuse     bool // the first callbacks are refused with a permanent error
	batch      int  // plans of one batch have the same number; 0 for none
	addAt      time.Time
	begun      chan struct{} // closed after the first attempt to add
}

const (
	killSource  = "/chaos/kill-nine"
	callTimeout = 1500 * time.Millisecond
)

// work describes the plans of a run.
type work struct {
	source  string
	count   int
	begin   time.Time
	adding  time.Duration // adds are spread over this time
	spread  time.Duration // due times are at most this far ahead
	httpURL string
	// moves adds reschedules; sdk adds some timers with the CloudEvents SDK.
	moves, sdk bool
	// services is the number of services in addition to the first.
	services int
	// client adds batches of timers, timers for workers, and timers that become dead
	// letters until they are replayed.
	client bool
}

// makePlans draws the plans. The seed of rng determines them.
func makePlans(rng *rand.Rand, w work) []plan {
	plans := make([]plan, w.count)
	for n := range plans {
		p := &plans[n]
		p.begun = make(chan struct{})
		p.addAt = w.begin.Add(time.Duration(rng.Int64N(int64(w.adding))))
		p.source, p.id = w.source, fmt.Sprintf("t%d", n)
		p.dueMs = p.addAt.UnixMilli() + 50 + rng.Int64N(w.spread.Milliseconds())
		p.data = fmt.Sprintf(`{"n":%d,"pad":"%0*d"}`, n, rng.IntN(300), n)
		p.via, p.binary = "publish", rng.IntN(2) == 0
		if rng.IntN(2) == 0 {
			p.via = "api"
		}
		if w.sdk && rng.IntN(4) == 0 {
			p.via = "sdk"
		}
		p.service = w.service(n)
		switch n % 4 {
		case 0, 1:
			p.callback = w.httpURL
		case 2:
			p.callback = "nats:" + natsCallback
		}
		if w.client {
			w.useClient(plans, n)
		}
		// Cancel every tenth timer, around its due time.
		if rng.IntN(10) == 0 {
			p.cancel = time.Duration(rng.Int64N(int64(800*time.Millisecond))) - 200*time.Millisecond
		}
		// Cancel another tenth soon after the add, when the add may wait for a router, or has just been stored and is
		// not removed from TIMERS_ADD yet.
		if rng.IntN(10) == 0 {
			p.soon = time.Duration(rng.Int64N(int64(300*time.Millisecond))) + time.Millisecond
		}
		// Reschedule another tenth, to an earlier or a later time.
		if w.moves && rng.IntN(10) == 0 {
			p.move = time.Duration(rng.Int64N(int64(1500*time.Millisecond))) + time.Millisecond
			p.movedMs = p.dueMs - 1000 + rng.Int64N(6000)
		}
	}
	return plans
}

// service returns the service of plan n: every fourth plan has the first service, the
// others take turns.
func (w *work) service(n int) string {
	if w.services == 0 || n%4 == 0 {
		return "chaos"
	}
	return fmt.Sprintf("chaos-%d", n%w.services)
}

// useClient makes plan n use a feature of package belfry.
func (w *work) useClient(plans []plan, n int) {
	p := &plans[n]
	switch n % 10 {
	case 3:
		p.service, p.callback = workService, schemas.NATSScheme+schemas.WorkSubjectPrefix+workService
	case 5:
		p.callback, p.refuse = w.httpURL, true
		p.data = fmt.Sprintf(`{"n":%d,%s}`, n, refuseMark)
	}
	// Add every fifth run of batchSize plans as a batch.
	if k := n / batchSize; k%5 == 4 {
		p.batch, p.via, p.addAt = k, "batch", plans[k*batchSize].addAt
		p.dueMs = max(p.dueMs, p.addAt.UnixMilli()+50)
	}
}

// added returns the history's event of an add.
func (p *plan) added() check.Event {
	return check.Event{Kind: check.Add, Via: p.via, Source: p.source, ID: p.id, DueMs: p.dueMs, Data: p.data, Callback: p.callback != ""}
}

// extensions are the timer's attributes.
func (p *plan) extensions() map[string]string {
	attrs := map[string]string{
		schemas.AttrService: p.service, schemas.AttrAt: schemas.FormatTime(p.dueMs),
		schemas.AttrBackoff: "50ms..1s", schemas.AttrMaxAttempts: "500", schemas.AttrTimeout: "5s",
	}
	if p.callback != "" {
		attrs[schemas.AttrCallback] = p.callback
	}
	return attrs
}

// event returns the plan as an event of the CloudEvents SDK.
func (p *plan) event() (*event.Event, error) {
	e := event.New()
	e.SetID(p.id)
	e.SetSource(p.source)
	e.SetType("chaos.timer")
	for k, v := range p.extensions() {
		e.SetExtension(k, v)
	}
	return &e, e.SetData("application/json", []byte(p.data))
}

func (p *plan) message(subject string) *nats.Msg {
	attrs := p.extensions()
	attrs["specversion"], attrs["id"], attrs["source"], attrs["type"] = "1.0", p.id, p.source, "chaos.timer"
	m := &nats.Msg{Subject: subject, Header: nats.Header{}}
	if p.binary {
		for k, v := range attrs {
			m.Header["ce-"+k] = []string{v}
		}
		m.Header["content-type"] = []string{"application/json"}
		m.Data = []byte(p.data)
		return m
	}
	doc := "{"
	for k, v := range attrs {
		doc += fmt.Sprintf("%q:%q,", k, v)
	}
	m.Header["content-type"] = []string{"application/cloudevents+json"}
	m.Data = []byte(doc + `"data":` + p.data + "}")
	return m
}

// client adds, cancels and reschedules, and records the answers.
type client struct {
	t   *testing.T
	rec *check.Recorder
	nc  *nats.Conn
	js  jetstream.JetStream
	sdk *cejs.Sender // for plans that ask for it
	// belfry is the client of package belfry; see useClient.
	belfry *belfry.Client
	// repeat bounds the time for which an add is repeated. It is well below the
	// retention: an add that arrives after the record has expired would create a second
	// timer.
	repeat time.Duration
}

// dial connects until the test ends, and reconnects after every failure. It leaves a
// server that does not answer after three seconds.
func dial(t *testing.T, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0),
		nats.RetryOnFailedConnect(true), nats.ReconnectBufSize(-1), nats.PingInterval(time.Second), nats.MaxPingsOutstanding(2), nats.Timeout(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func newClient(t *testing.T, rec *check.Recorder, url string, retention time.Duration) *client {
	t.Helper()
	nc := dial(t, url)
	js := natstest.JetStream(t, nc)
	return &client{t: t, rec: rec, nc: nc, js: js, repeat: min(retention/3, time.Minute)}
}

// useSDK lets plans add with the SDK's JetStream protocol; TIMERS_ADD must exist.
func (c *client) useSDK() {
	c.t.Helper()
	var err error
	if c.sdk, err = cejs.NewSenderFromConn(c.nc, schemas.StreamAdd, schemas.SubjectAdd, []nats.JSOpt{nats.MaxWait(callTimeout)}); err != nil {
		c.t.Fatal(err)
	}
}

// run executes each plan in a goroutine when its time has come, and returns when all have
// ended.
func (c *client) run(ctx context.Context, plans []plan) {
	var wg sync.WaitGroup
	defer wg.Wait()
	batches := map[int][]*plan{}
	for i := range plans {
		if p := &plans[i]; p.batch > 0 {
			batches[p.batch] = append(batches[p.batch], p)
		}
	}
	for _, batch := range batches {
		wg.Go(func() {
			if !pause.For(ctx, time.Until(batch[0].addAt)) {
				for _, p := range batch {
					close(p.begun)
				}
				return
			}
			c.addBatch(ctx, batch)
		})
	}
	for i := range plans {
		p := &plans[i]
		if p.batch == 0 {
			wg.Go(func() { c.begin(ctx, p) })
		}
		// after makes a call a while after the first attempt to add.
		after := func(while func() time.Duration, call func(context.Context, *plan)) {
			wg.Go(func() {
				<-p.begun
				if pause.For(ctx, while()) {
					call(ctx, p)
				}
			})
		}
		untilDue := func(lead time.Duration) func() time.Duration {
			return func() time.Duration { return time.Until(time.UnixMilli(p.dueMs).Add(-lead)) }
		}
		if p.cancel != 0 {
			after(untilDue(p.cancel), c.cancel)
		}
		if p.soon != 0 {
			after(func() time.Duration { return p.soon }, c.cancel)
		}
		if p.move != 0 {
			after(untilDue(p.move), c.reschedule)
		}
	}
}

// begin adds a timer when its time has come.
func (c *client) begin(ctx context.Context, p *plan) {
	if !pause.For(ctx, time.Until(p.addAt)) {
		close(p.begun)
		return
	}
	c.add(ctx, p)
}

// add adds until the outcome is known. Some adds are not repeated, so that the history
// has adds with an unknown outcome.
func (c *client) add(ctx context.Context, p *plan) {
	repeat := c.repeat
	if p.soon != 0 {
		repeat /= 2 // the record of a cancel soon after the add expires earlier
	}
	until := time.Now().Add(repeat)
	for try := 0; try == 0 || time.Now().Before(until); try++ {
		call := c.rec.Put(p.added())
		if try == 0 {
			close(p.begun)
		}
		var err error
		switch p.via {
		case "api":
			err = c.request(ctx, p.message(schemas.SubjectAPIPrefix+"add"))
		case "sdk":
			err = c.send(ctx, p)
		default:
			err = c.publish(ctx, p.message(schemas.SubjectAdd))
		}
		c.answer(call, err)
		code := schemas.CodeOf(err)
		if err == nil || code != "" && code != schemas.CodeUnavailable {
			return
		}
		if p.id[len(p.id)-1] == '7' && try == 0 {
			return // the outcome stays unknown
		}
		// Wait longer each time, like any client: repeated adds must not occupy a node.
		if !pause.For(ctx, min(50*time.Millisecond<<min(try, 5), time.Second)) {
			return
		}
	}
}

func (c *client) cancel(ctx context.Context, p *plan) {
	call := c.rec.Put(check.Event{Kind: check.Cancel, Via: "api", Source: p.source, ID: p.id})
	m := &nats.Msg{Subject: schemas.SubjectAPIPrefix + "cancel", Data: []byte(fmt.Sprintf(`{"id":%q,"source":%q}`, p.id, p.source))}
	c.answer(call, c.request(ctx, m))
}

func (c *client) reschedule(ctx context.Context, p *plan) {
	call := c.rec.Put(check.Event{Kind: check.Reschedule, Via: "api", Source: p.source, ID: p.id, DueMs: p.movedMs})
	m := &nats.Msg{Subject: schemas.SubjectAPIPrefix + "reschedule", Data: []byte(fmt.Sprintf(`{"id":%q,"source":%q,"at":%q}`, p.id, p.source, schemas.FormatTime(p.movedMs)))}
	c.answer(call, c.request(ctx, m))
}

// send adds with the SDK's JetStream protocol, in binary mode.
func (c *client) send(ctx context.Context, p *plan) error {
	e, err := p.event()
	if err != nil {
		return err
	}
	return c.sdk.Send(binding.WithForceBinary(ctx), binding.ToMessage(e))
}

func (c *client) answer(call int64, err error) {
	code := schemas.CodeOf(err)
	switch {
	case err == nil:
		c.rec.Put(check.Event{Kind: check.Answer, Call: call, OK: true})
	case code != "":
		c.rec.Put(check.Event{Kind: check.Answer, Call: call, Code: string(code), Note: err.Error()})
	default:
		c.rec.Put(check.Event{Kind: check.Unknown, Call: call, Note: err.Error()})
	}
}

// publish adds durably: it waits for JetStream's acknowledgement.
func (c *client) publish(ctx context.Context, m *nats.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := c.js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0))
	return err
}

func (c *client) request(ctx context.Context, m *nats.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	reply, err := c.nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return err
	}
	if code := reply.Header.Get(micro.ErrorCodeHeader); code != "" {
		return &schemas.Error{Code: schemas.Code(code), Msg: reply.Header.Get(micro.ErrorHeader)}
	}
	return nil
}

// records counts the records of timers left in every shard.
func (c *client) records(ctx context.Context) (int, error) {
	n := 0
	for shard := 0; ; shard++ {
		bucket := schemas.BucketTimers(shard)
		s, err := c.js.Stream(ctx, "KV_"+bucket)
		if errors.Is(err, jetstream.ErrStreamNotFound) && shard > 0 {
			return n, nil
		}
		if err != nil {
			return 0, err
		}
		info, err := s.Info(ctx, jetstream.WithSubjectFilter("$KV."+bucket+".timer.>"))
		if err != nil {
			return 0, err
		}
		n += len(info.State.Subjects)
	}
}

// open lists the timers that have not ended, or have ended in a state of ended, as the API reports them, and
// counts the adds that wait for a router.
func (c *client) open(ctx context.Context, ended ...schemas.State) (timers []schemas.TimerInfo, adds int, err error) {
	states, err := json.Marshal(append(ended, schemas.StatePending, schemas.StateDelivered, schemas.StateRetrying))
	if err != nil {
		return nil, 0, err
	}
	begun, pages := time.Now(), 0
	for cursor := ""; ; pages++ {
		m, err := c.nc.RequestWithContext(ctx, schemas.SubjectAPIPrefix+"list", fmt.Appendf(nil, `{"state":%s,"limit":500,"cursor":%q}`, states, cursor))
		if err != nil {
			return nil, 0, fmt.Errorf("list after %d pages in %s: %w", pages, time.Since(begun).Round(time.Millisecond), err)
		}
		var page schemas.ListReply
		if err := decode(m, &page); err != nil {
			return nil, 0, err
		}
		timers = append(timers, page.Timers...)
		if cursor = page.Cursor; cursor == "" {
			break
		}
	}
	s, err := c.js.Stream(ctx, schemas.StreamAdd)
	if err != nil {
		return nil, 0, fmt.Errorf("the state of %s after %d pages in %s: %w", schemas.StreamAdd, pages, time.Since(begun).Round(time.Millisecond), err)
	}
	return timers, int(s.CachedInfo().State.Msgs), nil
}

// pending counts the timers and adds that have not ended.
func (c *client) pending(ctx context.Context) (int, error) {
	timers, adds, err := c.open(ctx)
	return len(timers) + adds, err
}

// overdue logs the records of timers that should have ended, or have ended in a state of ended, to help find
// the reason.
func (c *client) overdue(ctx context.Context, ended ...schemas.State) {
	timers, adds, err := c.open(ctx, ended...)
	c.t.Logf("%d timers are not concluded, %d adds not stored (%v)", len(timers), adds, err)
	for _, stream := range []string{schemas.StreamAdd, schemas.StreamFired, schemas.StreamRetry, schemas.StreamDead} {
		c.logConsumers(ctx, stream)
	}
	for _, info := range timers[:min(len(timers), 10)] {
		shard := schemas.DefaultGeometry().Shard(info.Timer)
		s, err := c.js.Stream(ctx, shardStream(shard))
		if err != nil {
			c.t.Log(err)
			continue
		}
		m, err := s.GetLastMsgForSubject(ctx, "$KV."+schemas.BucketTimers(shard)+".timer."+info.Timer.String())
		if err != nil {
			c.t.Log(err)
			continue
		}
		c.t.Logf("shard %d: %s %s of %s due %s is %s since revision %d, %s; event: %s; %s", shard, info.ID, info.Timer, info.Service, schemas.FormatTime(info.Due.UnixMilli()), info.State, m.Sequence, m.Time,
			c.event(ctx, info.Timer), c.feedState(ctx, info.Service))
	}
}

// event describes the event of a one-shot timer.
func (c *client) event(ctx context.Context, id schemas.TimerID) string {
	s, err := c.js.Stream(ctx, schemas.StreamFired)
	if err != nil {
		return err.Error()
	}
	for seq := s.CachedInfo().State.FirstSeq; seq <= s.CachedInfo().State.LastSeq; seq++ {
		if m, err := s.GetMsg(ctx, seq); err == nil && m.Header.Get(jetstream.MsgIDHeader) == id.MsgID(1) {
			return fmt.Sprintf("sequence %d, %s", seq, m.Time)
		}
	}
	return "none"
}

// feedState describes the key of a service's feed, and the last event of the service.
func (c *client) feedState(ctx context.Context, svc string) string {
	describe := func(stream, subject string) string {
		s, err := c.js.Stream(ctx, stream)
		if err != nil {
			return err.Error()
		}
		m, err := s.GetLastMsgForSubject(ctx, subject)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("sequence %d, %s, %q %.40q", m.Sequence, m.Time, m.Header, m.Data)
	}
	return fmt.Sprintf("key of the service: %s; last event: %s", describe("KV_services", "$KV.services."+svc), describe(schemas.StreamFired, schemas.SubjectFired(svc)))
}

// logConsumers logs the state of a stream and of its consumers.
func (c *client) logConsumers(ctx context.Context, stream string) {
	s, err := c.js.Stream(ctx, stream)
	if err != nil {
		c.t.Log(err)
		return
	}
	at := s.CachedInfo().State
	c.t.Logf("%s: %d messages, sequences %d to %d", stream, at.Msgs, at.FirstSeq, at.LastSeq)
	if at.Msgs > 0 {
		m, err := s.GetMsg(ctx, at.FirstSeq)
		if err != nil {
			c.t.Log(err)
		} else {
			c.t.Logf("%s, first message: %s, %s, %q", stream, m.Subject, m.Time, m.Header)
		}
	}
	consumers := s.ListConsumers(ctx)
	for info := range consumers.Info() {
		c.t.Logf("%s, consumer %s: delivered %+v, ack floor %+v, %d await an ack, %d are pending, %d pulls wait",
			stream, info.Name, info.Delivered, info.AckFloor, info.NumAckPending, info.NumPending, info.NumWaiting)
	}
	if err := consumers.Err(); err != nil {
		c.t.Log(err)
	}
}

// readFired records the events of TIMERS_FIRED from a sequence on, and returns the last
// sequence.
func (c *client) readFired(ctx context.Context, from uint64) (last uint64, err error) {
	s, err := c.js.Stream(ctx, schemas.StreamFired)
	if err != nil {
		return 0, err
	}
	last = s.CachedInfo().State.LastSeq
	if last < from {
		return last, nil
	}
	cons, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from})
	if err != nil {
		return 0, err
	}
	it, err := cons.Messages()
	if err != nil {
		return 0, err
	}
	defer it.Stop()
	stop := context.AfterFunc(ctx, it.Stop)
	defer stop()
	for {
		m, err := it.Next()
		if err != nil {
			return 0, err
		}
		meta, err := m.Metadata()
		if err != nil {
			return 0, err
		}
		e, _, f, err := schemas.ParseFired(m.Headers(), m.Data())
		if err != nil {
			return 0, fmt.Errorf("sequence %d of %s: %w", meta.Sequence.Stream, schemas.StreamFired, err)
		}
		c.rec.Put(check.Event{
			Kind: check.Fired, Source: e.Source(), ID: e.ID(), Sequence: meta.Sequence.Stream, TimeNs: meta.Timestamp.UnixNano(),
			Key: m.Headers().Get(jetstream.MsgIDHeader), Data: string(e.Data()), DueMs: f.ScheduledMs,
			ClaimedMs: f.FiredMs, Run: f.Run, Missed: f.Missed, Trigger: f.Trigger,
			Shard: schemas.DefaultGeometry().Shard(schemas.NewTimerID(e.Source(), e.ID())),
		})
		if meta.Sequence.Stream >= last {
			return last, nil
		}
	}
}
