package belfry

import (
	"context"
	"fmt"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/belfryio/belfry/internal/client/publish"
	"github.com/belfryio/belfry/internal/recurrence"
	"github.com/belfryio/belfry/schemas"
)

// Receipt is the answer to [Client.Add].
type Receipt struct {
	Timer TimerID
	// Due is when the timer fires, to the millisecond.
	Due time.Time
	// Duplicate is true if the same timer had been added before.
	Duplicate bool
	// State is pending, or the present state of a duplicate.
	State State
	// Remark warns of an accepted add that may be a mistake, such as
	// "due 3h ago: fires now". It is empty for none.
	Remark string
}

// Add adds a timer and returns when it is stored. Options set the event's timer attributes;
// an event that has them needs no options. Add does not change the event. Errors:
// ErrInvalidEvent, ErrInvalidAttribute, ErrTooLarge, ErrConflict, ErrStoreFull,
// ErrTooManyServices, ErrLimited, ErrUnavailable. After ErrLimited nothing was stored, and
// [Error.RetryAfter] says when to try again.
func (c *Client) Add(ctx context.Context, e event.Event, opts ...AddOption) (Receipt, error) {
	data, err := encode(&e, opts)
	if err != nil {
		return Receipt{}, err
	}
	var reply schemas.AddReply
	if err := c.request(ctx, "add", nil, data, &reply); err != nil {
		return Receipt{}, err
	}
	return Receipt{Timer: reply.Timer, Due: reply.Due, Duplicate: reply.Duplicate, State: reply.State, Remark: reply.Remark}, nil
}

// AddAsync validates a timer, publishes it to timers.add and returns before it is stored. Use
// it to add many timers, each with its own answer. It blocks only while 4,000 adds have no
// answer, for at most 5 s. Adds of one goroutine are stored in order.
//
// Where the NATS server syncs every write, the client stores up to 500 adds with one write,
// and buffers up to 3,000 meanwhile. It measures which server it has, and also buffers then.
//
// AddAsync publishes nothing and returns ErrInvalidEvent, ErrInvalidAttribute or ErrTooLarge
// for an event that can never be a timer. Any other error is ErrUnavailable. [Pending.Wait]
// returns later errors.
func (c *Client) AddAsync(e event.Event, opts ...AddOption) (Pending, error) {
	data, err := validated(&e, opts)
	if err != nil {
		return Pending{}, err
	}
	r, err := c.pub.Add(data)
	return Pending{r: r}, err
}

// Pending is an add of [Client.AddAsync]. Wait may be called any number of times, by any
// number of goroutines.
type Pending struct{ r *publish.Result }

// Wait returns nil when the add is stored durably in the stream TIMERS_ADD. Errors:
// ErrStoreFull, ErrTooLarge, and ErrUnavailable, after which the add may have been stored.
// When ctx ends, Wait returns ErrUnavailable and the add continues.
//
// Belfry may still reject a stored add for reasons that the client cannot check: the settings
// max-ahead, callback-subjects, callback-hosts and max-services, or another timer with the
// same source and id. It also rejects stored adds that exceed the adds a second of their service by
// more than about ten seconds' worth, with the code limited. [Client.Rejections] lists such adds.
func (p Pending) Wait(ctx context.Context) error {
	if p.r == nil {
		return schemas.Errorf(schemas.CodeBadRequest, "Wait of a Pending that AddAsync did not return")
	}
	return p.r.Wait(ctx)
}

// AddBatch adds many timers with the same options and returns when all are stored durably in
// the stream TIMERS_ADD. Where the NATS server syncs every write, it stores up to 500 of them
// with one write.
//
// AddBatch validates all events, as AddAsync does, before it publishes the first. After any
// other error some may have been stored; adding all of them again is safe. Errors are those
// of AddAsync and [Pending.Wait]; the text has the number of the event.
func (c *Client) AddBatch(ctx context.Context, events []event.Event, opts ...AddOption) error {
	msgs := make([][]byte, len(events))
	for i := range events {
		var err error
		if msgs[i], err = validated(&events[i], opts); err != nil {
			return fmt.Errorf("add %d of %d: %w", i+1, len(events), err)
		}
	}
	if i, err := c.pub.AddAll(ctx, msgs); err != nil {
		return fmt.Errorf("add %d of %d: %w", i+1, len(events), err)
	}
	return nil
}

// encode returns the message of an add.
func encode(e *event.Event, opts []AddOption) ([]byte, error) {
	return schemas.EncodeAdd(e, settingsOf(opts))
}

// noMaxAhead replaces the server's setting max-ahead, which the client does not know. It must
// stay below the longest time.Duration, 292 years.
const noMaxAhead = 200 * 365 * 24 * time.Hour

// validated is encode with the server's validation.
func validated(e *event.Event, opts []AddOption) ([]byte, error) {
	return recurrence.EncodeAdd(e, settingsOf(opts), time.Now().UnixMilli(), schemas.Limits{MaxHorizon: noMaxAhead}, recurrence.UnknownCalendars)
}
