package belfry

import (
	"context"

	"github.com/belfryio/belfry/schemas"
)

// This file has the operations on flow limits, which bound the rate and the number of parallel calls of
// a target over the whole cluster. Only programs in Belfry's own account may call them; other accounts
// get ErrBadRequest, or no answer.

// FlowLimit bounds the calls of a flow key, or of each key that matches a pattern; see
// [Client.SetFlow]. With the key "adds:<service>" it bounds the rate of the service's adds and its
// pending timers instead; such a limit has no Parallel.
type FlowLimit struct {
	// Rate is a number of calls in a duration, such as "20/s", "100/m", "1000/h", "5000/d" or
	// "100/10m"; "" for no bound. In any window of length t, at most rate × t + burst calls begin.
	Rate string
	// Burst is the number of calls that may begin at once. 0 is the default: the calls of a tenth of a
	// second, at least 2; but 1 if the interval between two calls is a second or more.
	Burst int
	// Parallel is the number of calls that run at once; 0 does not bound them.
	Parallel int
	// Pending bounds the pending timers of a service or tenant, only with a key that begins with
	// "adds:"; 0 for no bound. Further adds get ErrLimited. Several nodes together may exceed it by the
	// adds of about two seconds.
	Pending int
	// Schedules and Bytes are the pending schedules of a service or tenant, and the bytes of the events of its
	// pending timers. Services is the number of services with pending timers of a tenant, at most 4,096, only
	// with a key such as "adds:acme=". 0 does not bound them. Otherwise they are as Pending.
	Schedules, Services int
	Bytes               int64
	// Circuit is the number of consecutive connection errors after which the calls of a key stop until
	// the target answers a probe: at most 10,000; 0 for never, nil for the default, 5.
	Circuit *int
}

// FlowLimitInfo describes a stored limit.
type FlowLimitInfo = schemas.FlowLimitInfo

// FlowChange is the effect of a change of a limit: the limit before and after, and the number of events
// that wait for a call of its keys.
type FlowChange = schemas.FlowReply

// FlowStatus is the limit that applies to a key, and its use.
type FlowStatus = schemas.FlowStatus

// Flow sets the flow key of a timer, whose limits apply to its callback: 1 to 128 letters,
// digits or any of - _ . : @ /. Without it the key is the host of an HTTP callback, such as
// api.example.com, or service:<service> for a callback over NATS.
func Flow(key string) AddOption { return extension{schemas.AttrFlow, key} }

// OrderKey sets the ordering key of a timer with a callback. The callbacks of one key and one service
// are made one at a time, in due order. The next callback waits until the previous one has succeeded
// or is a dead letter; a retry keeps its place. A key has 1 to 128 letters, digits or any of
// - _ . : @ /.
func OrderKey(key string) AddOption { return extension{schemas.AttrKey, key} }

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

// FlowDryRun makes [Client.SetFlow] store nothing, and only return the FlowChange.
func FlowDryRun() FlowOption { return flowOption(func(o *flowOptions) { o.dryRun = true }) }

// FlowBy sets the name of the caller: at most 128 bytes of printable text. Belfry does not verify
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

// GetFlow returns the limit that applies to a flow key, or that is stored for a pattern, and its use.
// Errors: ErrNotFound for a pattern without a limit, ErrBadRequest, ErrUnavailable.
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
// [Client.ResumeFlow]. Calls in progress continue to their end. Events that become due wait, and use
// no attempt. note is the reason, at most 256 bytes. The key needs no limit. Errors: as SetFlow.
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

// FlowHold describes why the calls of a flow key are stopped: its target asked for a pause
// (Retry-After), or its circuit is open.
type FlowHold = schemas.FlowHoldInfo

// FlowHolds returns the holds of all flow keys whose calls are stopped. Errors: ErrUnavailable.
func (c *Client) FlowHolds(ctx context.Context) ([]FlowHold, error) {
	var r schemas.FlowListReply
	err := c.call(ctx, "flow.list", struct{}{}, &r)
	return r.Holds, err
}

// ResetFlow ends the hold of a flow key, so that its calls begin again, and returns the hold. Only the
// option FlowBy applies. Errors: ErrNotFound for a key without a hold, ErrBadRequest, ErrUnavailable.
func (c *Client) ResetFlow(ctx context.Context, key string, opts ...FlowOption) (FlowHold, error) {
	var r schemas.FlowResetReply
	err := c.call(ctx, "flow.reset", schemas.FlowResetRequest{Key: key, By: flowOptionsOf(opts).by}, &r)
	return r.Before, err
}
