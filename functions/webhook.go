package functions

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/belfryio/belfry/functions/callback"
	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/internal/store"
)

// This file asks targets for their permission before the first call, if the service has a
// ServiceConfig.WebhookOrigin: it makes the validation handshake of the CloudEvents webhook specification.
//
//	delivery ──▶ permission of the URL ── none ──▶ one OPTIONS request for all that wait
//	                  │ allowed                        │ refused, or failed ──▶ result of the attempt
//	                  ▼                                ▼
//	             rate of the flow key is stored ──▶ flow control ──▶ call
//
// A process keeps the permissions in memory, by the URL without its query. The allowed rates are in the
// store, so that they apply to the whole cluster: a call begins only while the store has the allowed
// rate, or a lower one, for its flow key. A service without the setting costs one comparison.

const (
	// DefaultWebhookPermission is the default of Options.WebhookPermission.
	DefaultWebhookPermission = time.Hour
	// webhookTimeout bounds one OPTIONS request.
	webhookTimeout = 10 * time.Second
	// maxWebhookWaiting bounds the deliveries that wait for one answer. Further ones are delivered
	// again flowFullPause later.
	maxWebhookWaiting = 16
	// maxPermissions bounds the permissions that a process keeps for a service. If it drops a
	// permission, it asks the target again.
	maxPermissions = 10_000
)

// webhook has the permissions of the targets of one service, under one configuration.
type webhook struct {
	// life is the duration of a permission.
	life time.Duration

	mu sync.Mutex
	// permissions are by URL, at most maxPermissions.
	permissions map[string]permission
	// flights are the handshakes and the writes of rates in progress; see fly.
	flights map[string]*flight
}

// permission is the last answer of a target.
type permission struct {
	// failure is the result of each attempt until the end, if the target did not allow the calls; nil
	// for a permission.
	failure *callback.Outcome
	// perMinute is the number of calls a minute that the target allows; 0 for any.
	perMinute int
	// The permission lasts until end. From renew on, the next delivery asks the target again.
	renew, end time.Time
}

// flight is a handshake, or a write of a rate, in progress. Deliveries may wait for it.
type flight struct {
	done    chan struct{} // closed at the end
	waiting int           // guarded by webhook.mu
}

// newWebhook returns nil for a service without an origin.
func newWebhook(origin string, life time.Duration) *webhook {
	if origin == "" {
		return nil
	}
	return &webhook{life: life, permissions: map[string]permission{}, flights: map[string]*flight{}}
}

// of returns the permission of a URL; the zero value without one.
func (w *webhook) of(url string) permission {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.permissions[url]
	if !time.Now().Before(p.end) {
		return permission{}
	}
	return p
}

// store keeps the answer of a target. A failed handshake does not end an earlier permission.
func (w *webhook) store(url string, p permission) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if old, known := w.permissions[url]; known && old.failure == nil && p.failure != nil && p.failure.Retryable && now.Before(old.end) {
		old.renew = p.end
		p = old
	}
	if len(w.permissions) >= maxPermissions {
		for u, old := range w.permissions {
			if !now.Before(old.end) {
				delete(w.permissions, u)
			}
		}
		for u := range w.permissions {
			if len(w.permissions) < maxPermissions {
				break
			}
			delete(w.permissions, u)
		}
	}
	w.permissions[url] = p
}

// landed is a flight that has ended.
var landed = func() *flight {
	done := make(chan struct{})
	close(done)
	return &flight{done: done}
}()

// ask runs a handshake in the background. It does not if one is in progress, or if the target has
// answered meanwhile and its permission need not be renewed yet. The result is that of fly.
func (w *webhook) ask(f *Functions, url string, wait bool, run func()) *flight {
	return w.fly(f, "ask "+url, wait, func() bool {
		p, now := w.permissions[url], time.Now()
		return !now.Before(p.end) || p.failure == nil && now.After(p.renew)
	}, run)
}

// fly runs a function in the background and returns its flight. It joins the flight of that name if
// there is one. needed is called with w.mu held; if it returns false, the function does not run. If
// wait is true, the caller waits for the flight; the result is nil if maxWebhookWaiting deliveries
// wait already.
func (w *webhook) fly(f *Functions, name string, wait bool, needed func() bool, run func()) *flight {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.flights[name]
	if now == nil && !needed() {
		return landed
	}
	if now == nil {
		now = &flight{done: make(chan struct{})}
		w.flights[name] = now
		f.background.Go(func() {
			defer func() {
				w.mu.Lock()
				delete(w.flights, name)
				w.mu.Unlock()
				close(now.done)
			}()
			run()
		})
	}
	if wait && now.waiting >= maxWebhookWaiting {
		return nil
	}
	if wait {
		now.waiting++
	}
	return now
}

// allowed waits until the target allows the call and its flow key permits it. It returns false, and
// settles the event, if the target refuses, or if the event waits in its consumer or in the wheel.
func (d *delivery) allowed() bool {
	d.caller = d.svc.caller.Load()
	w := d.caller.webhook
	if w == nil {
		return d.permitted()
	}
	target, _ := d.caller.target(d.spec.Callback, d.svc.name)
	page, ok := webhookURL(target)
	if !ok { // over NATS, or not allowed: no request is sent
		return d.permitted()
	}
	key := d.flowKey()
	for {
		if d.blocked(key) {
			if !d.permitted() {
				return false
			}
			d.slot.leave() // the handshake needs no slot
			d.slot, d.probe = nil, 0
			continue
		}
		p := w.of(page)
		set, _ := d.f.o.Store.FlowsNow()
		open := set.Probing(key, d.f.flows.nowNs())
		stored, has := set.Target(key)
		var on *flight
		switch {
		case p.end.IsZero():
			if !d.mayProbe(set, key) { // the question is the probe of an open circuit
				return false
			}
			on = w.ask(d.f, page, true, d.asking(page, target, key))
		case p.failure != nil && d.unreachable(p.failure) && circuitAfter(set, key) > 0:
			d.awaitAnswer(key, p.end)
			return false
		case p.failure != nil:
			d.refused(*p.failure, p.end)
			return false
		case p.perMinute > 0 && (!has || stored.PerMinute > p.perMinute):
			on = w.fly(d.f, "rate "+key, true, func() bool { return true }, d.storing(page, key, p.perMinute))
		default:
			if time.Now().After(p.renew) && !open {
				w.ask(d.f, page, false, d.asking(page, target, key))
			}
			return d.permitted()
		}
		if !d.awaitFlight(on) {
			return false
		}
		d.probed(w.of(page))
	}
}

// unreachable reports whether a failed handshake is a connection error.
func (d *delivery) unreachable(out *callback.Outcome) bool {
	return contactOf(d.spec.Callback, out) == flow.Unreachable
}

// probed ends the probe of an open circuit for which the handshake was made. Any answer closes the
// circuit.
func (d *delivery) probed(p permission) {
	if d.probe != 0 && !p.end.IsZero() && (p.failure == nil || contactOf(d.spec.Callback, p.failure) == flow.Answered) {
		d.closeCircuit(0, "")
	}
	d.probe = 0
}

// awaitAnswer makes the event wait until the next handshake with a target that could not be reached. It
// counts no attempt, because the target did not get the event.
func (d *delivery) awaitAnswer(key string, again time.Time) {
	if d.turn.lost() {
		d.skip("turn_lost", func() error { return d.msg.Nak(flowFullPause) })
		return
	}
	ahead := max(time.Until(again), holdGap)
	d.postpone(key, flowAnswer{Verdict: flow.Verdict{Kind: flow.Defer, AtNs: d.f.flows.nowNs() + int64(ahead)}, generation: heldGeneration}, ahead)
}

// webhookURL returns the URL for which a permission holds: without user, query and fragment. ok is
// false for a target that is not called over HTTP.
func webhookURL(target string) (page string, ok bool) {
	u, err := url.Parse(target)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return "", false
	}
	u.User, u.RawQuery, u.Fragment, u.RawFragment, u.ForceQuery = nil, "", "", "", false
	u.Host = strings.ToLower(u.Host)
	return u.String(), true
}

// blocked reports whether no call of the flow key may begin at present. A handshake must then not
// begin either.
func (d *delivery) blocked(key string) bool {
	set, fresh := d.f.o.Store.FlowsNow()
	if !fresh {
		return true
	}
	if d.stopped(set, key) != nil {
		return true
	}
	l, limited := set.Find(key)
	return limited && (l.Limit.Paused || l.Err != nil)
}

// awaitFlight waits for the end of a flight; without the permit of the service if that takes longer than
// askHold. It returns false, and settles the event, if too many deliveries wait, functions stops, or
// there is no attempt to make.
func (d *delivery) awaitFlight(on *flight) bool {
	if on == nil {
		d.skip("webhook_busy", func() error { return d.msg.Nak(flowFullPause) })
		return false
	}
	began := time.Now()
	held := time.NewTimer(askHold)
	defer held.Stop()
	for {
		select {
		case <-on.done:
			return d.comeBack(began)
		case <-held.C:
			if !d.leavePermit() {
				return false
			}
		case <-d.f.pulling.Done():
			d.handBack()
			return false
		}
	}
}

// asking returns the function that makes the handshake with a target and stores its answer. target is
// the callback's full URL, page the URL of the permission.
func (d *delivery) asking(page, target, key string) func() {
	f, svc, c := d.f, d.svc, d.caller
	return func() {
		ctx, cancel := context.WithTimeout(f.calling, webhookTimeout)
		defer cancel()
		began := time.Now()
		set, _ := f.o.Store.FlowsNow()
		req := callback.Request{Service: svc.name, Target: target, Timeout: webhookTimeout, NowMs: f.o.Now()}
		perMinute, out := c.http.Ask(ctx, req, set.Configured(key).Limit.PerMinute())
		if !out.Success && f.calling.Err() != nil {
			return // functions stops: not an answer of the target
		}
		out.AtMs, out.Took = req.NowMs, time.Since(began)
		word, p := "allowed", permission{perMinute: perMinute, end: began.Add(c.webhook.life)}
		p.renew = p.end.Add(-c.webhook.life / 10)
		if !out.Success {
			word, p = string(out.Reason), permission{failure: &out, end: time.Now().Add(c.webhook.pauseAfter(&out))}
		}
		f.metrics.handshakes.WithLabelValues(svc.label, word).Inc()
		// The permission first: a delivery with an earlier, lower permission would store its rate again.
		c.webhook.store(page, p)
		switch contactOf(target, &out) {
		case flow.Unreachable:
			d.countError(holdReason(&out))
		case flow.Answered:
			if f.flows.holds.failing.Load() > 0 {
				f.flows.holds.count(key, flow.Answered, 0)
			}
		case flow.Unknown:
		}
		if out.Success && perMinute > 0 {
			d.storing(page, key, perMinute)()
		}
	}
}

// pauseAfter returns the time after a failure until the target is asked again.
func (w *webhook) pauseAfter(out *callback.Outcome) time.Duration {
	if !out.Retryable {
		return w.life / 60 // 1 minute by default
	}
	return min(max(out.RetryAfter, w.life/720), w.life) // 5 s to 1 h
}

// storing returns the function that stores the rate that a target allows for a flow key, and repeats it
// until the store answers. The rate is kept for longer than the permission, so that it is still there
// when the target is asked again.
func (d *delivery) storing(page, key string, perMinute int) func() {
	f, w := d.f, d.caller.webhook
	return func() {
		for wait := minPause; ; wait = min(wait*2, maxPause) {
			now := f.o.Now()
			err := f.o.Store.PutTargetRate(f.calling, store.TargetRate{
				Key: key, PerMinute: perMinute, URL: page, AtMs: now, UntilMs: now + (w.life * 3 / 2).Milliseconds(),
			})
			if err == nil || f.pulling.Err() != nil {
				return
			}
			f.flows.complain(key, err)
			if !pause.For(f.pulling, wait) {
				return
			}
		}
	}
}

// refused records the failed handshake as the result of the attempt. The next attempt begins not before
// the next handshake.
func (d *delivery) refused(out callback.Outcome, again time.Time) {
	if d.turn.lost() {
		d.skip("turn_lost", func() error { return d.msg.Nak(flowFullPause) })
		return
	}
	if out.Retryable {
		out.RetryAfter = max(out.RetryAfter, time.Until(again))
	}
	d.f.metrics.callbacks.WithLabelValues(d.svc.label, string(out.Reason)).Inc()
	d.releaseEarly()
	d.record(out)
}

// endTargetRates removes the rates of targets that have expired.
func (c *flowControl) endTargetRates(ctx context.Context, set *store.FlowSet) {
	for _, t := range set.Targets() {
		if t.UntilMs > c.f.o.Now() {
			continue
		}
		if err := c.f.o.Store.EndTargetRate(ctx, t); err != nil && ctx.Err() == nil && !errors.Is(err, store.ErrRevision) {
			c.f.o.Log.Debug().Err(err).Str("flow", t.Key).Msg("the end of the rate that a target allowed was not stored; trying again")
		}
	}
}
