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
	// maxExamined bounds the rows that one Search reads.
	maxExamined = 5000
	// maxSources bounds the index ranges that one Search merges. A query that would need more
	// reads all entries of its states in order, up to maxExamined.
	maxSources = 400
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
	// byEvent says that the order is by event id first.
	byEvent bool
	// apart says that the table is not timers, whose other columns are to be joined.
	apart bool
}

// plan is how a query is answered: the rows of its sources, in order, as far as they match it.
type plan struct {
	q       Query
	sources []source
	// filter refuses rows by their columns; nil if the sources have all that the query compares.
	filter *filter
	// from and to bound the sort key: from <= key < to.
	from, to int64
	hash     uint64
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
	q.Host = strings.ToLower(q.Host)
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
		return source{table: "timers AS i INDEXED BY " + index + "_done", key: "done", where: where + " AND i.done > 0", args: args}
	}
	return source{table: "timers AS i INDEXED BY " + index, key: "due", where: where, args: args}
}

// selected returns the states that a query selects.
func (q *Query) selected() []schemas.State {
	all := slices.Concat(openStates, finalStates)
	if q.Sort == SortDone {
		all = finalStates
	}
	if len(q.States) == 0 {
		return all
	}
	return slices.DeleteFunc(slices.Clone(all), func(s schemas.State) bool { return !slices.Contains(q.States, s) })
}

// plan chooses the indexes of a query: the one of its most selective field. The other fields are
// compared row by row.
func (s *sqlStore) plan(q Query) (*plan, error) {
	if err := q.complete(); err != nil {
		return nil, err
	}
	p := &plan{q: q, hash: q.fingerprint()}
	rest := q
	if q.Sort == SortDone {
		p.from, p.to = bounds(q.DoneFrom, q.DoneTo)
		rest.DoneFrom, rest.DoneTo = time.Time{}, time.Time{}
	} else {
		p.from, p.to = bounds(q.DueFrom, q.DueTo)
		rest.DueFrom, rest.DueTo = time.Time{}, time.Time{}
	}
	p.sources = s.sources(&p.q, &rest)
	p.filter = s.dict.filter(&rest)
	return p, nil
}

// sources chooses the indexes of a query. It empties the fields of rest that all rows of the sources
// have.
func (s *sqlStore) sources(q, rest *Query) []source {
	states := q.selected()
	switch {
	case q.IDPrefix != "":
		rest.IDPrefix = ""
		index, key, done := "timers_event", "due", ""
		if q.Sort == SortDone {
			index, key, done = index+"_done", "done", " AND i.done > 0"
		}
		return []source{{table: "timers AS i INDEXED BY " + index, key: key, where: "i.event >= ? AND i.event < ?" + done, args: []any{q.IDPrefix, afterPrefix(q.IDPrefix)}, byEvent: true}}
	case q.ID != "":
		rest.ID = ""
		return []source{q.indexed("timers_event", "i.event = ?", q.ID)}
	case !q.RunsOf.IsZero():
		return []source{q.indexed("timers_runs", "i.schedule = ? AND i.schedule IS NOT NULL", q.RunsOf[:])}
	case q.Text != "":
		found, ok := s.bySeries(q, states, func(se *series) bool { return se.source == q.Text || se.typ == q.Text })
		if ok {
			return append(found, q.indexed("timers_event", "i.event = ?", q.Text))
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
		rest.Group = ""
		return []source{q.indexed("timers_group", "i.grp = ? AND i.grp <> ''", q.Group)}
	case q.Error != "":
		if numbers, ok := s.dict.selectErrors(q.Error, maxSources); ok {
			rest.Error = ""
			found := make([]source, 0, len(numbers))
			for _, n := range numbers {
				found = append(found, q.indexed("timers_error", "i.error = ? AND i.error > 0", n))
			}
			return found
		}
	case q.Source != "" || q.Type != "" || q.Service != "" || q.Host != "" || q.Tenant != nil:
		if found, ok := s.bySeries(q, states, func(*series) bool { return true }); ok {
			rest.Source, rest.Type, rest.Service, rest.Host, rest.Tenant, rest.States = "", "", "", "", nil, nil
			return found
		}
	}
	rest.States = nil
	all := make([]source, 0, len(states))
	for _, st := range states {
		all = append(all, q.indexed("timers_state", "i.state = ?", st))
	}
	return all
}

// bySeries returns a source for each series and state that a query selects. ok is false if there are
// too many.
func (s *sqlStore) bySeries(q *Query, states []schemas.State, f func(*series) bool) ([]source, bool) {
	numbers, ok := s.dict.selectSeries(states, maxSources, func(se *series) bool { return se.matches(q) && f(se) })
	found := make([]source, 0, len(numbers))
	for _, k := range numbers {
		found = append(found, q.indexed("timers_series", "i.series = ? AND i.state = ?", k.series, k.state))
	}
	return found, ok
}

// afterPrefix returns a text that is greater than every text with a prefix, and not greater than any
// other such text. No byte of valid UTF-8 is 0xff.
func afterPrefix(prefix string) string {
	return prefix[:len(prefix)-1] + string([]byte{prefix[len(prefix)-1] + 1})
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
		fmt.Fprintf(&b, "%s FROM %s CROSS JOIN timers AS t WHERE t.n = i.n AND ", strings.ReplaceAll(filterColumns, "i.", "t."), src.table)
	default:
		fmt.Fprintf(&b, "%s FROM %s WHERE ", filterColumns, src.table)
	}
	args = slices.Clone(src.args)
	from, to := p.from, p.to
	if after != nil && !src.byEvent {
		// It implies the row value below, and bounds the range of the index.
		if p.q.Descending {
			to = min(to, after.key+1)
		} else {
			from = max(from, after.key)
		}
	}
	fmt.Fprintf(&b, "%s AND %s >= ? AND %s < ?", src.where, key, key)
	args = append(args, from, to)
	if after != nil {
		fmt.Fprintf(&b, " AND (%s) %s (%s)", strings.Join(columns, ", "), order, strings.Repeat("?, ", len(columns)-1)+"?")
		if src.byEvent {
			args = append(args, after.event)
		}
		args = append(args, after.key, after.n)
	}
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
		page, err = p.run(tx, after)
		return err
	})
	return page, err
}

// run reads the page after a position.
func (p *plan) run(tx *reading, after *position) (page Page, err error) {
	page.Entries = make([]Entry, 0, p.q.Limit)
	m, err := p.merge(tx, after)
	if err != nil {
		return Page{}, err
	}
	for range maxExamined {
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
	for k, n := range s.dict.totals {
		se := &s.dict.series[k.series-1]
		if sv := (service{se.tenant, se.service}); q.selects(sv) {
			sums[key{sv, k.state}] += n
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

// buckets returns the buckets from one time to another, in Unix milliseconds.
func (s *sqlStore) buckets(tx *reading, q *CountsQuery, from, to, bucket int64) ([]Bucket, error) {
	table := "minutes"
	if bucket%hourMs == 0 && from%hourMs == 0 {
		table = "hours"
	}
	type key struct {
		at int64
		service
	}
	found := map[key]*Bucket{}
	err := tx.each("SELECT at, service, kind, entries FROM "+table+" WHERE at >= ? AND at < ?", []any{from / minuteMs, to / minuteMs}, func(scan func(...any) error) error {
		var at, number, n int64
		var kind int
		if err := scan(&at, &number, &kind, &n); err != nil {
			return err
		}
		s.dict.mu.RLock()
		sv := s.dict.services[number-1]
		s.dict.mu.RUnlock()
		if !q.selects(sv) {
			return nil
		}
		start := at * minuteMs
		k := key{at: start - start%bucket}
		if q.ByService {
			k.service = sv
		}
		b := found[k]
		if b == nil {
			b = &Bucket{Start: schemas.TimeOf(k.at), Tenant: k.tenant, Service: k.service.service, Done: map[schemas.State]int64{}}
			found[k] = b
		}
		switch {
		case kind == kindAdded:
			b.Added += n
		case kind == kindFired:
			b.Fired += n
		case kind == kindDue:
			b.Due += n
		case kind > kindDone:
			b.Done[schemas.State(kind-kindDone)] += n
		}
		return nil
	})
	all := make([]Bucket, 0, len(found))
	for _, b := range found {
		all = append(all, *b)
	}
	slices.SortFunc(all, compareBuckets)
	return all, err
}
