package visibility

import (
	"container/heap"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/schemas"
)

const (
	// minChunk and maxChunk bound the rows that are read from one source at a time. maxRowChunk is maxChunk for rows
	// that the index does not cover.
	minChunk, maxChunk, maxRowChunk = 8, 500, 200
)

// candidate is a row of a source. refused says that a filter has refused it.
type candidate struct {
	position
	refused bool
}

// stream reads a source: it has the rows that were read and not passed on, and the position to read
// on from.
type stream struct {
	src   *source
	read  []candidate // in the order of the page
	after *position
	chunk int  // the number of rows to read next
	ended bool // there are no more than read
}

// merge passes the rows of all sources of a plan, in order, each once. It reads from each source as much
// as it needs.
type merge struct {
	p       *plan
	tx      *reading
	streams []*stream // a heap by their first rows
	last    candidate
	begun   bool
	// work is what was read, see maxWork.
	work int64
}

// merge begins to read the sources after a position.
func (p *plan) merge(tx *reading, after *position) (*merge, error) {
	m := &merge{p: p, tx: tx}
	chunk := p.q.Limit + 1
	if n := len(p.sources); n > 1 {
		chunk = max(minChunk, 2*chunk/n)
	}
	for i := range p.sources {
		st := &stream{src: &p.sources[i], after: after, chunk: chunk}
		if err := m.fill(st); err != nil {
			return nil, err
		}
		if len(st.read) > 0 {
			m.streams = append(m.streams, st)
		}
	}
	heap.Init(m)
	return m, nil
}

// next returns the next row; ok is false after the last.
func (m *merge) next() (c candidate, ok bool, err error) {
	for len(m.streams) > 0 {
		st := m.streams[0]
		c = st.read[0]
		st.read = st.read[1:]
		if len(st.read) == 0 && !st.ended {
			if err := m.fill(st); err != nil {
				return c, false, err
			}
		}
		if len(st.read) > 0 {
			heap.Fix(m, 0)
		} else {
			heap.Pop(m)
		}
		if again := m.begun && c.position == m.last.position; !again {
			m.last, m.begun = c, true
			return c, true, nil
		}
	}
	return c, false, nil
}

// fill reads the next rows of a source.
func (m *merge) fill(st *stream) error {
	if err := m.tx.ctx.Err(); err != nil {
		return err
	}
	query, args := m.p.statement(st.src, st.after)
	st.read = make([]candidate, 0, st.chunk)
	most, each := maxChunk, int64(1)
	covered := m.p.covered(st.src)
	if !covered {
		most, each = maxRowChunk, rowWork
	}
	var row rowColumns
	columns := []any{nil, nil, nil, &row.state, &row.series, &row.error}
	if !covered {
		columns = append(columns, &row.event, &row.group, &row.recurs, &row.due, &row.done)
	}
	err := m.tx.each(query, append(args, st.chunk), func(scan func(...any) error) error {
		var c candidate
		if m.p.filter == nil {
			err := scan(&c.event, &c.key, &c.n)
			st.read = append(st.read, c)
			return err
		}
		columns[0], columns[1], columns[2] = &c.event, &c.key, &c.n
		err := scan(columns...)
		c.refused = !m.p.filter.allows(&row)
		st.read = append(st.read, c)
		return err
	})
	if err != nil {
		return err
	}
	m.work += sourceWork + each*int64(len(st.read))
	if st.ended = len(st.read) < st.chunk; !st.ended {
		st.after = &st.read[len(st.read)-1].position
	}
	st.chunk = min(2*st.chunk, most)
	return nil
}

// covered reports whether the index of a source has all that the plan compares.
func (p *plan) covered(src *source) bool {
	return p.filter == nil || p.filter.covered && src.covers
}

// Len, Less, Swap, Push and Pop implement heap.Interface.
func (m *merge) Len() int { return len(m.streams) }

func (m *merge) Less(i, j int) bool {
	a, b := m.streams[i].read[0].position, m.streams[j].read[0].position
	if m.p.q.Descending {
		a, b = b, a
	}
	return a.compare(b) < 0
}

func (m *merge) Swap(i, j int) { m.streams[i], m.streams[j] = m.streams[j], m.streams[i] }

func (m *merge) Push(st any) { m.streams = append(m.streams, st.(*stream)) }

func (m *merge) Pop() any {
	last := len(m.streams) - 1
	st := m.streams[last]
	m.streams = m.streams[:last]
	return st
}

// rowColumns are the columns of a row that a filter compares.
type rowColumns struct {
	state         schemas.State
	series, error int64
	event, group  string
	recurs        bool
	due, done     int64
}

// coveredColumns are in many indexes, otherColumns in the rows alone.
const (
	coveredColumns = ", i.state, i.series, i.error"
	otherColumns   = ", i.event, i.grp, i.recurs, i.due, i.done"
)

// filter compares the columns of a row with the fields of a query that the query's sources do not
// check, so that few records are decoded in vain. Query.selects then checks the whole row.
type filter struct {
	q *Query
	// series and errors have, at number - 1, whether the value matches; nil for all. Numbers beyond
	// the end match.
	series, errors   []bool
	dueFrom, dueTo   int64
	doneFrom, doneTo int64
	// texts says by number - 1 which series have the text of the query.
	texts []bool
	// covered says that it compares coveredColumns only.
	covered bool
}

// filter returns the filter of a query; nil if it compares nothing.
func (d *dictionary) filter(q *Query) *filter {
	f := &filter{q: q}
	f.dueFrom, f.dueTo = bounds(q.DueFrom, q.DueTo)
	if f.doneFrom, f.doneTo = bounds(q.DoneFrom, q.DoneTo); !q.DoneFrom.IsZero() || !q.DoneTo.IsZero() {
		f.doneFrom = max(f.doneFrom, 1)
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if q.Source != "" || q.Type != "" || q.Service != "" || q.Host != "" || q.Tenant != nil {
		f.series = make([]bool, len(d.series))
		for i := range d.series {
			f.series[i] = d.series[i].matches(q)
		}
	}
	if q.Error != "" {
		f.errors = make([]bool, len(d.errors))
		key := errorKey(q.Error)
		for i, e := range d.errors {
			f.errors[i] = e == otherError || strings.Contains(e, key)
		}
	}
	if q.Text != "" {
		f.texts = make([]bool, len(d.series))
		for i := range d.series {
			f.texts[i] = d.series[i].matchesText(q.Text)
		}
	}
	f.covered = q.Text == "" && q.ID == "" && q.IDPrefix == "" && q.Group == "" && q.Schedule == nil && [4]time.Time{q.DueFrom, q.DueTo, q.DoneFrom, q.DoneTo} == [4]time.Time{}
	if f.covered && f.series == nil && f.errors == nil && len(q.States) == 0 {
		return nil
	}
	return f
}

// allows reports whether a row with these columns may match.
func (f *filter) allows(c *rowColumns) bool {
	q := f.q
	is := func(matches []bool, number int64) bool {
		return matches == nil || number > int64(len(matches)) || number > 0 && matches[number-1]
	}
	return is(f.series, c.series) && is(f.errors, c.error) && (q.ID == "" || q.ID == c.event) && strings.HasPrefix(c.event, q.IDPrefix) && (q.Group == "" || q.Group == c.group) &&
		(len(q.States) == 0 || slices.Contains(q.States, c.state)) && (q.Schedule == nil || *q.Schedule == c.recurs) &&
		(q.Text == "" || q.Text == c.event || is(f.texts, c.series)) &&
		(f.covered || f.dueFrom <= c.due && c.due < f.dueTo && f.doneFrom <= c.done && c.done < f.doneTo)
}
