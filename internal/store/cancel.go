package store

import (
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// Peek is a record as some replica had it, maybe a while ago.
type Peek struct {
	id     schemas.TimerID
	newest schemas.RecordFormat // that the process reads
	msg    *nats.Msg
	err    error
}

// PeekAsync reads a record by direct get, at a third of what Get costs. Any
// replica may answer, and be behind. What it says is good for a compare-and-set,
// which refuses what is old, and for nothing else: that there is no such record, or
// that it can no longer be changed, only Get can say. The server reads inside the
// loop that takes this connection's messages: it is for what is asked often enough
// to be in memory. It blocks only for a place in the window; done must not block.
func (s *Store) PeekAsync(id schemas.TimerID, done func(Peek)) {
	subject, stream := s.timerSubject(id)
	s.pub.ask("read timer", "$JS.API.DIRECT.GET."+stream+"."+subject, nil, nil,
		func(m *nats.Msg) { done(Peek{id: id, newest: s.cfg.Level.recordFormat(), msg: m}) },
		func(_ ack, err error) { done(Peek{id: id, err: err}) })
}

// Timer decodes the record; StoredMs is not known.
func (p Peek) Timer() (Timer, error) {
	if p.err != nil {
		return Timer{}, p.err
	}
	if p.msg.Header.Get("Status") != "" || isMarker(&jetstream.RawStreamMsg{Header: p.msg.Header, Data: p.msg.Data}) {
		return Timer{}, schemas.ErrNotFound // or whatever else the status says: no record came
	}
	seq, err := strconv.ParseUint(p.msg.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return Timer{}, mapError("read timer", fmt.Errorf("direct get without a sequence: %w", err))
	}
	r, err := schemas.DecodeRecordUpTo(p.msg.Data, p.newest)
	if err != nil {
		return Timer{}, err
	}
	return Timer{ID: p.id, Rev: seq, Record: r}, nil
}

// AddForgotten reports, without a request, whether ForgetAdd is known to have nothing to do.
func (s *Store) AddForgotten(addedMs int64) bool { return addedMs < s.oldest.ms.Load() }
