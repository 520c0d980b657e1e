package visibility

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/belfryio/belfry/schemas"
)

const (
	minuteMs = 60_000
	hourMs   = 60 * minuteMs
)

// The kinds of counters in minutes and hours. kindDone plus a state counts what reached that state.
const (
	kindAdded = 1
	kindFired = 2
	kindDue   = 3
	kindDone  = 16
)

// count is a key of minutes: a service, a kind, and a minute since 1970.
type count struct {
	minute, service int64
	kind            int
}

func (c count) compare(o count) int {
	return cmp.Or(cmp.Compare(c.minute, o.minute), cmp.Compare(c.service, o.service), cmp.Compare(c.kind, o.kind))
}

// row is what a row of timers says about the indexes and counters.
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

// counts passes the counters of a row to fn.
func (r *row) counts(fn func(kind int, atMs int64)) {
	if r.recurs {
		return
	}
	if r.added > 0 {
		fn(kindAdded, r.added)
	}
	if r.fired > 0 {
		fn(kindFired, r.fired)
	}
	switch {
	case r.done > 0:
		fn(kindDone+int(r.state), r.done)
	case !r.state.Final():
		fn(kindDue, r.due)
	}
}

// writing is one transaction.
type writing struct {
	s       *sqlStore
	ctx     context.Context
	totals  map[seriesState]int64
	minutes map[count]int64
}

func (w *writing) exec(query string, args ...any) error {
	st, err := w.s.statement(w.ctx, query)
	if err == nil {
		_, err = st.ExecContext(w.ctx, args...)
	}
	return err
}

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

// change writes one change, unless its row is as new.
func (w *writing) change(c *Change) error {
	old, found, err := w.find("id = ?", c.ID[:])
	if err != nil || found && old.revision >= c.Revision {
		return err
	}
	r, err := w.rowOf(c)
	if err != nil {
		return err
	}
	if c.Attributes == nil {
		r.attributes = old.attributes
	}
	rec := c.Record
	rec.Body, rec.Callback = schemas.Body{}, schemas.RedactURL(rec.Callback)
	blob := rec.AppendFormat(nil, schemas.RecordFormat2)
	var schedule any
	if o := c.Record.Origin; o != nil {
		schedule = o.Schedule[:]
	}
	switch {
	case !found:
		err = w.exec("INSERT INTO timers(id, shard, revision, stored, series, state, added, due, fired, done, error, event, grp, schedule, recurs, attributes, record) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
			c.ID[:], c.Shard, c.Revision, c.StoredMs, r.series, r.state, r.added, r.due, r.fired, r.done, r.error, r.event, r.group, schedule, r.recurs, r.attributes, blob)
		if err == nil && r.attributes != "" {
			_, err = w.queryRow("SELECT n FROM timers WHERE id = ?", []any{c.ID[:]}, &r.n)
		}
	case old.series == r.series && old.due == r.due && old.group == r.group && old.event == r.event && old.added == r.added:
		// Most changes leave these as they are: the indexes of them need not change.
		r.n = old.n
		err = w.exec("UPDATE timers SET revision = ?, stored = ?, state = ?, fired = ?, done = ?, error = ?, attributes = ?, record = ? WHERE n = ?",
			c.Revision, c.StoredMs, r.state, r.fired, r.done, r.error, r.attributes, blob, r.n)
	default:
		r.n = old.n
		err = w.exec("UPDATE timers SET revision = ?, stored = ?, series = ?, state = ?, added = ?, due = ?, fired = ?, done = ?, error = ?, event = ?, grp = ?, schedule = ?, recurs = ?, attributes = ?, record = ? WHERE n = ?",
			c.Revision, c.StoredMs, r.series, r.state, r.added, r.due, r.fired, r.done, r.error, r.event, r.group, schedule, r.recurs, r.attributes, blob, r.n)
	}
	if err != nil {
		return err
	}
	if found {
		w.account(&old, -1)
	}
	w.account(&r, 1)
	return w.index(&old, &r)
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
	w.totals[seriesState{r.series, r.state}] += n
	r.counts(func(kind int, atMs int64) { w.minutes[count{atMs / minuteMs, r.service, kind}] += n })
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
	w.totals[seriesState{r.series, r.state}]--
	if r.done == 0 {
		r.counts(func(kind int, atMs int64) {
			if kind == kindDue {
				w.minutes[count{atMs / minuteMs, r.service, kind}]--
			}
		})
	}
	if err := w.index(&r, &row{}); err != nil {
		return err
	}
	return w.exec("DELETE FROM timers WHERE n = ?", n)
}

// flush writes the counters.
func (w *writing) flush() error {
	for k, n := range w.totals {
		if n == 0 {
			continue
		}
		if err := w.exec("INSERT INTO totals(series, state, entries) VALUES(?, ?, ?) ON CONFLICT(series, state) DO UPDATE SET entries = entries + excluded.entries", k.series, k.state, n); err != nil {
			return err
		}
	}
	hours := map[count]int64{}
	for k, n := range w.minutes {
		k.minute -= k.minute % 60
		hours[k] += n
	}
	if err := w.counted("minutes", w.minutes); err != nil {
		return err
	}
	return w.counted("hours", hours)
}

// counted adds to the counters of a table, in the order of its key.
func (w *writing) counted(table string, counts map[count]int64) error {
	add := "INSERT INTO " + table + "(at, service, kind, entries) VALUES(?, ?, ?, ?) ON CONFLICT(at, service, kind) DO UPDATE SET entries = entries + excluded.entries"
	for _, k := range slices.SortedFunc(maps.Keys(counts), count.compare) {
		n := counts[k]
		if n == 0 {
			continue
		}
		if err := w.exec(add, k.minute, k.service, k.kind, n); err != nil {
			return err
		}
		if n > 0 {
			continue
		}
		if err := w.exec("DELETE FROM "+table+" WHERE at = ? AND service = ? AND kind = ? AND entries <= 0", k.minute, k.service, k.kind); err != nil {
			return err
		}
	}
	return nil
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
