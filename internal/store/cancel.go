package store

import (
	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// Peek is a record that any replica has answered: it may be an old revision.
type Peek struct {
	id     schemas.TimerID
	newest schemas.RecordFormat // the newest format that this process reads
	msg    jet.Peeked
}

// PeekAsync reads a record by direct get, at a third of the cost of Get. Any replica may
// answer, and be behind. Use the answer only for a compare-and-set, which refuses an old
// revision: only Get can tell that a timer does not exist, or that it is final. PeekAsync
// blocks only while the window is full. It calls done once; done must not block.
func (rd *Reader) PeekAsync(id schemas.TimerID, done func(Peek)) {
	subject, stream := rd.shards.timerSubject(id)
	rd.jet.PeekAsync("read timer", stream, subject, func(m jet.Peeked) { done(Peek{id: id, newest: rd.dec.reads.recordFormat(), msg: m}) })
}

// Timer decodes the record, without StoredMs. Errors: schemas.ErrNotFound,
// schemas.ErrDamaged, schemas.ErrNewer, schemas.ErrUnavailable.
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
