package belfry

import (
	"strconv"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// AddOption sets timer attributes in [Client.Add], [Client.AddAsync] and [Client.AddBatch].
// Values out of range make these calls return ErrInvalidAttribute.
type AddOption interface{ applyAdd(s *settings) }

type addOption func(s *settings)

func (o addOption) applyAdd(s *settings) { o(s) }

// settings are the attributes that options set or remove, one for each name.
type settings []schemas.Setting

// settingsOf returns the settings of options.
func settingsOf(opts []AddOption) settings {
	if len(opts) == 0 {
		return nil
	}
	s := make(settings, 0, len(opts)+len(dueAttributes))
	for _, o := range opts {
		o.applyAdd(&s)
	}
	return s
}

// put sets or removes an attribute. A later setting replaces an earlier one.
func (s *settings) put(one schemas.Setting) {
	for i := range *s {
		if (*s)[i].Name == one.Name {
			(*s)[i] = one
			return
		}
	}
	*s = append(*s, one)
}

func (s *settings) set(name, value string) { s.put(schemas.Setting{Name: name, Value: value}) }

// setDue sets one of the dueAttributes and removes the others.
func (s *settings) setDue(name, value string) {
	for _, other := range dueAttributes {
		s.put(schemas.Setting{Name: other, Remove: true})
	}
	s.set(name, value)
}

// extension is the option that sets an attribute.
type extension struct{ name, value string }

func (x extension) applyAdd(s *settings) { s.set(x.name, x.value) }

// When is a due time: the result of [At] or [After]. It is an argument of
// [Client.Reschedule], and an option of adds. An add uses the last one, or the [Cron] or
// [Every] after it.
type When struct {
	at, after string // one of them is set
}

// At returns a due time. Belfry rounds it up to the millisecond. A time in the past is due
// now; the limit for the future is the setting max-ahead, 10 years by default.
func At(t time.Time) When { return When{at: rfc3339(t)} }

// After returns the due time d after the time at which Belfry receives the call: 0 or more,
// and at most the setting max-ahead, 10 years by default.
func After(d time.Duration) When { return When{after: d.String()} }

func (w When) applyAdd(s *settings) {
	switch {
	case w.at != "":
		s.setDue(schemas.AttrAt, w.at)
	case w.after != "":
		s.setDue(schemas.AttrAfter, w.after)
	}
}

// ToWorker makes Belfry call the workers of a service: the processes that call
// [Client.Work]. It sets the service, and the callback nats:timers.work.<service>.
func ToWorker(service string) AddOption {
	return addOption(func(s *settings) {
		s.set(schemas.AttrService, service)
		s.set(schemas.AttrCallback, schemas.WorkCallback(service))
	})
}

// WithService sets the service: 1 to 64 letters, digits, '-' or '_'; default "default". The
// event fires on timers.fired.<service>.
func WithService(name string) AddOption { return extension{schemas.AttrService, name} }

// WithCallback sets what Belfry calls when the timer is due, at most 2,048 bytes: an http:// or
// https:// URL, nats:<subject>, or a /path below the service's setting base-url. Without a
// callback, Belfry only publishes the event.
func WithCallback(target string) AddOption { return extension{schemas.AttrCallback, target} }

// WithGroup sets a label by which [Client.List] finds the timer: at most 128 bytes of
// printable text.
func WithGroup(label string) AddOption { return extension{schemas.AttrGroup, label} }

// WithMaxAttempts sets the number of callback attempts before the dead letter, 1 to 1000;
// default 36, which takes about 24 hours with the default backoff.
func WithMaxAttempts(n int) AddOption { return extension{schemas.AttrMaxAttempts, strconv.Itoa(n)} }

// WithBackoff sets the delay after the first failed attempt, which doubles with each further
// one up to limit. Both are 10 ms to 24 h; default 1 s and 1 h.
func WithBackoff(first, limit time.Duration) AddOption {
	return extension{schemas.AttrBackoff, first.String() + ".." + limit.String()}
}

// WithAttemptTimeout bounds one attempt of the callback, 10 ms to 15 min; default 30 s. With
// [ToWorker] it bounds the silence of a worker instead; see [Client.Work].
func WithAttemptTimeout(d time.Duration) AddOption { return extension{schemas.AttrTimeout, d.String()} }

// ControlOption is an option of the calls that change a timer, such as [By].
type ControlOption interface{ applyControl(o *controlOptions) }

type controlOptions struct {
	by       string
	allow    bool
	revision uint64
	request  string
}

type controlOption func(o *controlOptions)

func (f controlOption) applyControl(o *controlOptions) { f(o) }

// By sets the caller's name for the timer's history and the nodes' logs: at most 128 bytes of
// printable text, such as "ann@example.com". Belfry does not verify it.
func By(name string) ControlOption { return controlOption(func(o *controlOptions) { o.by = name }) }

// AllowOverlap lets [Client.Trigger] and [Client.Backfill] fire a run while the previous run
// of the schedule has no result, whatever the schedule's timeroverlap is.
func AllowOverlap() ControlOption { return controlOption(func(o *controlOptions) { o.allow = true }) }

// RequestName names the request of [Client.Trigger], with up to 128 bytes. A repeated call with the same
// name, for example after ErrUnavailable, requests no second run, as long as the first is one of the
// schedule's last 16 triggers.
func RequestName(name string) ControlOption {
	return controlOption(func(o *controlOptions) { o.request = name })
}

// IfRevision lets [Client.Update] and [Client.Cancel] change a timer only if it has a revision,
// Timer.Revision. A run of the schedule, like every other change, makes a new revision.
func IfRevision(revision uint64) ControlOption {
	return controlOption(func(o *controlOptions) { o.revision = revision })
}

func controlled(opts []ControlOption) (o controlOptions) {
	for _, opt := range opts {
		opt.applyControl(&o)
	}
	return o
}

// callerName returns the name that the options set.
func callerName(opts []ControlOption) string { return controlled(opts).by }
