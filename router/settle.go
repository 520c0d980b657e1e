package router

import (
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Results of an add, as the metric's label has them.
const (
	resultAccepted  = "accepted"
	resultDuplicate = "duplicate"
	resultRejected  = "rejected"
)

// accept answers an add that is stored.
func (r *Router) accept(a *add, result string, rec *schemas.Record) {
	if !a.settle() {
		return
	}
	r.m.adds.WithLabelValues(result).Inc()
	if a.msg == nil {
		reply := schemas.AddReply{Timer: a.spec.Timer, Due: schemas.TimeOf(rec.DueMs), Duplicate: result == resultDuplicate, State: rec.State}
		if !reply.Duplicate {
			reply.Remark = schemas.PastDueRemark(rec.DueMs, rec.AddedMs)
		}
		a.reply(reply, nil)
		return
	}
	a.msg.Done()
}

// later tells the caller of an add that could not be stored. One of the stream
// comes again after a pause that grows.
func (r *Router) later(a *add, err error) {
	if !a.settle() {
		return
	}
	if a.msg == nil {
		a.reply(schemas.AddReply{}, err)
		return
	}
	code := schemas.CodeOf(err)
	if code == "" {
		code = schemas.CodeUnavailable
	}
	r.m.delayed.WithLabelValues(string(code)).Inc()
	wait := min(retryPause<<min(max(a.deliveries, 1)-1, 10), retryMax)
	a.msg.Retry(wait)
}

// refusal is an add and why it is refused.
type refusal struct {
	a      *add
	reason error
}

// reject answers adds, or puts them on timers.rejected before they are acknowledged.
func (r *Router) reject(all []refusal) {
	each(all, func(f refusal) {
		if err := r.rejectOne(f.a, f.reason); err != nil {
			r.later(f.a, err)
			return
		}
		if !f.a.settle() {
			return
		}
		r.m.adds.WithLabelValues(resultRejected).Inc()
		r.m.rejected.WithLabelValues(string(schemas.CodeOf(f.reason))).Inc()
		if f.a.msg != nil {
			r.logRefusal(f)
		}
		if f.a.msg == nil {
			f.a.reply(schemas.AddReply{}, f.reason)
			return
		}
		f.a.msg.Done()
	})
}

// rejectOne publishes an add to timers.rejected. An add that does not fit a message
// together with its reason is enclosed or split into parts; see store.PublishLetter.
func (r *Router) rejectOne(a *add, reason error) error {
	if a.msg == nil {
		return nil
	}
	if err := r.ills.rejects.allow(); err != nil {
		return err
	}
	// The sequence names the add: delivered again, it is rejected once.
	m := store.Msg{Subject: schemas.SubjectRejected, Header: nats.Header{}, Data: a.data, MsgID: "add." + strconv.FormatUint(a.seq, 10)}
	for name, values := range a.hdr {
		if !schemas.ReservedHeader(name) {
			m.Header[name] = values
		}
	}
	m.Header[schemas.HeaderErrorCode] = []string{string(schemas.CodeOf(reason))}
	m.Header[schemas.HeaderError] = []string{headerText(reason.Error())}
	m.Header[schemas.HeaderOriginalSequence] = []string{strconv.FormatUint(a.seq, 10)}
	_, err := r.o.Store.PublishLetter(r.run, m)
	r.ills.rejects.note(err)
	return err
}

// headerText makes any text fit one header line.
func headerText(s string) string {
	if len(s) > 1000 {
		s = s[:1000]
	}
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(s, "?"))
}

// deadline gives an API add its answer when the store has none in time.
func (r *Router) deadline(a *add) *time.Timer {
	return time.AfterFunc(apiTimeout, func() {
		if a.settle() {
			a.reply(schemas.AddReply{}, schemas.Errorf(schemas.CodeUnavailable, "the timer was not stored within %s; it may be yet: add it again", apiTimeout))
		}
	})
}
