package store

import (
	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Peek is a record as read from any replica. It may have changed since.
type Peek struct {
	id     schemas.TimerID
	newest schemas.RecordFormat // that the process reads
	msg    jet.Peeked
}

// PeekAsync reads a record by direct get, at a third of the cost of Get. Any replica may
// answer and be behind. The answer is good for a compare-and-set, which refuses a stale
// revision, and for nothing else: only Get can say that there is no such record, or that
// it can no longer be changed. It blocks only while the window is full; done must not
// block.
func (rd *Reader) PeekAsync(id schemas.TimerID, done func(Peek)) {
	subject, stream := rd.shards.timerSubject(id)
	rd.jet.PeekAsync("read timer", stream, subject, func(m jet.Peeked) { done(Peek{id: id, newest: rd.dec.reads.recordFormat(), msg: m}) })
}

// Timer decodes the record; StoredMs is not known.
func (p Peek) Timer() (Timer, error) {
	m, err := p.msg.Msg()
	if err != nil {
		return Timer{}, err
	}
	if jet.IsMarker(&m) {
		return Timer{}, schemas.ErrNotFound
	}
	r, err := schemas.DecodeRecordUpTo(m.Data, p.newest)
	if err != nil {
		return Timer{}, err
	}
	return Timer{ID: p.id, Rev: m.Sequence, Record: r}, nil
}
