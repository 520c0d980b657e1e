package visibility

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/belfryio/belfry/schemas"
)

const (
	// maxWork bounds what one Search reads after the first rows of its sources, in units of a row that is compared by
	// an index alone, some 3 µs. rowWork, entryWork and sourceWork are a row of timers, a row with its record,
	// and a statement.
	maxWork    = 6000
	rowWork    = 4
	entryWork  = 10
	sourceWork = 10
	// maxSources bounds the index ranges that one Search merges. A query that would need more
	// reads all entries of its states in order, up to maxWork.
	maxSources = 400
	// maxFew is a number of entries that are read whole, and sorted, rather than looked for in an index in the
	// order of a page.
	maxFew = 500
	// maxTerm bounds each text of a query, in bytes.
	maxTerm = 2048
)

// position is a place in the order of a page: the sort key, the event id where that is the order, and
// the row.
type position struct {
	event string
	key   int64
	n     int64
}

// compare orders positions.
func (p position) compare(o position) int {
	switch {
	case p.event != o.event:
		return strings.Compare(p.event, o.event)
	case p.key < o.key || p.key == o.key && p.n < o.n:
		return -1
	case p == o:
		return 0
	}
	return 1
}

// source is a range of an index, in the order of the page: the rows for which where holds. Its
// table has the alias i.
type source struct {
	table, key string
	where      string
	args       []any
	// state is the state of all of its rows; 0 for any.
	state schemas.State
	// covers says that the index has the columns of coveredColumns.
	covers bool
	// byEvent says that the order is by event id first, of ids that begin with prefix. sorts says that the index is not in that order, so that
	// all rows of the range are read and sorted: they are at most maxFew.
	byEvent, sorts bool
	prefix         string
	// apart says that the table is not timers, whose other columns are to be joined.
	apart bool
	// from and to bound the sort key: from <= key < to.
	from, to int64
}

// plan is how a query is answered: the rows of its sources, in order, as far as they match it.
type plan struct {
	q       Query
	sources []source
	// filter refuses rows by their columns; nil if the sources have all that the query compares.
	filter *filter
	// otherFrom and otherTo bound the time by which the page is not sorted; narrows says that they do.
	otherFrom, otherTo int64
	narrows            bool
	// work bounds what the page reads, see maxWork.
	work int64
	hash uint64
}

// bounds returns the bounds of a key in milliseconds.
func bounds(from, to time.Time) (int64, int64) {
	lo, hi := int64(math.MinInt64+1), int64(math.MaxInt64)
	if !from.IsZero() {
		lo = from.UnixMilli()
		if from.After(time.UnixMilli(lo)) {
			lo++
		}
	}
	if !to.IsZero() {
		hi = to.UnixMilli()
		if to.After(time.UnixMilli(hi)) {
			hi++
		}
	}
	return lo, hi
}

// complete checks a query, and sets its defaults.
func (q *Query) complete() error {
	bad := func(format string, args ...any) error { return schemas.Errorf(schemas.CodeBadRequest, format, args...) }
	if q.Limit == 0 {
		q.Limit = DefaultLimit
	}
	if q.Limit < 1 || q.Limit > MaxLimit {
		return bad("limit is %d; it must be 1 to %d", q.Limit, MaxLimit)
	}
	if prefix, ok := strings.CutSuffix(q.Text, "*"); ok {
		if q.IDPrefix != "" {
			return bad("give either a text that ends with * or the start of an id")
		}
		q.Text, q.IDPrefix = "", prefix
		if prefix == "" {
			return bad("write at least one character before the *")
		}
	}
	texts := []string{q.Text, q.ID, q.IDPrefix, q.Source, q.Type, q.Service, q.Group, q.Host, q.Error}
	for name, value := range q.Attributes {
		texts = append(texts, name, value)
	}
	for _, text := range texts {
		if len(text) > maxTerm || strings.ContainsRune(text, 0) || !utf8.ValidString(text) {
			return bad("%.40q is not a text to search for: it has more than %d bytes, or characters that no attribute has", text, maxTerm)
		}
	}
	for _, s := range q.States {
		if !s.Valid() {
			return bad("state %d does not exist", s)
		}
	}
	if !strings.HasPrefix(q.Host, schemas.NATSScheme) { // the case of a subject matters
		q.Host = strings.ToLower(q.Host)
	}
	return nil
}

// fingerprint identifies a query, without its cursor and limit.
func (q *Query) fingerprint() uint64 {
	h := fnv.New64a()
	tenant := "*"
	if q.Tenant != nil {
		tenant = "=" + *q.Tenant
	}
	schedule := "-"
	if q.Schedule != nil {
		schedule = fmt.Sprint(*q.Schedule)
	}
	_, _ = fmt.Fprintf(h, "%q %q %q %q %q %q %q %q %v %s %s %d %d %d %d %q %q %d %t", q.Text, q.ID, q.IDPrefix, q.Source, q.Type, q.Service, q.Group, tenant, q.States, schedule, q.RunsOf,
		q.DueFrom.UnixMilli(), q.DueTo.UnixMilli(), q.DoneFrom.UnixMilli(), q.DoneTo.UnixMilli(), q.Host, q.Error, q.Sort, q.Descending)
	for _, name := range slices.Sorted(maps.Keys(q.Attributes)) {
		_, _ = fmt.Fprintf(h, " %q=%q", name, q.Attributes[name])
	}
	return h.Sum64()
}

// cursorHead is the length of a cursor without its event id, in bytes.
const cursorHead = 24

// encode returns a position as a cursor.
func (p *plan) encode(at position) string {
	b := binary.BigEndian.AppendUint64(nil, p.hash)
	b = binary.BigEndian.AppendUint64(b, uint64(at.key))
	b = binary.BigEndian.AppendUint64(b, uint64(at.n))
	return base64.RawURLEncoding.EncodeToString(append(b, at.event...))
}

// decode returns the position of a cursor.
func (p *plan) decode(cursor string) (position, error) {
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(b) < cursorHead || binary.BigEndian.Uint64(b) != p.hash {
		return position{}, schemas.Errorf(schemas.CodeBadRequest, "cursor %.40q was not returned for this query", cursor)
	}
	return position{event: string(b[cursorHead:]), key: int64(binary.BigEndian.Uint64(b[8:])), n: int64(binary.BigEndian.Uint64(b[16:]))}, nil
}

// indexed returns the source that reads an index, or its counterpart of entries that are done. The
// where clause must imply that of a partial index.
func (q *Query) indexed(index, where string, args ...any) source {
	if q.Sort == SortDone {
		return source{table: "timers AS i INDEXED BY " + index + "_done", key: "done", where: strings.TrimPrefix(where+" AND i.done > 0", " AND "), args: args, covers: covering[index+"_done"]}
	}
	return source{table: "timers AS i INDEXED BY " + index, key: "due", where: where, args: args, covers: covering[index]}
}

// covering are the indexes that have the columns of coveredColumns.
var covering = map[string]bool{"timers_event_done": true, "timers_state": true, "timers_state_done": true, "timers_group_done": true, "timers_error": true, "timers_error_done": true}

// selected returns the states that a query selects.
func (q *Query) selected() []schemas.State {
	all := slices.Concat(openStates, finalStates)
	if q.Sort == SortDone || !q.DoneFrom.IsZero() || !q.DoneTo.IsZero() {
		all = finalStates
	}
	if len(q.States) == 0 {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(s schemas.State) bool { return !slices.Contains(q.States, s) })
}

// plan chooses the indexes of a query: those of its most selective field. The other fields are
// compared row by row.
func (s *sqlStore) plan(q Query) (*plan, error) {
	if err := q.complete(); err != nil {
		return nil, err
	}
	p := &plan{hash: q.fingerprint(), work: s.work}
	if q.IDPrefix != "" && !slices.ContainsFunc(q.selected(), func(st schemas.State) bool { return !st.Final() }) {
		q.Sort = SortDone // the order is that of the ids, and this index has the states
	}
	p.q = q
	rest := q
	dueFrom, dueTo := bounds(q.DueFrom, q.DueTo)
	doneFrom, doneTo := bounds(q.DoneFrom, q.DoneTo)
	from, to := dueFrom, dueTo
	if q.Sort == SortDone {
		from, to, p.otherFrom, p.otherTo = doneFrom, doneTo, dueFrom, dueTo
		rest.DoneFrom, rest.DoneTo = time.Time{}, time.Time{}
		p.narrows = !q.DueFrom.IsZero() || !q.DueTo.IsZero()
	} else {
		p.otherFrom, p.otherTo = doneFrom, doneTo
		rest.DueFrom, rest.DueTo = time.Time{}, time.Time{}
		p.narrows = !q.DoneFrom.IsZero() || !q.DoneTo.IsZero()
	}
	p.sources = s.sources(&p.q, &rest)
	for i := range p.sources {
		p.sources[i].from, p.sources[i].to = from, to
	}
	p.filter = s.dict.filter(&rest)
	return p, nil
}

// sources chooses the indexes of a query. It empties the fields of rest that all rows of the sources
// have.
func (s *sqlStore) sources(q, rest *Query) []source {
	states := q.selected()
	switch {
	case q.IDPrefix != "":
		return s.byPrefix(q, rest, states)
	case q.ID != "":
		rest.ID = ""
		return []source{q.indexed("timers_event", "i.event = ?", q.ID)}
	case !q.RunsOf.IsZero():
		return []source{q.indexed("timers_runs", "i.schedule = ? AND i.schedule IS NOT NULL", q.RunsOf[:])}
	case q.Text != "":
		sel := s.dict.choose(states, maxSources, func(se *series) bool { return se.matches(q) && se.matchesText(q.Text) })
		if s.merges(q, &sel) {
			rest.Text = ""
			return append(q.bySeries(sel.pairs), q.indexed("timers_event", "i.event = ?", q.Text))
		}
	case q.Schedule != nil && *q.Schedule:
		rest.Schedule = nil
		return []source{q.indexed("timers_recurs", "i.recurs = ? AND i.recurs > 0", 1)}
	case len(q.Attributes) > 0:
		name := slices.Min(slices.Collect(maps.Keys(q.Attributes)))
		table, key := "attributes AS i", "due"
		if q.Sort == SortDone {
			table, key = "attributes_done AS i", "done"
		}
		return []source{{table: table, key: key, where: "i.term = ?", args: []any{term(name, q.Attributes[name])}, apart: true}}
	case q.Group != "":
		if sel := s.matching(q, states); s.hasFew(&sel) {
			return q.alone(rest, sel.pairs)
		}
		rest.Group = ""
		return []source{q.indexed("timers_group", "i.grp = ? AND i.grp <> ''", q.Group)}
	case q.Error != "":
		if found, ok := s.byError(q, rest, states); ok {
			return found
		}
	case q.namesSeries():
		if sel := s.matching(q, states); s.merges(q, &sel) {
			return q.alone(rest, sel.pairs)
		}
	}
	rest.States = nil
	all := make([]source, 0, len(states))
	for _, st := range states {
		src := q.indexed("timers_state", "i.state = ?", st)
		src.state = st
		all = append(all, src)
	}
	return all
}

// namesSeries reports whether a query has a field of series.
func (q *Query) namesSeries() bool {
	return q.Source != "" || q.Type != "" || q.Service != "" || q.Host != "" || q.Tenant != nil
}

// matching returns the selection of a query, in some states.
func (s *sqlStore) matching(q *Query, states []schemas.State) selection {
	return s.dict.choose(states, maxSources, func(se *series) bool { return se.matches(q) })
}

// hasFew reports whether a selection has so few entries that all of them can be read.
func (s *sqlStore) hasFew(sel *selection) bool { return !sel.over && sel.entries <= s.few }

// merges reports whether a page is read faster from the series of a selection than from all entries of its
// states, of which the series have a share.
func (s *sqlStore) merges(q *Query, sel *selection) bool {
	if sel.over {
		return false
	}
	scanned := int64(q.Limit) * sel.all / max(sel.entries, 1)
	return int64(len(sel.pairs))*(sourceWork+minChunk) <= max(scanned, s.few)
}

// bySeries returns a source for each series and state.
func (q *Query) bySeries(pairs []pair) []source {
	found := make([]source, 0, len(pairs))
	for _, k := range pairs {
		src := q.indexed("timers_series", "i.series = ? AND i.state = ?", k.series, k.state)
		src.state = k.state
		found = append(found, src)
	}
	return found
}

// alone returns the sources of series and states that have all entries which a query selects by its series and
// states.
func (q *Query) alone(rest *Query, pairs []pair) []source {
	rest.Source, rest.Type, rest.Service, rest.Host, rest.Tenant, rest.States = "", "", "", "", nil, nil
	return q.bySeries(pairs)
}

// byPrefix returns the sources of a start of an event id: the index of event ids, or few entries that the other
// fields select.
func (s *sqlStore) byPrefix(q, rest *Query, states []schemas.State) []source {
	rest.IDPrefix = ""
	sel := s.matching(q, states)
	few := s.hasFew(&sel)
	found := []source{q.indexed("timers_event", "")}
	if few {
		found = q.alone(rest, sel.pairs)
	}
	for i := range found {
		found[i].byEvent, found[i].sorts, found[i].prefix = true, few, q.IDPrefix
	}
	return found
}

// byError returns the sources of the errors that contain a text, or those of the few entries that may have one. ok
// is false if there are too many.
func (s *sqlStore) byError(q, rest *Query, states []schemas.State) (found []source, ok bool) {
	numbers, entries, ok := s.dict.selectErrors(q.Error, maxSources)
	sel := s.matching(q, states)
	sel.pairs = slices.DeleteFunc(sel.pairs, func(p pair) bool { return p.failed <= 0 })
	sel.entries = 0
	for _, p := range sel.pairs {
		sel.entries += p.entries
	}
	if s.hasFew(&sel) && (!ok || sel.entries < entries) {
		return q.alone(rest, sel.pairs), true
	}
	if !ok {
		return nil, false
	}
	rest.Error = ""
	for _, n := range numbers {
		found = append(found, q.indexed("timers_error", "i.error = ? AND i.error > 0", n))
	}
	return found, true
}

// afterPrefix returns a text that is greater than every text with a prefix, and not greater than any
// other such text. No byte of valid UTF-8 is 0xff.
func afterPrefix(prefix string) string {
	return prefix[:len(prefix)-1] + string([]byte{prefix[len(prefix)-1] + 1})
}

// bounds returns the bounds of a source's first key, and of its sort key. After a position there is none on the side where
// the page begins: of several bounds on one side SQLite seeks the first, and compares the others row by row. So that of the
// position has to be the first, and that of a partial index the last.
func (src *source) bounds(key string, after *position, descending bool) (terms []string, args []any) {
	add := func(term string, arg any) { terms, args = append(terms, term), append(args, arg) }
	if src.byEvent {
		if after == nil || descending {
			add("i.event >= ?", src.prefix)
		}
		if after == nil || !descending {
			add("i.event < ?", afterPrefix(src.prefix))
		}
		add(key+" >= ?", src.from)
		add(key+" < ?", src.to)
		return terms, args
	}
	if after == nil || descending {
		add(key+" >= ?", src.from)
	}
	if after == nil || !descending {
		add(key+" < ?", src.to)
	}
	return terms, args
}

// statement returns the SQL of a source's next rows, after a position if there is one.
func (p *plan) statement(src *source, after *position) (query string, args []any) {
	order, direction := ">", ""
	if p.q.Descending {
		order, direction = "<", " DESC"
	}
	key := "i." + src.key
	columns, event := []string{key, "i.n"}, "''"
	if src.byEvent {
		columns, event = []string{"i.event", key, "i.n"}, "i.event"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "SELECT %s, %s, i.n", event, key)
	switch {
	case p.filter == nil:
		fmt.Fprintf(&b, " FROM %s WHERE ", src.table)
	case src.apart:
		fmt.Fprintf(&b, "%s FROM %s CROSS JOIN timers AS t WHERE t.n = i.n AND ", strings.ReplaceAll(coveredColumns+otherColumns, "i.", "t."), src.table)
	case p.covered(src):
		fmt.Fprintf(&b, "%s FROM %s WHERE ", coveredColumns, src.table)
	default:
		fmt.Fprintf(&b, "%s FROM %s WHERE ", coveredColumns+otherColumns, src.table)
	}
	terms, args := src.bounds(key, after, p.q.Descending)
	if after != nil {
		row := fmt.Sprintf("(%s) %s (%s)", strings.Join(columns, ", "), order, strings.Repeat("?, ", len(columns)-1)+"?")
		position := []any{after.key, after.n}
		if src.byEvent {
			position = []any{after.event, after.key, after.n}
		}
		terms, args = append([]string{row}, terms...), append(position, args...)
	}
	if src.where != "" {
		terms, args = append(terms, src.where), append(args, src.args...)
	}
	b.WriteString(strings.Join(terms, " AND "))
	fmt.Fprintf(&b, " ORDER BY %s LIMIT ?", strings.Join(columns, direction+", ")+direction)
	return b.String(), args
}

// Search implements Store.
func (s *sqlStore) Search(ctx context.Context, q Query) (page Page, err error) {
	p, err := s.plan(q)
	if err != nil {
		return Page{}, err
	}
	var after *position
	if q.Cursor != "" {
		at, err := p.decode(q.Cursor)
		if err != nil {
			return Page{}, err
		}
		after = &at
	}
	err = s.reads(ctx, func(tx *reading) error {
		if err := p.narrow(tx); err != nil {
			return err
		}
		page, err = p.run(tx, after)
		return err
	})
	return page, err
}

// narrow bounds the sort keys of the sources by the time by which the page is not sorted, as far as spans says.
func (p *plan) narrow(tx *reading) error {
	if !p.narrows {
		return nil
	}
	found := map[schemas.State]extent{}
	hour := func(ms int64) int64 { return ms / hourMs }
	err := tx.each("SELECT state, least, most FROM spans WHERE sort = ? AND hour >= ? AND hour <= ?", []any{p.q.Sort, hour(p.otherFrom), hour(p.otherTo)}, func(scan func(...any) error) error {
		var state schemas.State
		var e extent
		err := scan(&state, &e.least, &e.most)
		for _, st := range []schemas.State{state, 0} {
			have, ok := found[st]
			if !ok {
				have = e
			}
			found[st] = have.with(e)
		}
		return err
	})
	p.sources = slices.DeleteFunc(p.sources, func(src source) bool { _, ok := found[src.state]; return !ok })
	for i := range p.sources {
		src := &p.sources[i]
		e := found[src.state]
		src.from, src.to = max(src.from, e.least), min(src.to, e.most+1)
	}
	return err
}

// run reads the page after a position.
func (p *plan) run(tx *reading, after *position) (page Page, err error) {
	page.Entries = make([]Entry, 0, p.q.Limit)
	m, err := p.merge(tx, after)
	if err != nil {
		return Page{}, err
	}
	for end, first := m.work+p.work, true; first || m.work < end; first = false {
		at, ok, err := m.next()
		if err != nil {
			return Page{}, err
		}
		if !ok {
			return page, nil
		}
		if len(page.Entries) == p.q.Limit {
			page.Cursor = p.encode(*after)
			return page, nil
		}
		if after = &at.position; at.refused {
			continue
		}
		m.work += entryWork
		e, found, err := tx.entry("n = ?", at.n)
		if err != nil {
			return Page{}, err
		}
		if found && p.q.selects(&e) {
			page.Entries = append(page.Entries, e)
		}
	}
	page.Cursor = p.encode(*after)
	return page, nil
}

// selects reports whether a query selects an entry.
func (q *Query) selects(e *Entry) bool {
	t := &e.Timer
	in := func(at, from, to time.Time) bool {
		return (from.IsZero() || !at.Before(from)) && (to.IsZero() || at.Before(to))
	}
	same := func(want, have string) bool { return want == "" || want == have }
	for name, value := range q.Attributes {
		if have, ok := e.Attributes[name]; !ok || have != value {
			return false
		}
	}
	failure := ""
	if t.Outcome != nil {
		failure = t.Outcome.Error
	}
	return same(q.ID, t.ID) && strings.HasPrefix(t.ID, q.IDPrefix) && (q.Text == "" || q.Text == t.ID || q.Text == t.Source || q.Text == t.Type) &&
		same(q.Source, t.Source) && same(q.Type, t.Type) && same(q.Service, t.Service) && same(q.Group, t.Group) && same(q.Host, e.Host) &&
		(q.Tenant == nil || *q.Tenant == t.Tenant) && (len(q.States) == 0 || slices.Contains(q.States, t.State)) &&
		(q.Schedule == nil || *q.Schedule == (t.Schedule != nil)) && (q.RunsOf.IsZero() || t.Origin != nil && t.Origin.Schedule == q.RunsOf) &&
		in(t.Due, q.DueFrom, q.DueTo) && (q.DoneFrom.IsZero() && q.DoneTo.IsZero() || !t.Done.IsZero() && in(t.Done, q.DoneFrom, q.DoneTo)) &&
		(q.Error == "" || strings.Contains(strings.ToLower(failure), strings.ToLower(q.Error)))
}

// Get implements Store.
func (s *sqlStore) Get(ctx context.Context, id schemas.TimerID) (e Entry, err error) {
	var found bool
	err = s.reads(ctx, func(tx *reading) error {
		e, found, err = tx.entry("id = ?", id[:])
		return err
	})
	if err == nil && !found {
		return Entry{}, schemas.Errorf(schemas.CodeNotFound, "the history has no timer %s", id)
	}
	return e, err
}

// reads runs f in a transaction of a reader within ReadTimeout: all that f reads is of one time.
func (s *sqlStore) reads(ctx context.Context, f func(*reading) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	var r *reader
	select {
	case r = <-s.readers:
		defer func() { s.readers <- r }()
		err = r.transact(ctx, f)
	case <-ctx.Done():
		err = ctx.Err()
	}
	switch {
	case err == nil || schemas.CodeOf(err) == schemas.CodeBadRequest:
		return err
	case ctx.Err() != nil:
		return schemas.Errorf(schemas.CodeUnavailable, "the search took longer than %s, or was cancelled: give a narrower filter: %w", ReadTimeout, err)
	}
	s.noteDamage(err)
	return schemas.Errorf(schemas.CodeUnavailable, "read the search index: %w", err)
}

// entry reads one entry.
func (tx *reading) entry(where string, arg any) (e Entry, found bool, err error) {
	err = tx.each("SELECT id, shard, revision, stored, attributes, record FROM timers WHERE "+where, []any{arg}, func(scan func(...any) error) error {
		var id, record []byte
		var revision uint64
		var stored int64
		var attributes string
		if err := scan(&id, &e.Shard, &revision, &stored, &attributes, &record); err != nil {
			return err
		}
		r, err := schemas.DecodeRecord(record)
		if err != nil {
			return fmt.Errorf("%w: the record of %s: %w", ErrDamagedFile, schemas.TimerID(id), err)
		}
		found = true
		e.Record = r
		e.Timer = schemas.FromRecord(schemas.TimerID(id), &r, revision)
		if r.State.Final() && r.DoneMs == 0 {
			r.DoneMs = stored
			e.Timer.Done, e.Record = schemas.TimeOf(stored), r
		}
		e.Epoch, e.Host, e.Attributes, e.Stored = r.Epoch, hostOf(r.Callback), attributesOf(attributes), schemas.TimeOf(stored)
		return nil
	})
	return e, found, err
}
