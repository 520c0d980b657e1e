package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/chaos/check"
)

// plan is one timer that a client will add.
type plan struct {
	id       string
	dueMs    int64
	via      string // publish or api
	callback string // "", an URL, or nats:…
	data     string
	cancel   time.Duration // before (or, negative, after) the due time; 0 for never
	binary   bool
	addAt    time.Time
	begun    chan struct{} // closed when it was added for the first time
}

const (
	chaosSource = "/chaos/kill-nine"
	callTimeout = 1500 * time.Millisecond
	// tries is how often an add is repeated whose answer did not come.
	tries = 40
)

// makePlans draws what is done: all by the seed.
func makePlans(rng *rand.Rand, count int, begin time.Time, adding time.Duration, httpURL string) []plan {
	plans := make([]plan, count)
	for n := range plans {
		p := &plans[n]
		p.begun = make(chan struct{})
		p.addAt = begin.Add(time.Duration(rng.Int64N(int64(adding))))
		p.id = fmt.Sprintf("t%d", n)
		p.dueMs = p.addAt.UnixMilli() + 50 + rng.Int64N(int64(adding/time.Millisecond)/2+1000)
		p.data = fmt.Sprintf(`{"n":%d,"pad":"%0*d"}`, n, rng.IntN(300), n)
		p.via, p.binary = "publish", rng.IntN(2) == 0
		if rng.IntN(2) == 0 {
			p.via = "api"
		}
		switch n % 4 {
		case 0, 1:
			p.callback = httpURL
		case 2:
			p.callback = "nats:" + natsCallback
		}
		// Every tenth is cancelled, somewhere around its due time.
		if rng.IntN(10) == 0 {
			p.cancel = time.Duration(rng.Int64N(int64(800*time.Millisecond))) - 200*time.Millisecond
		}
	}
	return plans
}

func (p *plan) message(subject string) *nats.Msg {
	attrs := map[string]string{
		"specversion": "1.0", "id": p.id, "source": chaosSource, "type": "chaos.timer", schemas.AttrService: "chaos",
		schemas.AttrAt: schemas.FormatTime(p.dueMs), schemas.AttrBackoff: "50ms..1s", schemas.AttrMaxAttempts: "500", schemas.AttrTimeout: "5s",
	}
	if p.callback != "" {
		attrs[schemas.AttrCallback] = p.callback
	}
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

// client adds and cancels, recording what it is told.
type client struct {
	t   *testing.T
	rec *check.Recorder
	nc  *nats.Conn
	js  jetstream.JetStream
}

func newClient(t *testing.T, rec *check.Recorder, url string) *client {
	t.Helper()
	nc, err := nats.Connect(url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.ReconnectJitter(0, 0), nats.RetryOnFailedConnect(true), nats.ReconnectBufSize(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return &client{t: t, rec: rec, nc: nc, js: js}
}

// run carries out the plans, each in its own goroutine when its time has come,
// and returns when all have ended.
func (c *client) run(ctx context.Context, plans []plan) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range plans {
		p := &plans[i]
		wg.Go(func() {
			if !wait(ctx, time.Until(p.addAt)) {
				close(p.begun)
				return
			}
			c.add(ctx, p)
		})
		if p.cancel != 0 {
			wg.Go(func() {
				<-p.begun
				if wait(ctx, time.Until(time.UnixMilli(p.dueMs).Add(-p.cancel))) {
					c.cancel(ctx, p)
				}
			})
		}
	}
}

func wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// add adds until it is told what became of it. Some are not repeated, so that the
// history has adds that nobody knows about.
func (c *client) add(ctx context.Context, p *plan) {
	for try := range tries {
		call := c.rec.Put(check.Event{Kind: check.Add, Via: p.via, Source: chaosSource, ID: p.id, DueMs: p.dueMs, Data: p.data, Callback: p.callback != ""})
		if try == 0 {
			close(p.begun)
		}
		var err error
		if p.via == "api" {
			err = c.request(ctx, p.message(schemas.SubjectAPIPrefix+"add"))
		} else {
			err = c.publish(ctx, p.message(schemas.SubjectAdd))
		}
		c.answer(call, err)
		code := schemas.CodeOf(err)
		if err == nil || code != "" && code != schemas.CodeUnavailable {
			return
		}
		if p.id[len(p.id)-1] == '7' && try == 0 {
			return // nobody will know
		}
		if !wait(ctx, 50*time.Millisecond) {
			return
		}
	}
}

func (c *client) cancel(ctx context.Context, p *plan) {
	call := c.rec.Put(check.Event{Kind: check.Cancel, Via: "api", Source: chaosSource, ID: p.id})
	m := &nats.Msg{Subject: schemas.SubjectAPIPrefix + "cancel", Data: []byte(fmt.Sprintf(`{"id":%q,"source":%q}`, p.id, chaosSource))}
	c.answer(call, c.request(ctx, m))
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

// publish adds durably: JetStream's acknowledgement is what counts.
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

// pending counts the timers that are not concluded, as the API lists them.
func (c *client) pending(ctx context.Context) (int, error) {
	n := 0
	for cursor := ""; ; {
		m, err := c.nc.RequestWithContext(ctx, schemas.SubjectAPIPrefix+"list", []byte(fmt.Sprintf(`{"state":["pending","delivered","retrying"],"limit":500,"cursor":%q}`, cursor)))
		if err != nil {
			return 0, err
		}
		var page schemas.ListReply
		if err := decode(m, &page); err != nil {
			return 0, err
		}
		n += len(page.Timers)
		if cursor = page.Cursor; cursor == "" {
			break
		}
	}
	s, err := c.js.Stream(ctx, schemas.StreamAdd)
	if err != nil {
		return 0, err
	}
	return n + int(s.CachedInfo().State.Msgs), nil
}

// readFired records what stands on timers.fired from a sequence on, and returns
// the last sequence.
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
		e, _, _, err := schemas.ParseFired(m.Headers(), m.Data())
		if err != nil {
			return 0, fmt.Errorf("sequence %d of %s: %w", meta.Sequence.Stream, schemas.StreamFired, err)
		}
		c.rec.Put(check.Event{
			Kind: check.Fired, Source: e.Source(), ID: e.ID(), Sequence: meta.Sequence.Stream, TimeNs: meta.Timestamp.UnixNano(),
			Key: m.Headers().Get(jetstream.MsgIDHeader), Data: string(e.Data()),
		})
		if meta.Sequence.Stream >= last {
			return last, nil
		}
	}
}
