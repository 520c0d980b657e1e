package visibility

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"

	"github.com/belfryio/belfry/schemas"
)

// Bounds of the dictionaries, which are in memory. A value beyond a bound gets the number of a coarser
// value; a search then reads all entries of the coarser value.
const (
	maxSeries = 50_000
	maxErrors = 10_000
)

// series are the attributes that many entries share. A series without a source stands for all
// series of its service that exceed maxSeries.
type series struct{ tenant, service, source, typ, host string }

// seriesOf returns the series of a record.
func seriesOf(r *schemas.Record) series {
	tenant, service := schemas.SplitService(r.Service)
	return series{tenant, service, r.Source, r.Type, hostOf(r.Callback)}
}

// hostOf returns the host of a callback, or "nats:" and its subject; "" for a path below a base URL.
func hostOf(callback string) string {
	if strings.HasPrefix(callback, schemas.NATSScheme) {
		return schemas.RedactURL(callback)
	}
	u, err := url.Parse(callback)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Host)
}

// errorKey returns the key of an error text in the dictionary: in lower case, with "#" for each number,
// so that errors with the same cause have the same key.
func errorKey(text string) string {
	var b strings.Builder
	b.Grow(len(text))
	digits := false
	for _, c := range strings.ToLower(text) {
		if c >= '0' && c <= '9' {
			if !digits {
				b.WriteByte('#')
			}
			digits = true
			continue
		}
		digits = false
		b.WriteRune(c)
	}
	return b.String()
}

type service struct{ tenant, service string }

// seriesState is a key of totals.
type seriesState struct {
	series int64
	state  schemas.State
}

// maxStates is more than the number of every state.
const maxStates = 16

// tally is a number of entries, and how many of them have an error.
type tally struct{ entries, failed int64 }

func (t *tally) add(o tally) {
	t.entries += o.entries
	t.failed += o.failed
}

// dictionary has the numbers of series, errors and services, and how many entries each series has
// in each state, and each error. The writer adds to it, readers use it. Numbers begin with 1.
type dictionary struct {
	mu sync.RWMutex
	numbering
}

// numbering is the content of a dictionary.
type numbering struct {
	series   []series // by number - 1
	errors   []string
	services []service
	seriesN  map[series]int64
	errorN   map[string]int64
	serviceN map[service]int64
	// totals has the entries of each series by state, and failed those of each error, both by number - 1.
	totals [][maxStates]tally
	failed []int64
	rows   int64
}

// otherError is the text of the errors that exceed maxErrors. No key has it.
const otherError = "\x00"

// load reads the dictionary of a file. After an error the dictionary is as before.
func (d *dictionary) load(ctx context.Context, db *sql.DB) error {
	var n numbering
	if err := n.load(ctx, db); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.numbering = n
	return nil
}

// load reads the dictionary of a file.
func (d *numbering) load(ctx context.Context, db *sql.DB) error {
	d.seriesN, d.errorN, d.serviceN = map[series]int64{}, map[string]int64{}, map[service]int64{}
	err := eachRow(ctx, db, "SELECT tenant, service, source, type, host FROM series ORDER BY n", func(scan func(...any) error) error {
		var s series
		err := scan(&s.tenant, &s.service, &s.source, &s.typ, &s.host)
		d.series, d.totals = append(d.series, s), append(d.totals, [maxStates]tally{})
		d.seriesN[s] = int64(len(d.series))
		return err
	})
	if err != nil {
		return err
	}
	err = eachRow(ctx, db, "SELECT text, entries FROM errors ORDER BY n", func(scan func(...any) error) error {
		var s string
		var n int64
		err := scan(&s, &n)
		d.errors, d.failed = append(d.errors, s), append(d.failed, n)
		d.errorN[s] = int64(len(d.errors))
		return err
	})
	if err != nil {
		return err
	}
	err = eachRow(ctx, db, "SELECT tenant, service FROM services ORDER BY n", func(scan func(...any) error) error {
		var s service
		err := scan(&s.tenant, &s.service)
		d.services = append(d.services, s)
		d.serviceN[s] = int64(len(d.services))
		return err
	})
	if err != nil {
		return err
	}
	return eachRow(ctx, db, "SELECT series, state, entries, failed FROM totals", func(scan func(...any) error) error {
		var k seriesState
		var t tally
		if err := scan(&k.series, &k.state, &t.entries, &t.failed); err != nil {
			return err
		}
		if k.series < 1 || k.series > int64(len(d.totals)) || !k.state.Valid() {
			return fmt.Errorf("%w: it counts entries of series %d in state %d", ErrDamagedFile, k.series, k.state)
		}
		d.totals[k.series-1][k.state] = t
		d.rows += t.entries
		return nil
	})
}

// eachRow passes the rows of a query to fn.
func eachRow(ctx context.Context, db *sql.DB, query string, fn func(scan func(...any) error) error) error {
	rows, err := db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	return scanAll(rows, fn)
}

// scanAll passes the rows to fn, and closes them.
func scanAll(rows *sql.Rows, fn func(scan func(...any) error) error) error {
	for rows.Next() {
		if err := fn(rows.Scan); err != nil {
			return errors.Join(err, rows.Close())
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}

// exec runs a statement of the writer.
type exec func(query string, args ...any) error

// seriesNumber returns the number of a series, and stores a new one.
func (d *dictionary) seriesNumber(s series, do exec) (int64, error) {
	d.mu.RLock()
	n, full := d.seriesN[s], len(d.series) >= maxSeries
	d.mu.RUnlock()
	if n == 0 && full && s.source != "" {
		return d.seriesNumber(series{tenant: s.tenant, service: s.service}, do)
	}
	if n > 0 {
		return n, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.series, d.totals = append(d.series, s), append(d.totals, [maxStates]tally{})
	n = int64(len(d.series))
	d.seriesN[s] = n
	return n, do("INSERT INTO series(n, tenant, service, source, type, host) VALUES(?, ?, ?, ?, ?, ?)", n, s.tenant, s.service, s.source, s.typ, s.host)
}

// errorNumber returns the number of an error text, 0 for none, and stores a new one.
func (d *dictionary) errorNumber(text string, do exec) (int64, error) {
	if text == "" {
		return 0, nil
	}
	key := errorKey(text)
	d.mu.RLock()
	n := d.errorN[key]
	if n == 0 && len(d.errors) >= maxErrors {
		key = otherError
		n = d.errorN[key]
	}
	d.mu.RUnlock()
	if n > 0 {
		return n, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.errors, d.failed = append(d.errors, key), append(d.failed, 0)
	n = int64(len(d.errors))
	d.errorN[key] = n
	return n, do("INSERT INTO errors(n, text, entries) VALUES(?, ?, 0)", n, key)
}

// serviceNumber returns the number of a service, and stores a new one.
func (d *dictionary) serviceNumber(s service, do exec) (int64, error) {
	d.mu.RLock()
	n := d.serviceN[s]
	d.mu.RUnlock()
	if n > 0 {
		return n, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.services = append(d.services, s)
	n = int64(len(d.services))
	d.serviceN[s] = n
	return n, do("INSERT INTO services(n, tenant, service) VALUES(?, ?, ?)", n, s.tenant, s.service)
}

// serviceAt returns the service with a number.
func (d *dictionary) serviceAt(number int64) service {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.services[number-1]
}

// add adds to the totals, and to the entries of errors.
func (d *dictionary) add(totals map[seriesState]tally, failed map[int64]int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, t := range totals {
		d.totals[k.series-1][k.state].add(t)
		d.rows += t.entries
	}
	for number, n := range failed {
		d.failed[number-1] += n
	}
}

// count returns the number of entries.
func (d *dictionary) count() int64 {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.rows
}

// matches reports whether entries of a series may have an attribute of a query. all is true if the
// series stands for others.
func (s *series) matches(q *Query) bool {
	same := func(want, have string) bool { return want == "" || want == have || s.source == "" }
	return (q.Tenant == nil || *q.Tenant == s.tenant) && (q.Service == "" || q.Service == s.service) &&
		same(q.Source, s.source) && same(q.Type, s.typ) && same(q.Host, s.host)
}

// matchesText reports whether entries of a series may have a text as their source or type.
func (s *series) matchesText(text string) bool {
	return s.source == text || s.typ == text || s.source == ""
}

// selection are the series and states with entries that may match a query, by the numbers of the last
// transaction.
type selection struct {
	// pairs are the series and states; incomplete if there are too many.
	pairs []pair
	over  bool
	// entries are the entries of all series and states that may match, and all those of all series in these
	// states.
	entries, all int64
}

// pair is a series and a state, and their entries.
type pair struct {
	seriesState
	tally
}

// choose returns the selection of the series that f selects, in some states, with at most most pairs.
func (d *dictionary) choose(states []schemas.State, most int, f func(*series) bool) (sel selection) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for i := range d.series {
		selected := f(&d.series[i])
		for _, st := range states {
			t := d.totals[i][st]
			if t.entries <= 0 {
				continue
			}
			if sel.all += t.entries; !selected {
				continue
			}
			sel.entries += t.entries
			if sel.over = sel.over || len(sel.pairs) == most; !sel.over {
				sel.pairs = append(sel.pairs, pair{seriesState{int64(i + 1), st}, t})
			}
		}
	}
	return sel
}

// selectErrors returns the numbers of the errors that contain a text, and of the entries that stand for
// others, with the number of their entries. ok is false if there are more than most.
func (d *dictionary) selectErrors(text string, most int) (found []int64, entries int64, ok bool) {
	key := errorKey(text)
	d.mu.RLock()
	defer d.mu.RUnlock()
	for i, e := range d.errors {
		if d.failed[i] <= 0 || e != otherError && !strings.Contains(e, key) {
			continue
		}
		if len(found) == most {
			return nil, 0, false
		}
		found, entries = append(found, int64(i+1)), entries+d.failed[i]
	}
	return found, entries, true
}

// servicesOf returns the numbers of the services that f selects, at most most; ok is false if there are more.
func (d *dictionary) servicesOf(most int, f func(service) bool) (numbers []int64, ok bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for i, sv := range d.services {
		if !f(sv) {
			continue
		}
		if len(numbers) == most {
			return nil, false
		}
		numbers = append(numbers, int64(i+1))
	}
	return numbers, true
}
