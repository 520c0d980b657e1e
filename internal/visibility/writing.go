package visibility

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/belfryio/belfry/schemas"
)

const (
	minuteMs = 60_000
	hourMs   = 60 * minuteMs
)

// The columns of counters. columnDone plus the place of a final state in finalStates counts what reached
// that state.
const (
	columnAdded = iota
	columnFired
	columnDue
	columnDone
	columns = columnDone + 4
)

// numbers are the columns of a row of counters.
type numbers [columns]int64

// Two numbers of services stand for sums: of all services, and of the services of all tenants but the default
// one.
const (
	allServices  = 0
	namedTenants = -1
)

// widths are the periods of counters, in minutes, the narrowest first.
var widths = [...]int64{1, hourMs / minuteMs}

// period is a key of counters: a width in minutes, a minute since 1970, and a service.
type period struct{ width, at, service int64 }

func (p period) compare(o period) int {
	return cmp.Or(cmp.Compare(p.width, o.width), cmp.Compare(p.at, o.at), cmp.Compare(p.service, o.service))
}

// minute is a minute since 1970 of a service.
type minute struct{ at, service int64 }

// span is a key of spans: an order, an hour since 1970, and a final state. For SortDue the hour is that of done, and
// the bounds are those of due; for SortDone the other way round.
type span struct {
	sort  Sort
	hour  int64
	state schemas.State
}

// extent are the bounds of a time, inclusive, in Unix milliseconds.
type extent struct{ least, most int64 }

// with returns the bounds of e and o.
func (e extent) with(o extent) extent { return extent{min(e.least, o.least), max(e.most, o.most)} }

// row has the columns of a row of timers that decide its index entries and counters.
type row struct {
	n                       int64
	revision                uint64
	series, service         int64
	state                   schemas.State
	added, due, fired, done int64
	error                   int64
	event, group            string
	recurs                  bool
	attributes              string
}

// counts passes the counters of a row to fn: a column, and a time in Unix milliseconds.
func (r *row) counts(fn func(column int, atMs int64)) {
	if r.recurs {
		return
	}
	if r.added > 0 {
		fn(columnAdded, r.added)
	}
	if r.fired > 0 {
		fn(columnFired, r.fired)
	}
	switch {
	case r.done > 0:
		fn(columnDone+slices.Index(finalStates, r.state), r.done)
	case !r.state.Final():
		fn(columnDue, r.due)
	}
}

// writing is one transaction, and its changes of the numbers of entries.
type writing struct {
	s       *sqlStore
	ctx     context.Context
	totals  map[seriesState]tally
	failed  map[int64]int64 // by number of an error
	minutes map[minute]*numbers
	spans   map[span]extent
}

func (s *sqlStore) begin(ctx context.Context) *writing {
	return &writing{s: s, ctx: ctx, totals: map[seriesState]tally{}, failed: map[int64]int64{}, minutes: map[minute]*numbers{}, spans: map[span]extent{}}
}

func (w *writing) exec(query string, args ...any) error {
	_, err := w.run(query, args)
	return err
}

// run is exec that returns how many rows it wrote, and the number of the last inserted row.
func (w *writing) run(query string, args []any) (sql.Result, error) {
	st, err := w.s.statement(w.ctx, query)
	if err != nil {
		return nil, err
	}
	return st.ExecContext(w.ctx, args...)
}

// severalRows returns the values of n rows of a statement, of which each has the same values.
func severalRows(values string, n int) string { return values + strings.Repeat(", "+values, n-1) }

// queryRow reads one row. found is false if there is none.
func (w *writing) queryRow(query string, args []any, into ...any) (found bool, err error) {
	st, err := w.s.statement(w.ctx, query)
	if err != nil {
		return false, err
	}
	err = st.QueryRowContext(w.ctx, args...).Scan(into...)
	if errors.Is(err, sql.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

const oldRow = "SELECT n, revision, series, state, added, due, fired, done, error, event, grp, recurs, attributes FROM timers WHERE "

// find reads a row.
func (w *writing) find(where string, arg any) (r row, found bool, err error) {
	found, err = w.queryRow(oldRow+where, []any{arg}, &r.n, &r.revision, &r.series, &r.state, &r.added, &r.due, &r.fired, &r.done, &r.error, &r.event, &r.group, &r.recurs, &r.attributes)
	if found {
		r.service, err = w.serviceOf(r.series)
	}
	return r, found, err
}

// serviceOf returns the number of the service of a series.
func (w *writing) serviceOf(n int64) (int64, error) {
	d := &w.s.dict
	d.mu.RLock()
	s := d.series[n-1]
	d.mu.RUnlock()
	return d.serviceNumber(service{s.tenant, s.service}, w.exec)
}

// rowsAtOnce bounds the rows that one statement inserts.
const rowsAtOnce = 16

// change writes changes of different timers. The record of a pending timer is mostly new, so change inserts the rows of
// such timers, several with one statement, and looks for old ones only if SQLite ignored some of them. A row with
// attributes is written alone, because their index needs its number.
func (w *writing) change(changes []*Change) error {
	pending := make([]*Change, 0, len(changes))
	for _, c := range changes {
		if c.Record.State == schemas.StatePending && len(c.Attributes) == 0 {
			pending = append(pending, c)
			continue
		}
		if err := w.changeOne(c); err != nil {
			return err
		}
	}
	for group := range slices.Chunk(pending, rowsAtOnce) {
		if err := w.insertAll(group); err != nil {
			return err
		}
	}
	return nil
}

// changeOne writes one change.
func (w *writing) changeOne(c *Change) error {
	r, err := w.rowOf(c)
	if err != nil {
		return err
	}
	blob := recordOf(c)
	if c.Record.State == schemas.StatePending {
		if inserted, err := w.insert(c, &r, blob); err != nil || inserted {
			return err
		}
	}
	old, found, err := w.find("id = ?", c.ID[:])
	if err != nil {
		return err
	}
	return w.replace(c, &old, found, &r, blob)
}

// replace writes a row in place of the timer's old one, unless that has the same or a later revision. If none was found, it
// inserts the row.
func (w *writing) replace(c *Change, old *row, found bool, r *row, record []byte) error {
	switch {
	case found && old.revision >= c.Revision:
		return nil
	case found:
		return w.update(c, old, r, record)
	}
	inserted, err := w.insert(c, r, record)
	if err == nil && !inserted {
		err = fmt.Errorf("SQLite ignores the row of timer %s: a value breaks a constraint of the table", c.ID)
	}
	return err
}

// recordOf returns the record of an entry: that of a change, without the event and without credentials.
func recordOf(c *Change) []byte {
	rec := c.Record
	rec.Body, rec.Callback = schemas.Body{}, schemas.RedactURL(rec.Callback)
	return rec.AppendFormat(nil, schemas.RecordFormat2)
}

// scheduleOf returns the column schedule of a change: of a run the id of its schedule.
func scheduleOf(c *Change) any {
	if o := c.Record.Origin; o != nil {
		return o.Schedule[:]
	}
	return nil
}

const (
	insertTimers = "INSERT OR IGNORE INTO timers(id, shard, revision, stored, series, state, added, due, fired, done, error, event, grp, schedule, recurs, attributes, record) VALUES "
	timerColumns = 17
	timerValues  = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)

// valuesOf appends the values of insertTimers.
func valuesOf(args []any, c *Change, r *row, record []byte) []any {
	return append(args, c.ID[:], c.Shard, c.Revision, c.StoredMs, r.series, r.state, r.added, r.due, r.fired, r.done, r.error, r.event, r.group, scheduleOf(c), r.recurs, r.attributes, record)
}

// insert writes the row of a timer. inserted is false if SQLite ignored it: the timer has a row, or a value breaks a
// constraint.
func (w *writing) insert(c *Change, r *row, record []byte) (inserted bool, err error) {
	res, err := w.run(insertTimers+timerValues, valuesOf(nil, c, r, record))
	if err != nil {
		return false, err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return false, err
	}
	if r.n, err = res.LastInsertId(); err != nil {
		return false, err
	}
	w.account(r, 1)
	return true, w.index(&row{}, r)
}

// insertAll is changeOne for pending timers without attributes, at most rowsAtOnce.
func (w *writing) insertAll(changes []*Change) error {
	rows, records := make([]row, len(changes)), make([][]byte, len(changes))
	args := make([]any, 0, len(changes)*timerColumns)
	for i, c := range changes {
		var err error
		if rows[i], err = w.rowOf(c); err != nil {
			return err
		}
		records[i] = recordOf(c)
		args = valuesOf(args, c, &rows[i], records[i])
	}
	res, err := w.run(insertTimers+severalRows(timerValues, len(changes)), args)
	if err != nil {
		return err
	}
	inserted, err := res.RowsAffected()
	if err != nil {
		return err
	}
	if int(inserted) == len(changes) {
		for i := range rows {
			w.account(&rows[i], 1)
		}
		return nil
	}
	// Some timers have an older row. SQLite gives a new row a number that is greater than all others, and nobody else
	// writes, so the numbers of the inserted rows are the last ones.
	last, err := res.LastInsertId()
	if err != nil {
		return err
	}
	for i, c := range changes {
		old, found, err := w.find("id = ?", c.ID[:])
		switch {
		case err != nil:
			return err
		case found && old.n > last-inserted && inserted > 0:
			w.account(&rows[i], 1)
			continue
		}
		if err := w.replace(c, &old, found, &rows[i], records[i]); err != nil {
			return err
		}
	}
	return nil
}

// update writes a row in place of an old one.
func (w *writing) update(c *Change, old, r *row, record []byte) (err error) {
	if r.n = old.n; c.Attributes == nil {
		r.attributes = old.attributes
	}
	if old.series == r.series && old.due == r.due && old.group == r.group && old.event == r.event && old.added == r.added {
		// Most changes do not alter these columns, so their indexes stay as they are.
		err = w.exec("UPDATE timers SET revision = ?, stored = ?, state = ?, fired = ?, done = ?, error = ?, attributes = ?, record = ? WHERE n = ?",
			c.Revision, c.StoredMs, r.state, r.fired, r.done, r.error, r.attributes, record, r.n)
	} else {
		err = w.exec("UPDATE timers SET revision = ?, stored = ?, series = ?, state = ?, added = ?, due = ?, fired = ?, done = ?, error = ?, event = ?, grp = ?, schedule = ?, recurs = ?, attributes = ?, record = ? WHERE n = ?",
			c.Revision, c.StoredMs, r.series, r.state, r.added, r.due, r.fired, r.done, r.error, r.event, r.group, scheduleOf(c), r.recurs, r.attributes, record, r.n)
	}
	if err != nil {
		return err
	}
	if old.done != 0 && r.added > max(old.done, old.added) {
		w.total(old, -1) // a later timer with the same id: the earlier one has ended, and stays counted
	} else {
		w.account(old, -1)
	}
	w.account(r, 1)
	return w.index(old, r)
}

// rowOf returns the row of a change, without its number.
func (w *writing) rowOf(c *Change) (r row, err error) {
	rec := &c.Record
	r = row{
		revision: c.Revision, state: rec.State, added: rec.AddedMs, due: rec.DueMs, fired: rec.FirstMs(), done: rec.DoneMs,
		event: rec.EventID, group: rec.Group, recurs: rec.Schedule != nil, attributes: attributesText(c.Attributes),
	}
	if rec.State.Final() && r.done == 0 {
		r.done = c.StoredMs
	}
	if !rec.State.Final() {
		r.done = 0
	}
	se := seriesOf(rec)
	if r.series, err = w.s.dict.seriesNumber(se, w.exec); err != nil {
		return r, err
	}
	if r.service, err = w.s.dict.serviceNumber(service{se.tenant, se.service}, w.exec); err != nil {
		return r, err
	}
	r.error, err = w.s.dict.errorNumber(rec.Outcome.Error, w.exec)
	return r, err
}

// account adds a row to the counters, or subtracts it.
func (w *writing) account(r *row, n int64) {
	w.total(r, n)
	r.counts(func(column int, atMs int64) { w.count(r, column, atMs, n) })
	if n < 0 || r.done == 0 {
		return
	}
	w.extend(span{SortDue, r.done / hourMs, r.state}, r.due)
	w.extend(span{SortDone, r.due / hourMs, r.state}, r.done)
}

// total adds to the number of entries like a row.
func (w *writing) total(r *row, n int64) {
	t := tally{entries: n}
	if r.error > 0 {
		t.failed = n
		w.failed[r.error] += n
	}
	k := seriesState{r.series, r.state}
	t.add(w.totals[k])
	w.totals[k] = t
}

// count adds to a counter of the service of a row.
func (w *writing) count(r *row, column int, atMs, n int64) {
	k := minute{atMs / minuteMs, r.service}
	if w.minutes[k] == nil {
		w.minutes[k] = new(numbers)
	}
	w.minutes[k][column] += n
}

// extend widens a span so that it has a time.
func (w *writing) extend(k span, atMs int64) {
	e, ok := w.spans[k]
	if !ok {
		e = extent{atMs, atMs}
	}
	w.spans[k] = e.with(extent{atMs, atMs})
}

// index writes the terms of a row's attributes in place of those of the old row.
func (w *writing) index(old, r *row) error {
	if old.attributes == r.attributes && old.due == r.due && old.done == r.done {
		return nil
	}
	for _, term := range termsOf(old.attributes) {
		if err := w.exec("DELETE FROM attributes WHERE term = ? AND due = ? AND n = ?", term, old.due, old.n); err != nil {
			return err
		}
		if err := w.exec("DELETE FROM attributes_done WHERE term = ? AND done = ? AND n = ?", term, old.done, old.n); err != nil {
			return err
		}
	}
	for _, term := range termsOf(r.attributes) {
		if err := w.exec("INSERT INTO attributes(term, due, n) VALUES(?, ?, ?)", term, r.due, r.n); err != nil {
			return err
		}
		if r.done == 0 {
			continue
		}
		if err := w.exec("INSERT INTO attributes_done(term, done, n) VALUES(?, ?, ?)", term, r.done, r.n); err != nil {
			return err
		}
	}
	return nil
}

// remove removes a row that is too old, or whose record is gone. Its counts as added, fired and
// done stay.
func (w *writing) remove(n int64) error {
	r, found, err := w.find("n = ?", n)
	if err != nil || !found {
		return err
	}
	w.total(&r, -1)
	if r.done == 0 {
		r.counts(func(column int, atMs int64) {
			if column == columnDue {
				w.count(&r, column, atMs, -1)
			}
		})
	}
	if err := w.index(&r, &row{}); err != nil {
		return err
	}
	return w.exec("DELETE FROM timers WHERE n = ?", n)
}

// flush writes the numbers of entries, the counters and the spans.
func (w *writing) flush() error {
	for k, t := range w.totals {
		if t == (tally{}) {
			continue
		}
		if err := w.exec("INSERT INTO totals(series, state, entries, failed) VALUES(?, ?, ?, ?) ON CONFLICT(series, state) DO UPDATE SET entries = entries + excluded.entries, failed = failed + excluded.failed", k.series, k.state, t.entries, t.failed); err != nil {
			return err
		}
	}
	for number, n := range w.failed {
		if n == 0 {
			continue
		}
		if err := w.exec("UPDATE errors SET entries = entries + ? WHERE n = ?", n, number); err != nil {
			return err
		}
	}
	for k, e := range w.spans {
		if err := w.exec("INSERT INTO spans(sort, hour, state, least, most) VALUES(?, ?, ?, ?, ?) ON CONFLICT(sort, hour, state) DO UPDATE SET least = min(least, excluded.least), most = max(most, excluded.most)", k.sort, k.hour, k.state, e.least, e.most); err != nil {
			return err
		}
	}
	return w.writeCounters()
}

const (
	// countersAtOnce is the number of rows of one statement that adds to counters.
	countersAtOnce = 16

	addCounters    = "INSERT INTO counters(width, at, service, added, fired, due, success, fail, cancelled, completed) VALUES "
	counterValues  = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
	ontoCounters   = " ON CONFLICT(width, at, service) DO UPDATE SET added = added + excluded.added, fired = fired + excluded.fired, due = due + excluded.due, success = success + excluded.success, fail = fail + excluded.fail, cancelled = cancelled + excluded.cancelled, completed = completed + excluded.completed"
	emptiedCounter = "DELETE FROM counters WHERE width = ? AND at = ? AND service = ? AND due <= 0 AND added <= 0 AND fired <= 0 AND success <= 0 AND fail <= 0 AND cancelled <= 0 AND completed <= 0"
)

// writeCounters adds to the counters of all widths, and of the sums, in the order of their key.
func (w *writing) writeCounters() error {
	sums := map[period]*numbers{}
	for m, n := range w.minutes {
		services := []int64{m.service, allServices}
		if w.s.dict.serviceAt(m.service).tenant != "" {
			services = append(services, namedTenants)
		}
		for _, width := range widths {
			for _, sv := range services {
				k := period{width, m.at - m.at%width, sv}
				if sums[k] == nil {
					sums[k] = new(numbers)
				}
				for i := range n {
					sums[k][i] += n[i]
				}
			}
		}
	}
	keys := slices.SortedFunc(maps.Keys(sums), period.compare)
	keys = slices.DeleteFunc(keys, func(k period) bool { return *sums[k] == numbers{} })
	for chunk := range slices.Chunk(keys, countersAtOnce) {
		args := make([]any, 0, len(chunk)*(3+columns))
		for _, k := range chunk {
			args = append(args, k.width, k.at, k.service)
			for _, n := range sums[k] {
				args = append(args, n)
			}
		}
		if err := w.exec(addCounters+severalRows(counterValues, len(chunk))+ontoCounters, args...); err != nil {
			return err
		}
	}
	for _, k := range keys {
		if onlyTakes(sums[k]) {
			if err := w.exec(emptiedCounter, k.width, k.at, k.service); err != nil {
				return err
			}
		}
	}
	return nil
}

// onlyTakes reports whether a row of counters may be empty after n is added to it.
func onlyTakes(n *numbers) bool {
	return !slices.ContainsFunc(n[:], func(n int64) bool { return n > 0 })
}

// oldest returns rows that are done: the oldest of those done before a time, or if full the oldest of
// all, at most pruneAtOnce.
func (w *writing) oldest(beforeMs int64, full bool) ([]int64, error) {
	type aged struct{ n, done int64 }
	var all []aged
	if full {
		beforeMs = 1 << 62
	}
	st, err := w.s.statement(w.ctx, "SELECT n, done FROM timers INDEXED BY timers_state_done WHERE state = ? AND done > 0 AND done < ? ORDER BY done LIMIT ?")
	if err != nil {
		return nil, err
	}
	for _, state := range finalStates {
		rows, err := st.QueryContext(w.ctx, state, beforeMs, pruneAtOnce)
		if err != nil {
			return nil, err
		}
		for rows.Next() {
			var a aged
			if err := rows.Scan(&a.n, &a.done); err != nil {
				return nil, errors.Join(err, rows.Close())
			}
			all = append(all, a)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b aged) int { return int(min(1, max(-1, a.done-b.done))) })
	ns := make([]int64, 0, min(len(all), pruneAtOnce))
	for _, a := range all[:min(len(all), pruneAtOnce)] {
		ns = append(ns, a.n)
	}
	return ns, nil
}

// openRow is a row of an open entry.
type openRow struct {
	n, due   int64
	shard    int
	revision uint64
	id       schemas.TimerID
}

// open returns rows in an open state after (due, n), at most reconcileAtOnce.
func (w *writing) open(state schemas.State, due, n int64) (page []openRow, err error) {
	st, err := w.s.statement(w.ctx, "SELECT n, due, shard, revision, id FROM timers INDEXED BY timers_state WHERE state = ? AND (due, n) > (?, ?) ORDER BY due, n LIMIT ?")
	if err != nil {
		return nil, err
	}
	rows, err := st.QueryContext(w.ctx, state, due, n, reconcileAtOnce)
	if err != nil {
		return nil, err
	}
	err = scanAll(rows, func(scan func(...any) error) error {
		var e openRow
		var id []byte
		err := scan(&e.n, &e.due, &e.shard, &e.revision, &id)
		copy(e.id[:], id)
		page = append(page, e)
		return err
	})
	return page, err
}

// attributesText returns attributes as they are in a row: a JSON object, "" for none.
func attributesText(attributes map[string]string) string {
	if len(attributes) == 0 {
		return ""
	}
	b, _ := json.Marshal(attributes) // strings always encode, in the order of their names
	return string(b)
}

// attributesOf is the inverse of attributesText.
func attributesOf(text string) (attributes map[string]string) {
	if text != "" {
		_ = json.Unmarshal([]byte(text), &attributes) // attributesText wrote it
	}
	return attributes
}

// termsOf returns the terms by which the attributes of a row are found.
func termsOf(text string) []string {
	attributes := attributesOf(text)
	terms := make([]string, 0, len(attributes))
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		terms = append(terms, term(name, attributes[name]))
	}
	return terms
}

// term is the key of an attribute; no attribute has a NUL.
func term(name, value string) string { return name + "\x00" + value }
