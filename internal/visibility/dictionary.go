package visibility

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"strings"
	"sync"

	"github.com/belfryio/belfry/schemas"
)

// Bounds of the dictionaries, which are in memory. What exceeds them is stored under the number
// of a coarser value, and is found by reading the entries of that.
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

// errorKey is an error text as it is in the dictionary: in lower case, and each number replaced by
// "#", so that errors of one cause are one.
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

// dictionary has the numbers of series, errors and services, and how many entries each series has
// in each state. The writer adds to it, readers use it. Numbers begin with 1.
type dictionary struct {
	mu       sync.RWMutex
	series   []series // by number - 1
	errors   []string
	services []service
	seriesN  map[series]int64
	errorN   map[string]int64
	serviceN map[service]int64
	totals   map[seriesState]int64
	rows     int64
}

// otherError is the text of the errors that exceed maxErrors. No key has it.
const otherError = "\x00"

// load reads the dictionary of a file.
func (d *dictionary) load(ctx context.Context, db *sql.DB) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.series, d.errors, d.services, d.rows = nil, nil, nil, 0
	d.seriesN, d.errorN, d.serviceN, d.totals = map[series]int64{}, map[string]int64{}, map[service]int64{}, map[seriesState]int64{}
	err := eachRow(ctx, db, "SELECT tenant, service, source, type, host FROM series ORDER BY n", func(scan func(...any) error) error {
		var s series
		err := scan(&s.tenant, &s.service, &s.source, &s.typ, &s.host)
		d.series = append(d.series, s)
		d.seriesN[s] = int64(len(d.series))
		return err
	})
	if err != nil {
		return err
	}
	err = eachRow(ctx, db, "SELECT text FROM errors ORDER BY n", func(scan func(...any) error) error {
		var s string
		err := scan(&s)
		d.errors = append(d.errors, s)
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
	return eachRow(ctx, db, "SELECT series, state, entries FROM totals", func(scan func(...any) error) error {
		var k seriesState
		var n int64
		err := scan(&k.series, &k.state, &n)
		d.totals[k] = n
		d.rows += n
		return err
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
	d.series = append(d.series, s)
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
	d.errors = append(d.errors, key)
	n = int64(len(d.errors))
	d.errorN[key] = n
	return n, do("INSERT INTO errors(n, text) VALUES(?, ?)", n, key)
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

// add adds to the totals.
func (d *dictionary) add(deltas map[seriesState]int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for k, n := range deltas {
		d.totals[k] += n
		if d.rows += n; d.totals[k] <= 0 {
			delete(d.totals, k)
		}
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

// selectSeries returns the numbers of the series with entries in one of the states that f selects,
// with that state. ok is false if there are more than most.
func (d *dictionary) selectSeries(states []schemas.State, most int, f func(*series) bool) (found []seriesState, ok bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for i := range d.series {
		if !f(&d.series[i]) {
			continue
		}
		for _, st := range states {
			k := seriesState{int64(i + 1), st}
			if d.totals[k] <= 0 {
				continue
			}
			if len(found) == most {
				return nil, false
			}
			found = append(found, k)
		}
	}
	return found, true
}

// selectErrors returns the numbers of the errors that contain a text, and of the entries that stand for
// others. ok is false if there are more than most.
func (d *dictionary) selectErrors(text string, most int) (found []int64, ok bool) {
	key := errorKey(text)
	d.mu.RLock()
	defer d.mu.RUnlock()
	for i, e := range d.errors {
		if e != otherError && !strings.Contains(e, key) {
			continue
		}
		if len(found) == most {
			return nil, false
		}
		found = append(found, int64(i+1))
	}
	return found, true
}
