package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/internal/order"
	"github.com/belfryio/belfry/schemas"
)

// This file lists the ordering keys that are busy. An idle key has no state, so the cost of a
// list does not grow with the number of keys that were ever used.

const (
	// orderScan bounds the states that one page reads, orderBatch those of one request. A state
	// has up to about 60 kB.
	orderScan  = 2000
	orderBatch = 100
	// failingScan bounds the states that FailingOrders reads.
	failingScan = 10_000
)

// OrderQuery selects busy ordering keys. An empty field matches all.
type OrderQuery struct {
	// Service is the name of a service, with that of its tenant.
	Service string
	// Tenant is as in ListQuery.
	Tenant *string
	// Cursor is OrderPage.Cursor of the previous page; empty for the first page.
	Cursor string
	// Limit bounds the keys of the page: 1 to MaxListLimit, or 0 for DefaultListLimit.
	Limit int
}

func (q *OrderQuery) selects(k OrderKey) bool {
	return (q.Service == "" || q.Service == k.Service) && (q.Tenant == nil || *q.Tenant == schemas.TenantOf(k.Service))
}

// BusyOrder is an ordering key and its state.
type BusyOrder struct {
	OrderKey
	State order.State
}

// OrderPage is one page; Cursor is empty at the end.
type OrderPage struct {
	Keys   []BusyOrder
	Cursor string
}

// OrderList returns a page of the ordering keys with events, the longest unchanged first. A key
// that changes while the pages are read may be missing; none comes twice. A state that this node
// cannot read is left out. One call reads at most orderScan states, so a page may be empty and not
// the last. Errors: bad_request, schemas.ErrUnavailable.
func (o *Orders) OrderList(ctx context.Context, q OrderQuery) (page OrderPage, err error) {
	_, limit, err := pageOf("", q.Limit, "order.list")
	if err != nil {
		return page, err
	}
	var at orderCursor
	if q.Cursor == "" {
		at.until, err = o.jet.LastOf(ctx, flowsStream, jet.Range{Filters: []string{orderPrefix + "*"}})
	} else {
		at, err = parseOrderCursor(q.Cursor)
	}
	if err != nil {
		return page, err
	}
	more, err := eachBusyOrder(ctx, o.jet, &at, orderScan, func(k BusyOrder) bool {
		if len(page.Keys) == limit {
			return false
		}
		if q.selects(k.OrderKey) {
			page.Keys = append(page.Keys, k)
		}
		return true
	})
	if more && err == nil {
		page.Cursor = at.String()
	}
	return page, err
}

// orderCursor is the position of a list: after and until are sequences of stream flowsStream. The list
// leaves out states that are stored after until, so it ends even if keys change all the time.
type orderCursor struct{ after, until uint64 }

func (c orderCursor) String() string { return fmt.Sprintf("%d.%d", c.after, c.until) }

func parseOrderCursor(text string) (c orderCursor, err error) {
	if n, err := fmt.Sscanf(text, "%d.%d", &c.after, &c.until); n != 2 || err != nil || c.String() != text {
		return c, schemas.Errorf(schemas.CodeBadRequest, "cursor %.40q was not returned by order.list", text)
	}
	return c, nil
}

// eachBusyOrder passes the ordering keys with events to fn, in the order of their last change, and
// moves the cursor on. more is true if fn returned false for a key, which the cursor then does not
// include, or if most states were read and others follow.
func eachBusyOrder(ctx context.Context, c *jet.Client, at *orderCursor, most int, fn func(BusyOrder) bool) (more bool, err error) {
	for looked := 0; at.after < at.until; {
		if looked >= most {
			return true, nil
		}
		msgs, left, err := c.Next(ctx, flowsStream, orderPrefix+"*", at.after, orderBatch)
		if err != nil {
			return false, err
		}
		for _, m := range msgs {
			if m.Sequence > at.until {
				return false, nil
			}
			if k, busy := busyOrder(m); busy && !fn(k) {
				return true, nil
			}
			at.after = m.Sequence
		}
		if looked += len(msgs); left == 0 || len(msgs) == 0 {
			return false, nil
		}
	}
	return false, nil
}

// busyOrder reads a message of an ordering key. busy is false for an idle key, and for a state that
// this node cannot read.
func busyOrder(m *jet.Msg) (k BusyOrder, busy bool) {
	if jet.HasOperation(m) {
		return k, false
	}
	var err error
	k.OrderKey, k.State, err = decodeOrder(m.Data)
	return k, err == nil && !k.State.Idle() && k.subject() == m.Subject
}

// FailingOrder is an ordering key whose head fails, while the others of the key wait.
type FailingOrder struct {
	OrderKey
	// Timer is the head, SinceMs the time since which it has its turn, in Unix milliseconds;
	// Attempts of MaxAttempts have failed, the last with Error.
	Timer                schemas.TimerID
	SinceMs              int64
	Attempts, MaxAttempt uint32
	Error                string
	Waiting              int
}

// Problem describes the key in one line.
func (f *FailingOrder) Problem() string {
	text := fmt.Sprintf("the turn of timer %s holds up ordering key %s of service %s since %s: %d of %d attempts have failed", f.Timer, f.Key, f.Service, schemas.FormatTime(f.SinceMs), f.Attempts, f.MaxAttempt)
	if f.Error != "" {
		text += " (" + f.Error + ")"
	}
	return text + fmt.Sprintf("; events that wait: %d", f.Waiting)
}

// FailingOrders returns at most limit ordering keys whose head has failed and has had its turn for
// longer than a duration. It reads only the records of heads that have been due for that long. more
// is true if there are others, or if there were too many keys to read. nowMs is the leader's time. A
// store of a version without ordering keys has none. Errors: schemas.ErrUnavailable,
// schemas.ErrDamaged for a damaged layout.
func (v *View) FailingOrders(ctx context.Context, nowMs int64, longer time.Duration, limit int) (all []FailingOrder, more bool, err error) {
	at := orderCursor{}
	at.until, err = v.jet.LastOf(ctx, flowsStream, jet.Range{Filters: []string{orderPrefix + "*"}})
	if errors.Is(err, jet.ErrNoStream) {
		return nil, false, nil
	}
	if err != nil || at.until == 0 {
		return nil, false, err
	}
	rd, err := v.reader(ctx)
	if err != nil {
		return nil, false, err
	}
	before := nowMs - longer.Milliseconds()
	var failed error
	more, err = eachBusyOrder(ctx, v.jet, &at, failingScan, func(k BusyOrder) bool {
		if k.State.Head.IsZero() || k.State.Head.DueMs > before || k.State.TurnMs > before {
			return true
		}
		t, err := rd.Get(ctx, k.State.Head.ID)
		switch f := failingOrder(&k, &t.Record); {
		case errors.Is(err, schemas.ErrUnavailable):
			failed = err
			return false
		case err != nil, f.Attempts == 0, f.SinceMs > before:
			return true // other checks report records that cannot be read
		case len(all) == limit:
			return false
		default:
			f.Timer = k.State.Head.ID
			all = append(all, f)
			return true
		}
	})
	return all, more, errors.Join(err, failed)
}

// failingOrder describes the head of a key by its record. Attempts is 0 if it has not failed, or is
// concluded.
func failingOrder(k *BusyOrder, r *schemas.Record) FailingOrder {
	f := FailingOrder{OrderKey: k.OrderKey, SinceMs: k.State.TurnMs, Waiting: len(k.State.Waiting)}
	if r.State != schemas.StateRetrying && r.State != schemas.StateDelivered || len(r.Attempts) == 0 {
		return f
	}
	if f.SinceMs == 0 {
		f.SinceMs = r.Attempts[0].AtMs
	}
	f.Attempts, f.MaxAttempt, f.Error = r.Attempt, r.MaxAttempt, r.Outcome.Error
	return f
}
