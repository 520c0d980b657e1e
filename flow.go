package belfry

import (
	"context"

	"github.com/belfryio/belfry/schemas"
)

// This file has the operations on flow limits: how many calls a target gets a second, and at
// once, over the whole cluster. They are for programs of Belfry's own account; other accounts
// get ErrBadRequest, or no answer.

// FlowLimit says what a flow key, or each key that matches a pattern, permits; see
// [Client.SetFlow]. Of the key "adds:" and a service it is the rate of that service's adds, and the number
// of its pending timers; such a limit has no Parallel.
type FlowLimit struct {
	// Rate is a number of calls in a duration, such as "20/s", "100/m", "1000/h", "5000/d" or
	// "100/10m"; "" does not bound them. In no window of length t begin more than rate × t + burst calls.
	Rate string
	// Burst is the number of calls that may begin at once; 0 for the calls of a tenth
	// of a second, at least 2, or for 1 if a second or more is between two calls.
	Burst int
	// Parallel is the number of calls that run at once; 0 does not bound them.
	Parallel int
	// Pending is the number of timers of a service or tenant that may wait for their due time, only with a key
	// that begins with "adds:"; 0 does not bound them. Further adds get ErrLimited. Adds of several nodes at
	// the same time may exceed it by what they add in about two seconds.
	Pending int
	// Schedules and Bytes are the pending schedules of a service or tenant, and the bytes of the events of its
	// pending timers. Services is the number of services with pending timers of a tenant, at most 4,096, only
	// with a key such as "adds:acme=". 0 does not bound them. Otherwise they are as Pending.
	Schedules, Services int
	Bytes               int64
	// Circuit is the number of connection errors in a row after which the calls of a key stop until
	// the target answers a probe: at most 10,000; 0 for never, nil for the default, 5.
	Circuit *int
}

// FlowLimitInfo describes a stored limit.
type FlowLimitInfo = schemas.FlowLimitInfo

// FlowChange is what a change of a limit did, or would do: the limit before and after, and the
// number of events that wait for a call of its keys.
type FlowChange = schemas.FlowReply

// FlowStatus is the limit that applies to a key and what of it is used.
type FlowStatus = schemas.FlowStatus

// Flow sets the flow key of a timer, whose limits apply to its callback: 1 to 128 letters,
// digits or any of - _ . : @ /. Without it the key is the host of an HTTP callback, such as
// api.example.com, or service:<service> for a callback over NATS.
func Flow(key string) AddOption { return extension(schemas.AttrFlow, key) }

// OrderKey sets the ordering key of a timer with a callback: the callbacks of one key and one service
// are called one at a time, in due order. The next waits for the success or the dead letter of
// the one before; a retry keeps its place. A key has 1 to 128 letters, digits or any of
// - _ . : @ /.
func OrderKey(key string) AddOption { return extension(schemas.AttrKey, key) }

// FlowOption changes a call of [Client.SetFlow], [Client.PauseFlow], [Client.ResumeFlow] or
// [Client.DeleteFlow].
type FlowOption interface{ applyFlow(*flowOptions) }

type flowOptions struct {
	revision uint64
	dryRun   bool
	by       string
}

type flowOption func(*flowOptions)

func (f flowOption) applyFlow(o *flowOptions) { f(o) }

// FlowRevision makes a change fail with ErrConflict unless the limit has this revision.
func FlowRevision(revision uint64) FlowOption {
	return flowOption(func(o *flowOptions) { o.revision = revision })
}

// FlowDryRun makes [Client.SetFlow] store nothing, and only say what would change.
func FlowDryRun() FlowOption { return flowOption(func(o *flowOptions) { o.dryRun = true }) }

// FlowBy says who makes the change: at most 128 bytes of printable text. Belfry does not verify
// it.
func FlowBy(name string) FlowOption { return flowOption(func(o *flowOptions) { o.by = name }) }

func flowOptionsOf(opts []FlowOption) (o flowOptions) {
	for _, opt := range opts {
		opt.applyFlow(&o)
	}
	return o
}

// SetFlow replaces the limit of a flow key, or makes a new one. With '*' in it, which stands for
// any run of characters, key is a pattern: the limit applies to each matching key by itself. The
// limit of a key comes before that of a pattern, that of a longer pattern before that of a shorter
// one. SetFlow does not end a pause. It takes about a second: when it returns without an error,
// every call that begins follows the limit. Errors: ErrBadRequest, ErrConflict, ErrStoreFull,
// ErrUnavailable, after which the change may be in force.
func (c *Client) SetFlow(ctx context.Context, key string, limit FlowLimit, opts ...FlowOption) (FlowChange, error) {
	o := flowOptionsOf(opts)
	var r FlowChange
	err := c.call(ctx, "flow.set", schemas.FlowSetRequest{
		Key: key, Rate: limit.Rate, Burst: limit.Burst, Parallel: limit.Parallel, Pending: limit.Pending, Schedules: limit.Schedules, Services: limit.Services, Bytes: limit.Bytes,
		Circuit: limit.Circuit, Revision: o.revision, DryRun: o.dryRun, By: o.by,
	}, &r)
	return r, err
}

// GetFlow returns the limit that applies to a flow key, or that is stored for a pattern, and what
// of it is used. Errors: ErrNotFound for a pattern without a limit, ErrBadRequest,
// ErrUnavailable.
func (c *Client) GetFlow(ctx context.Context, key string) (FlowStatus, error) {
	var r FlowStatus
	err := c.call(ctx, "flow.get", schemas.FlowRequest{Key: key}, &r)
	return r, err
}

// Flows returns all stored limits by key, and the flow keys that only their targets limit, with
// revision 0. Errors: ErrUnavailable.
func (c *Client) Flows(ctx context.Context) ([]FlowLimitInfo, error) {
	var r schemas.FlowListReply
	err := c.call(ctx, "flow.list", struct{}{}, &r)
	return r.Limits, err
}

// PauseFlow stops the calls of a flow key, or of each key that matches a pattern, until
// [Client.ResumeFlow]. Calls in progress end. Events that come due wait, and use no attempt. note
// says why, with at most 256 bytes. The key needs no limit. Errors: as SetFlow.
func (c *Client) PauseFlow(ctx context.Context, key, note string, opts ...FlowOption) (FlowChange, error) {
	return c.changeFlow(ctx, "flow.pause", key, note, opts)
}

// ResumeFlow ends a pause: the events that wait are called at the limit's rate. Errors:
// ErrNotFound if nothing is stored for the key, ErrBadRequest, ErrConflict, ErrUnavailable.
func (c *Client) ResumeFlow(ctx context.Context, key string, opts ...FlowOption) (FlowChange, error) {
	return c.changeFlow(ctx, "flow.resume", key, "", opts)
}

// DeleteFlow deletes the limit of a flow key or pattern. Errors: ErrNotFound, ErrConflict while it
// is paused, ErrBadRequest, ErrUnavailable.
func (c *Client) DeleteFlow(ctx context.Context, key string, opts ...FlowOption) (FlowChange, error) {
	return c.changeFlow(ctx, "flow.delete", key, "", opts)
}

func (c *Client) changeFlow(ctx context.Context, verb, key, note string, opts []FlowOption) (FlowChange, error) {
	o := flowOptionsOf(opts)
	var r FlowChange
	err := c.call(ctx, verb, schemas.FlowRequest{Key: key, Note: note, Revision: o.revision, By: o.by}, &r)
	return r, err
}

// FlowHold says what stops the calls of a flow key because of what its target answered.
type FlowHold = schemas.FlowHoldInfo

// FlowHolds returns the flow keys whose calls are stopped because of what their targets answered:
// Retry-After, or nothing at all. Errors: ErrUnavailable.
func (c *Client) FlowHolds(ctx context.Context) ([]FlowHold, error) {
	var r schemas.FlowListReply
	err := c.call(ctx, "flow.list", struct{}{}, &r)
	return r.Holds, err
}

// ResetFlow lets the calls of a flow key begin again that an answer of its target has stopped, and
// returns what stopped them. Of the options only FlowBy applies. Errors: ErrNotFound if nothing of the kind stops the key,
// ErrBadRequest, ErrUnavailable.
func (c *Client) ResetFlow(ctx context.Context, key string, opts ...FlowOption) (FlowHold, error) {
	var r schemas.FlowResetReply
	err := c.call(ctx, "flow.reset", schemas.FlowResetRequest{Key: key, By: flowOptionsOf(opts).by}, &r)
	return r.Before, err
}
