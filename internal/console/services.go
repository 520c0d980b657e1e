package console

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/visibility"
	"github.com/belfryio/belfry/schemas"
)

// maxServices bounds the services of the page, because the page looks up the last result of each.
const maxServices = 50

// servicesPage is the page of services.
type servicesPage struct {
	Missing  string
	AsOf     asOf
	Services []*serviceRow
	More     int // services that the page leaves out
}

// serviceRow is a service: its open timers, and the last hour.
type serviceRow struct {
	Tenant, Service                    string
	Pending, Paused, InFlight, Failing int64 // entries now
	Added, Fired, Succeeded, Failed    int64 // in the last hour
	Recent                             int64 // fired in the last rateMinutes whole minutes
	Last                               *schemas.TimerInfo
}

// rateMinutes is the number of minutes of a rate.
const rateMinutes = 5

// Rate returns how many timers fired a minute.
func (s *serviceRow) Rate() string { return fmt.Sprintf("%.1f", float64(s.Recent)/rateMinutes) }

// Share returns the share of the timers that failed for good among the finished ones of the last hour;
// "" if none has finished.
func (s *serviceRow) Share() string { return share(s.Failed, s.Failed+s.Succeeded) }

// share returns a part of a whole in percent; "" if the whole is 0.
func share(part, whole int64) string {
	if whole == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(whole))
}

// showServices is the page of services, the one with most failures first.
func showServices(q *request) (view, error) {
	r := q.index()
	if r == nil {
		return view{name: "services", title: "Services", data: servicesPage{Missing: noHistory}}, nil
	}
	services, err := q.services(r, "", q.tenant())
	if err != nil {
		return view{}, err
	}
	page := servicesPage{AsOf: progressOf(r), Services: services}
	page.More = max(len(page.Services)-maxServices, 0)
	page.Services = page.Services[:len(page.Services)-page.More]
	for _, s := range page.Services {
		found, err := q.search(r, visibility.Query{Service: s.Service, Sort: visibility.SortDone, Descending: true, Limit: 1}, &s.Tenant)
		if err != nil {
			return view{}, err
		}
		if len(found.Entries) > 0 {
			s.Last = &found.Entries[0].Timer
		}
	}
	return view{name: "services", title: "Services", data: page}, nil
}

// services returns the rows of one service, or of all for "", of one tenant, or of all for nil.
func (q *request) services(r visibility.Reader, service string, tenant *string) ([]*serviceRow, error) {
	now := schemas.TimeOf(q.console.o.NowMs())
	counts, err := r.Counts(q.Context(), visibility.CountsQuery{Tenant: tenant, Service: service, From: now.Add(-time.Hour), To: now, Bucket: time.Hour, ByService: true})
	if err != nil {
		return nil, err
	}
	minute := now.Truncate(time.Minute)
	recent, err := r.Counts(q.Context(), visibility.CountsQuery{Tenant: tenant, Service: service, From: minute.Add(-rateMinutes * time.Minute), To: minute, Bucket: time.Minute, ByService: true})
	if err != nil {
		return nil, err
	}
	return servicesOf(&counts, recent.Buckets), nil
}

// servicesOf adds up the counts of the last hour, and of the minutes of the rate, by service.
func servicesOf(counts *visibility.Counts, recent []visibility.Bucket) []*serviceRow {
	by := map[[2]string]*serviceRow{}
	row := func(tenant, service string) *serviceRow {
		key := [2]string{tenant, service}
		if by[key] == nil {
			by[key] = &serviceRow{Tenant: tenant, Service: service}
		}
		return by[key]
	}
	for _, t := range counts.Totals {
		s := row(t.Tenant, t.Service)
		switch t.State {
		case schemas.StatePending:
			s.Pending += t.Entries
		case schemas.StatePaused:
			s.Paused += t.Entries
		case schemas.StateDelivered:
			s.InFlight += t.Entries
		case schemas.StateRetrying:
			s.Failing += t.Entries
		default: // the buckets count the timers that have ended
		}
	}
	for i := range counts.Buckets {
		b := &counts.Buckets[i]
		s := row(b.Tenant, b.Service)
		s.Added, s.Fired = s.Added+b.Added, s.Fired+b.Fired
		s.Succeeded, s.Failed = s.Succeeded+b.Done[schemas.StateSuccess], s.Failed+b.Done[schemas.StateFail]
	}
	for i := range recent {
		b := &recent[i]
		row(b.Tenant, b.Service).Recent += b.Fired
	}
	var all []*serviceRow
	for _, s := range by {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *serviceRow) int {
		return cmp.Or(cmp.Compare(b.Failed+b.Failing, a.Failed+a.Failing), cmp.Compare(b.Fired, a.Fired), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Service, b.Service))
	})
	return all
}
