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

// ParseAdd validates an add as published to timers.add or timers.api.add and
// returns the body to keep and what it asks for. addedMs is the time from which
// timerafter counts. Its errors are *Error of CodeInvalidEvent,
// CodeInvalidAttribute, CodeUnsupported or CodeTooLarge.
func ParseAdd(hdr nats.Header, data []byte, addedMs int64, lim Limits) (Body, Spec, error) {
	lim = lim.withDefaults()
	size := len(data)
	for name, values := range hdr {
		for _, v := range values {
			size += len(name) + len(v) + 4
		}
	}
	if size > lim.MaxPayload {
		return Body{}, Spec{}, Errorf(CodeTooLarge, "the event has %d bytes; the limit is %d: send a reference to what is large", size, lim.MaxPayload)
	}
	p, err := take(hdr, data)
	if err != nil {
		return Body{}, Spec{}, err
	}
	if err := p.required(); err != nil {
		return Body{}, Spec{}, err
	}
	if err := p.refuse(); err != nil {
		return Body{}, Spec{}, err
	}
	spec, err := p.spec(lim)
	if err != nil {
		return Body{}, Spec{}, err
	}
	if spec.DueMs, err = p.due(addedMs, lim); err != nil {
		return Body{}, Spec{}, err
	}
	return Body{Mode: p.mode, Headers: p.headers, Data: p.raw}, spec, nil
}

// refuse names the timer attributes that an add may not have.
func (p *parsed) refuse() error {
	for name := range p.attrs {
		switch {
		case !strings.HasPrefix(name, attributePrefix), slices.Contains(inputAttributes, name):
		case slices.Contains(outputAttributes, name):
			return Errorf(CodeInvalidAttribute, "%s is set by Belfry when an event fires; remove it from the add", name)
		case slices.Contains(laterAttributes, name):
			return Errorf(CodeUnsupported, "%s is not served by this version; it serves %s", name, strings.Join(inputAttributes, ", "))
		default:
			return Errorf(CodeInvalidAttribute, "%s is unknown, and names that begin with %q are Belfry's: %s", name, attributePrefix, strings.Join(inputAttributes, ", "))
		}
	}
	return nil
}

// spec reads all but the due time.
func (p *parsed) spec(lim Limits) (Spec, error) {
	s := Spec{
		EventID: p.attrs["id"].text, Source: p.attrs["source"].text, Type: p.attrs["type"].text,
		Service: DefaultService, MaxAttempts: min(DefaultMaxAttempts, lim.MaxAttempts),
		BackoffFirst: DefaultBackoffFirst, BackoffTo: min(DefaultBackoffTo, lim.MaxBackoff), Timeout: min(DefaultTimeout, lim.MaxTimeout),
		Callback: p.attrs[AttrCallback].text, Hash: p.hash(),
	}
	s.Timer = NewTimerID(s.Source, s.EventID)
	if a, ok := p.attrs[AttrService]; ok {
		if !ValidService(a.text) {
			return s, badAttribute(AttrService, a.text, "a service is 1 to %d letters, digits, '-' or '_', because it is one token of a subject", MaxServiceLength)
		}
		s.Service = a.text
	}
	if a, ok := p.attrs[AttrCallback]; ok {
		if err := CheckCallback(a.text); err != nil {
			return s, badAttribute(AttrCallback, RedactURL(a.text), "%w", err)
		}
	}
	if a, ok := p.attrs[AttrMaxAttempts]; ok {
		n, err := strconv.ParseUint(a.text, 10, 32)
		if err != nil || n < 1 || n > uint64(lim.MaxAttempts) {
			return s, badAttribute(AttrMaxAttempts, a.text, "must be a number from 1 to %d", lim.MaxAttempts)
		}
		s.MaxAttempts = uint32(n)
	}
	if a, ok := p.attrs[AttrBackoff]; ok {
		var err error
		if s.BackoffFirst, s.BackoffTo, err = parseBackoff(a.text, lim.MaxBackoff); err != nil {
			return s, badAttribute(AttrBackoff, a.text, "%w (write 200ms, or 1s..10m)", err)
		}
	}
	if a, ok := p.attrs[AttrTimeout]; ok {
		d, err := ParseDuration(a.text)
		switch {
		case err != nil:
			return s, badAttribute(AttrTimeout, a.text, "%w", err)
		case d < MinTimeout || d > lim.MaxTimeout:
			return s, badAttribute(AttrTimeout, a.text, "must be %s to %s", MinTimeout, lim.MaxTimeout)
		}
		s.Timeout = d
	}
	if a, ok := p.attrs[AttrGroup]; ok {
		if a.text == "" || len(a.text) > MaxGroupLength || strings.ContainsFunc(a.text, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return s, badAttribute(AttrGroup, a.text, "a group is 1 to %d bytes of printable text", MaxGroupLength)
		}
		s.Group = a.text
	}
	return s, nil
}

// due reads timerat or timerafter.
func (p *parsed) due(addedMs int64, lim Limits) (int64, error) {
	at, hasAt := p.attrs[AttrAt]
	after, hasAfter := p.attrs[AttrAfter]
	switch {
	case hasAt && hasAfter:
		return 0, Errorf(CodeInvalidAttribute, "both %s and %s are set; one says when", AttrAt, AttrAfter)
	case hasAt:
		ms, err := ParseTime(at.text)
		if err != nil {
			return 0, badAttribute(AttrAt, at.text, "%w", err)
		}
		if ms-addedMs > lim.MaxHorizon.Milliseconds() {
			return 0, badAttribute(AttrAt, at.text, "further ahead than the limit of %s", days(lim.MaxHorizon))
		}
		return ms, nil
	case hasAfter:
		d, err := ParseDuration(after.text)
		switch {
		case err != nil:
			return 0, badAttribute(AttrAfter, after.text, "%w", err)
		case d < 0:
			return 0, badAttribute(AttrAfter, after.text, "negative; a timer for now says 0s")
		case d > lim.MaxHorizon:
			return 0, badAttribute(AttrAfter, after.text, "further ahead than the limit of %s", days(lim.MaxHorizon))
		}
		return addedMs + (int64(d)+int64(time.Millisecond)-1)/int64(time.Millisecond), nil
	}
	return 0, Errorf(CodeInvalidAttribute, "neither %s nor %s is set; one must say when", AttrAt, AttrAfter)
}

func days(d time.Duration) string {
	if d < 48*time.Hour {
		return d.String()
	}
	return strconv.Itoa(int(d.Hours()/24)) + " days"
}

// ParseFired reads back a message from timers.fired, timers.retry or timers.dead:
// the event, what its add asked for, and what Belfry added. DueMs is the
// scheduled time.
func ParseFired(hdr nats.Header, data []byte) (*event.Event, Spec, Fired, error) {
	p, err := take(hdr, data)
	if err != nil {
		return nil, Spec{}, Fired{}, err
	}
	if err := p.required(); err != nil {
		return nil, Spec{}, Fired{}, err
	}
	// What was accepted once stays accepted, whatever the limits are now.
	spec, err := p.spec(Limits{MaxAttempts: 1<<32 - 1, MaxTimeout: 1 << 62, MaxBackoff: 1 << 62})
	if err != nil {
		return nil, Spec{}, Fired{}, err
	}
	var f Fired
	for name, ms := range map[string]*int64{AttrScheduled: &f.ScheduledMs, AttrFired: &f.FiredMs} {
		if *ms, err = ParseTime(p.attrs[name].text); err != nil {
			return nil, Spec{}, Fired{}, badAttribute(name, p.attrs[name].text, "%w", err)
		}
	}
	for name, n := range map[string]*uint32{AttrRun: &f.Run, AttrAttempt: &f.Attempt} {
		v, err := strconv.ParseUint(p.attrs[name].text, 10, 32)
		if err != nil {
			return nil, Spec{}, Fired{}, badAttribute(name, p.attrs[name].text, "not a number")
		}
		*n = uint32(v)
	}
	spec.DueMs = f.ScheduledMs
	e, err := p.event()
	return e, spec, f, err
}
