package visibility

import (
	"context"
	"slices"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// Counts implements Store.
func (s *sqlStore) Counts(ctx context.Context, q CountsQuery) (c Counts, err error) {
	c.Totals = s.totals(&q)
	if q.From.IsZero() {
		return c, nil
	}
	if q.Bucket == 0 {
		q.Bucket = time.Minute
	}
	from, to := q.From.UnixMilli(), q.To.UnixMilli()
	bucket := q.Bucket.Milliseconds()
	if bucket < minuteMs || bucket%minuteMs != 0 {
		return Counts{}, schemas.Errorf(schemas.CodeBadRequest, "bucket is %s; it must be a whole number of minutes", q.Bucket)
	}
	from -= ((from % bucket) + bucket) % bucket
	to += (bucket - to%bucket) % bucket
	if to <= from || (to-from)/bucket > MaxBuckets {
		return Counts{}, schemas.Errorf(schemas.CodeBadRequest, "there are %d buckets of %s from %s to %s; there must be 1 to %d", (to-from)/bucket, q.Bucket, schemas.FormatTime(from), schemas.FormatTime(to), MaxBuckets)
	}
	err = s.reads(ctx, func(tx *reading) error {
		c.Buckets, err = s.buckets(tx, &q, from, to, bucket)
		return err
	})
	return c, err
}

// totals returns the totals that a query selects, in the order of tenant, service and state.
func (s *sqlStore) totals(q *CountsQuery) []Total {
	type key struct {
		service
		state schemas.State
	}
	sums := map[key]int64{}
	s.dict.mu.RLock()
	for i := range s.dict.series {
		se := &s.dict.series[i]
		sv := service{se.tenant, se.service}
		if !q.selects(sv) {
			continue
		}
		for state, t := range s.dict.totals[i] {
			if t.entries > 0 {
				sums[key{sv, schemas.State(state)}] += t.entries
			}
		}
	}
	s.dict.mu.RUnlock()
	all := make([]Total, 0, len(sums))
	for k, n := range sums {
		all = append(all, Total{k.tenant, k.service.service, k.state, n})
	}
	slices.SortFunc(all, func(a, b Total) int {
		return slices.Compare([]string{a.Tenant, a.Service, string(rune(a.State))}, []string{b.Tenant, b.Service, string(rune(b.State))})
	})
	return all
}

func (q *CountsQuery) selects(s service) bool {
	return (q.Tenant == nil || *q.Tenant == s.tenant) && (q.Service == "" || q.Service == s.service)
}

// maxApart is the number of services whose counters are read one service after the other, rather than those of
// all services.
const maxApart = 8

const (
	// allCounters reads the counters of all services, oneCounter those of one service or sum. oneCounter looks up the key in
	// each period that has a counter, of any service. It steps over periods without one: a bucket may be thousands of years
	// wide. It returns a row for each period, of zeros if only others have counters there, because a statement ends only
	// between two rows.
	allCounters = "SELECT at, service, added, fired, due, success, fail, cancelled, completed FROM counters WHERE width = ? AND at >= ? AND at < ?"
	oneCounter  = "WITH RECURSIVE period(at) AS (" +
		"SELECT min(at) FROM counters WHERE width = ?1 AND at >= ?2 AND at < ?3 " +
		"UNION ALL SELECT (SELECT min(c.at) FROM counters AS c WHERE c.width = ?1 AND c.at > period.at AND c.at < ?3) FROM period WHERE period.at IS NOT NULL) " +
		"SELECT period.at, ?4, ifnull(c.added, 0), ifnull(c.fired, 0), ifnull(c.due, 0), ifnull(c.success, 0), ifnull(c.fail, 0), ifnull(c.cancelled, 0), ifnull(c.completed, 0) " +
		"FROM period LEFT JOIN counters AS c ON c.width = ?1 AND c.at = period.at AND c.service = ?4 WHERE period.at IS NOT NULL"
)

// buckets returns the buckets from one time to another, in Unix milliseconds.
func (s *sqlStore) buckets(tx *reading, q *CountsQuery, from, to, bucket int64) ([]Bucket, error) {
	type key struct {
		at int64
		service
	}
	found := map[key]*Bucket{}
	add := func(at, number, sign int64, n *numbers) error {
		var k key
		if number > 0 {
			if sv := s.dict.serviceAt(number); !q.selects(sv) {
				return nil
			} else if q.ByService {
				k.service = sv
			}
		}
		k.at = at * minuteMs
		k.at -= k.at % bucket
		b := found[k]
		if b == nil {
			if len(found) == s.serviceBuckets {
				return schemas.Errorf(schemas.CodeBadRequest, "the answer has more than %d buckets by service: ask for a shorter time, wider buckets or one service", s.serviceBuckets)
			}
			b = &Bucket{Start: schemas.TimeOf(k.at), Tenant: k.tenant, Service: k.service.service, Done: map[schemas.State]int64{}}
			found[k] = b
		}
		b.add(n, sign)
		return nil
	}
	if err := s.eachCounter(tx, q, from, to, bucket, add); err != nil {
		return nil, err
	}
	all := make([]Bucket, 0, len(found))
	for _, b := range found {
		if !b.empty() {
			all = append(all, *b)
		}
	}
	slices.SortFunc(all, compareBuckets)
	return all, nil
}

// eachCounter passes the counters that a query needs to add: a minute, a service or sum, and 1, or -1 for numbers to
// be subtracted.
func (s *sqlStore) eachCounter(tx *reading, q *CountsQuery, from, to, bucket int64, add func(at, number, sign int64, n *numbers) error) error {
	width := widths[0]
	for _, wider := range widths {
		if bucket%(wider*minuteMs) == 0 && from%(wider*minuteMs) == 0 {
			width = wider
		}
	}
	var at, number int64
	var n numbers
	into := []any{&at, &number}
	for i := range n {
		into = append(into, &n[i])
	}
	read := func(sign int64, query string, args ...any) error {
		return tx.each(query, args, func(scan func(...any) error) error {
			if err := scan(into...); err != nil {
				return err
			}
			if n != (numbers{}) && (query == oneCounter || number > 0) {
				return add(at, number, sign, &n)
			}
			return nil
		})
	}
	one := func(number, sign int64) error {
		return read(sign, oneCounter, width, from/minuteMs, to/minuteMs, number)
	}
	if !q.ByService && q.Service == "" && (q.Tenant == nil || *q.Tenant == "") {
		err := one(allServices, 1)
		if err == nil && q.Tenant != nil {
			err = one(namedTenants, -1)
		}
		return err
	}
	numbers, ok := s.dict.servicesOf(maxApart, q.selects)
	if !ok {
		return read(1, allCounters, width, from/minuteMs, to/minuteMs)
	}
	for _, number := range numbers {
		if err := one(number, 1); err != nil {
			return err
		}
	}
	return nil
}

// add adds the columns of a row of counters, or subtracts them.
func (b *Bucket) add(n *numbers, sign int64) {
	b.Added += sign * n[columnAdded]
	b.Fired += sign * n[columnFired]
	b.Due += sign * n[columnDue]
	for i, state := range finalStates {
		if k := n[columnDone+i]; k != 0 {
			if b.Done[state] += sign * k; b.Done[state] == 0 {
				delete(b.Done, state)
			}
		}
	}
}

// empty reports whether a bucket has nothing in it.
func (b *Bucket) empty() bool {
	return b.Added == 0 && b.Fired == 0 && b.Due == 0 && len(b.Done) == 0
}
