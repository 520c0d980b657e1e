package store

import (
	"context"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Events publishes messages (fired events, retries, dead letters) and finds published ones
// again.
//
// It also wakes the feed of a message that names a service (Msg.Service), before it
// publishes the message. That happens here and not at the publishers, because the
// guarantee that an event of a resting feed reaches its callback depends on the order of
// three steps: wake the feed, store the event, check that the feed has not come to rest
// meanwhile. So every publisher (the scheduler, and functions for retries) gets the order
// right, and none has to wait: a message to a feed that is awake is sent at once, one to
// a resting feed in a goroutine of the store.
//
// A fired event of a tenant of Config.TenantFired is stored in TIMERS_TENANT_FIRED first.
//
// A message with a MsgID is stored once within the stream's dedup window, however often it
// is published. An error of schemas.ErrUnavailable leaves open whether the message was
// stored; an error for which Permanent is true says that it never will be. Safe for
// concurrent use.
type Events struct {
	jet   *jet.Client
	feeds *FeedActivator
	// maxPayload bounds the headers and data of a message in bytes; see Config.MaxPayload.
	maxPayload int
	// tenants copies the fired events of tenants; nil for none.
	tenants *tenantFired
	moved   func(time.Time) time.Time // see Config.Moved
}

func newEvents(c *jet.Client, feeds *FeedActivator, maxPayload int, tenants *tenantFired) *Events {
	return &Events{jet: c, feeds: feeds, maxPayload: maxPayload, tenants: tenants}
}

// MaxMessage returns the size of the largest message that can be stored now, headers and
// data, in bytes: the server's max_payload, or the streams' limit if that is lower.
func (e *Events) MaxMessage() int {
	if n := e.jet.MaxPayload(); n > 0 {
		return int(min(n, int64(e.maxPayload)))
	}
	return e.maxPayload
}

// PublishAsync publishes m and calls done once with its sequence. done must neither block
// nor publish. For m.Service see Events. Errors: schemas.ErrUnavailable,
// schemas.ErrStoreFull, and errors for which Permanent is true.
func (e *Events) PublishAsync(m Msg, done func(seq uint64, duplicate bool, err error)) {
	if e.tenants != nil {
		if account := e.tenants.account(m.Subject); account != "" {
			e.tenants.copyFirst(m, account, func() { e.publishAwake(m, done) }, func(err error) { done(0, false, err) })
			return
		}
	}
	e.publishAwake(m, done)
}

// publishAwake wakes the feed of m, if it has one, and publishes m.
func (e *Events) publishAwake(m Msg, done func(seq uint64, duplicate bool, err error)) {
	if m.Service != "" {
		e.feeds.publishFor(feedFor(m.Service, m.Subject), func(done func(uint64, bool, error)) { e.publish(m, done) }, done)
		return
	}
	e.publish(m, done)
}

// publish publishes m without waking a feed.
func (e *Events) publish(m Msg, done func(seq uint64, duplicate bool, err error)) {
	hdr := m.Header
	if m.MsgID != "" {
		if hdr == nil {
			hdr = jet.Header{}
		}
		jet.SetMsgID(hdr, m.MsgID)
	}
	answer := func(a jet.Ack, err error) {
		if Permanent(err) {
			err = schemas.Errorf(schemas.CodeOf(err), "%w: the message has %d bytes of headers and %d of data", err, schemas.HeaderBytes(hdr), len(m.Data))
		}
		done(a.Seq, a.Duplicate, err)
	}
	op := "publish " + m.Subject
	switch {
	case strings.HasPrefix(m.Subject, schemas.SubjectFiredPrefix):
		e.jet.WriteAsync(schemas.StreamFired, op, m.Subject, hdr, m.Data, answer)
	case strings.HasPrefix(m.Subject, schemas.SubjectRetryPrefix):
		e.jet.WriteAsync(schemas.StreamRetry, op, m.Subject, hdr, m.Data, answer)
	default:
		e.jet.PublishAsync(op, m.Subject, hdr, m.Data, answer)
	}
}

// Publish is PublishAsync and waits for the acknowledgement. Errors: those of PublishAsync.
func (e *Events) Publish(ctx context.Context, m Msg) (seq uint64, duplicate bool, err error) {
	a, err := e.jet.Await(ctx, "publish "+m.Subject, func(done func(jet.Ack, error)) {
		e.PublishAsync(m, func(seq uint64, duplicate bool, err error) { done(jet.Ack{Seq: seq, Duplicate: duplicate}, err) })
	})
	return a.Seq, a.Duplicate, err
}
