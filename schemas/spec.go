package schemas

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/nats-io/nats.go"
)

// ParseAdd validates an add, a message published to timers.add or timers.api.add. It
// returns the body to store and the content of the timer attributes. timerafter counts
// from addedMs (Unix milliseconds). Its errors are *Error with CodeInvalidEvent,
// CodeInvalidAttribute or CodeTooLarge.
//
// ParseAdd does not compile the recurrence of a schedule. Use ParseAdd of package
// internal/recurrence wherever schedules are accepted.
func ParseAdd(hdr nats.Header, data []byte, addedMs int64, lim Limits) (Body, Spec, error) {
	lim = lim.withDefaults()
	if err := checkPayload(hdr, data, lim); err != nil {
		return Body{}, Spec{}, err
	}
	p, err := parse(hdr, data)
	if err != nil {
		return Body{}, Spec{}, err
	}
	body, spec, err := p.accept(addedMs, lim)
	if err == nil {
		spec.Hash = p.hash()
	}
	return body, spec, err
}

// checkPayload checks the size of an add's message.
func checkPayload(hdr nats.Header, data []byte, lim Limits) error {
	size := len(data)
	for name, values := range hdr {
		for _, v := range values {
			size += len(name) + len(v) + 4
		}
	}
	if size > lim.MaxPayload {
		return Errorf(CodeTooLarge, "the event has %d bytes, headers and data together; the limit is %d: send a reference to large data instead", size, lim.MaxPayload)
	}
	return nil
}

// accept applies the rules of adds to an event that conforms, and returns what ParseAdd returns,
// without the hash.
func (p *parsed) accept(addedMs int64, lim Limits) (Body, Spec, error) {
	if err := p.checkAdd(); err != nil {
		return Body{}, Spec{}, err
	}
	spec, err := p.spec(lim, nil)
	if err != nil {
		return Body{}, Spec{}, err
	}
	if p.recurs {
		spec.Recurrence, err = p.recurrence()
	} else {
		spec.DueMs, err = p.due(addedMs, lim)
	}
	if err != nil {
		return Body{}, Spec{}, err
	}
	body := Body{Mode: p.mode, Headers: p.headers, Data: p.raw}
	if err := body.CheckSize(lim.MaxMessage); err != nil {
		return Body{}, Spec{}, err
	}
	if strings.HasPrefix(spec.Callback, NATSScheme) {
		if err := p.checkRequest(lim.MaxMessage); err != nil {
			return Body{}, Spec{}, err
		}
	}
	return body, spec, nil
}

// checkAdd applies the rules that apply only to adds; conforms has the others. It rejects
// too many attributes, empty ones, header names that cannot be sent, and attributes that
// begin with attributePrefix but are not input attributes of the right type.
func (p *parsed) checkAdd() error {
	if len(p.attrs) > MaxAttributes {
		return tooManyAttributes()
	}
	for i := range p.headers {
		if name := p.headers[i].Name; !validHeaderName(name) {
			return badEvent("header name %.80q cannot be sent with the event: use only letters, digits and !#$%%&'*+-.^_`|~ in header names", name)
		}
	}
	for i := range p.attrs {
		a := &p.attrs[i]
		name := a.name
		switch {
		case a.kind != kindNull && a.blank():
			return emptyAttribute(name)
		case name == "time" && a.kind != kindNull && !twoDigitHour(a.text):
			return badEvent("time %.80q is not an RFC 3339 time", a.text).About(name)
		case !strings.HasPrefix(name, attributePrefix):
		case slices.Contains(inputAttributes, name):
			if a.kind != kindString && a.kind != kindNull && (a.kind != kindInteger || name != AttrMaxAttempts && name != AttrLimit) {
				return badAttribute(name, a.text, "must be a string%s", inputExamples[name])
			}
			p.recurs = p.recurs || a.kind != kindNull && isScheduleAttribute(name)
		case slices.Contains(outputAttributes, name):
			return Errorf(CodeInvalidAttribute, "%s is set by Belfry when an event fires; remove it from the add", name).About(name)
		default:
			return Errorf(CodeInvalidAttribute, "unknown attribute %s: names that begin with %q are reserved for Belfry's attributes %s", name, attributePrefix, strings.Join(inputAttributes, ", ")).About(name)
		}
	}
	return nil
}

func emptyAttribute(name string) error {
	return badEvent("attribute %s is empty; leave it out", name).About(name)
}

// inputExamples completes the error "must be a string" with an example for the attribute.
var inputExamples = map[string]string{
	AttrAt:      `, a time such as "2026-12-24T18:00:00Z"`,
	AttrAfter:   `, a duration with its unit such as "10s"`,
	AttrBackoff: `, a duration with its unit such as "200ms", or "1s..10m"`,
	AttrTimeout: `, a duration with its unit such as "30s"`,
	AttrCron:    `, an expression such as "30 2 * * *"`,
	AttrEvery:   `, a period with its unit such as "15m" or "P1D"`,
	AttrStart:   `, a time such as "2026-12-24T18:00:00Z"`,
	AttrEnd:     `, a time such as "2026-12-24T18:00:00Z"`,
	AttrJitter:  `, a duration with its unit such as "30s"`,
	AttrGrace:   `, a duration with its unit such as "10m"`,
	AttrExpect:  `, a duration with its unit such as "30m"`,
}

// unlimited is for events that were accepted before. They stay valid, even if the limits
// are lower now.
var unlimited = Limits{MaxAttempts: 1<<32 - 1, MaxTimeout: 1 << 62, MaxBackoff: 1 << 62, accepted: true}

// spec reads the timer attributes except the due time and the hash, and applies defaults and limits. It
// reads the attributes of the retry policy only if policy is nil.
func (p *parsed) spec(lim Limits, policy *RetryPolicy) (Spec, error) {
	s := Spec{
		EventID: p.text("id"), Source: p.text("source"), Type: p.text("type"),
		Service: DefaultService, Callback: p.text(AttrCallback),
	}
	s.Timer = NewTenantTimerID(lim.Tenant, s.Source, s.EventID)
	if a, ok := p.get(AttrService); ok {
		if !ValidService(a.text) {
			return s, badAttribute(AttrService, a.text, "a service must have 1 to %d letters, digits, '-' or '_', because it becomes one token of a subject", MaxServiceLength)
		}
		s.Service = a.text
	}
	if a, ok := p.get(AttrCallback); ok && !lim.accepted {
		if err := CheckCallback(a.text, s.Service); err != nil {
			return s, badAttribute(AttrCallback, RedactURL(a.text), "%w", err)
		}
	}
	if a, ok := p.get(AttrFlow); ok {
		if err := CheckFlowKey(a.text); err != nil {
			return s, badAttribute(AttrFlow, a.text, "%w", err)
		}
		s.Flow = a.text
	}
	if a, ok := p.get(AttrKey); ok {
		if err := CheckOrderKey(a.text); err != nil {
			return s, badAttribute(AttrKey, a.text, "%w", err)
		}
		if s.Callback == "" && !lim.accepted {
			return s, badAttribute(AttrKey, a.text, "an ordering key is for callbacks: set %s, or leave out %s", AttrCallback, AttrKey)
		}
		s.Key = a.text
	}
	if policy == nil {
		parsed, err := p.retryPolicy(lim)
		if err != nil {
			return s, err
		}
		policy = &parsed
	}
	s.RetryPolicy = *policy
	if a, ok := p.get(AttrGroup); ok {
		if a.text == "" || len(a.text) > MaxGroupLength || strings.ContainsFunc(a.text, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return s, badAttribute(AttrGroup, a.text, "a group must have 1 to %d bytes of printable text", MaxGroupLength)
		}
		s.Group = a.text
	}
	s.Service = TenantService(lim.Tenant, s.Service)
	return s, nil
}

// Of gives what ParseFired has read the service of its message's subject. The event has only
// the tenant's own name for the service, timersvc.
func (s *Spec) Of(service string) {
	if tenant := TenantOf(service); tenant != "" {
		s.Service, s.Timer = service, NewTenantTimerID(tenant, s.Source, s.EventID)
	}
}

// retryPolicy reads the attributes of the retry policy, and applies defaults and limits.
func (p *parsed) retryPolicy(lim Limits) (RetryPolicy, error) {
	r := RetryPolicy{
		MaxAttempts:  min(DefaultMaxAttempts, lim.MaxAttempts),
		BackoffFirst: DefaultBackoffFirst, BackoffTo: min(DefaultBackoffTo, lim.MaxBackoff), Timeout: min(DefaultTimeout, lim.MaxTimeout),
	}
	if a, ok := p.get(AttrMaxAttempts); ok {
		n, err := strconv.ParseUint(a.text, 10, 32)
		if err != nil || n < 1 || n > uint64(lim.MaxAttempts) {
			return r, badAttribute(AttrMaxAttempts, a.text, "must be a number from 1 to %d", lim.MaxAttempts)
		}
		r.MaxAttempts = uint32(n)
	}
	if a, ok := p.get(AttrBackoff); ok {
		var err error
		if r.BackoffFirst, r.BackoffTo, err = parseBackoff(a.text, lim.MaxBackoff); err != nil {
			return r, badAttribute(AttrBackoff, a.text, "%w (write 200ms, or 1s..10m)", err)
		}
	}
	if a, ok := p.get(AttrTimeout); ok {
		d, err := ParseDuration(a.text)
		switch {
		case err != nil:
			return r, badAttribute(AttrTimeout, a.text, "%w", err)
		case d < MinTimeout || d > lim.MaxTimeout:
			return r, badAttribute(AttrTimeout, a.text, "must be %s to %s", MinTimeout, lim.MaxTimeout)
		}
		r.Timeout = d
	}
	return r, nil
}

// due returns the due time of timerat or timerafter, in Unix milliseconds.
func (p *parsed) due(addedMs int64, lim Limits) (int64, error) {
	at, hasAt := p.get(AttrAt)
	after, hasAfter := p.get(AttrAfter)
	switch {
	case hasAt && hasAfter:
		return 0, bothSet(AttrAt, AttrAfter)
	case hasAt:
		ms, err := ParseTime(at.text)
		if err != nil {
			return 0, badAttribute(AttrAt, at.text, "%w", err)
		}
		if ms-addedMs > lim.MaxHorizon.Milliseconds() {
			return 0, badAttribute(AttrAt, at.text, "further ahead than the limit of %s", Days(lim.MaxHorizon))
		}
		return ms, nil
	case hasAfter:
		d, err := ParseDuration(after.text)
		switch {
		case err != nil:
			return 0, badAttribute(AttrAfter, after.text, "%w", err)
		case d < 0:
			return 0, badAttribute(AttrAfter, after.text, "negative; for an immediate timer write 0s")
		case d > lim.MaxHorizon:
			return 0, badAttribute(AttrAfter, after.text, "further ahead than the limit of %s", Days(lim.MaxHorizon))
		}
		return addedMs + (int64(d)+int64(time.Millisecond)-1)/int64(time.Millisecond), nil
	}
	return 0, Errorf(CodeInvalidAttribute, "the event has no due time; set one of %s, %s, %s and %s", AttrAt, AttrAfter, AttrCron, AttrEvery)
}

// Days returns a duration of two days or more as a number of days.
func Days(d time.Duration) string {
	if d < 48*time.Hour {
		return d.String()
	}
	return strconv.Itoa(int(d.Hours()/24)) + " days"
}

// ParseFired parses a message from timers.fired, timers.retry or timers.dead. It returns
// the event without timercallback, the content of the timer attributes, and the values of
// the attributes that Belfry added. Spec.DueMs is the scheduled time. Spec.Callback is
// empty if the message has HeaderCallback instead of timercallback.
func ParseFired(hdr nats.Header, data []byte) (*event.Event, Spec, Fired, error) {
	p, err := parse(hdr, data)
	if err != nil {
		return nil, Spec{}, Fired{}, err
	}
	var policy *RetryPolicy
	if v := hdr[HeaderRetry]; len(v) > 0 {
		sent, err := parseRetryHeader(v[0])
		if err != nil {
			return nil, Spec{}, Fired{}, err
		}
		policy = &sent
	}
	spec, err := p.spec(unlimited, policy)
	if err != nil {
		return nil, Spec{}, Fired{}, err
	}
	spec.Hash = p.hash()
	f, err := p.fired()
	if err != nil {
		return nil, Spec{}, Fired{}, err
	}
	spec.DueMs = f.ScheduledMs
	// Only Belfry needs the callback, and it may hold credentials.
	p.attrs = slices.DeleteFunc(p.attrs, func(a attribute) bool { return a.name == AttrCallback })
	e, err := p.event()
	return e, spec, f, err
}

// fired reads the attributes that Belfry added.
func (p *parsed) fired() (f Fired, err error) {
	for _, x := range [...]struct {
		name string
		ms   *int64
	}{{AttrScheduled, &f.ScheduledMs}, {AttrFired, &f.FiredMs}} {
		if *x.ms, err = ParseTime(p.text(x.name)); err != nil {
			return f, badAttribute(x.name, p.text(x.name), "%w", err)
		}
	}
	for _, x := range [...]struct {
		name string
		n    *uint32
	}{{AttrRun, &f.Run}, {AttrAttempt, &f.Attempt}} {
		v, err := strconv.ParseUint(p.text(x.name), 10, 32)
		if err != nil {
			return f, badAttribute(x.name, p.text(x.name), "not a number")
		}
		*x.n = uint32(v)
	}
	if a, ok := p.get(AttrMissed); ok {
		v, err := strconv.ParseUint(a.text, 10, 32)
		if err != nil {
			return f, badAttribute(AttrMissed, a.text, "not a number")
		}
		f.Missed = uint32(v)
	}
	if a, ok := p.get(AttrTrigger); ok {
		if f.Trigger, err = ParseTrigger(a.text); err != nil {
			return f, badAttribute(AttrTrigger, a.text, "%w", err)
		}
	}
	return f, nil
}
