package console

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/belfryio/belfry/internal/visibility"
	"github.com/belfryio/belfry/schemas"
)

// span is a period that the page Upcoming can show.
type span struct {
	Name         string
	long, bucket time.Duration
	format       string
	Here         bool
}

// spans are the periods, the default first.
var spans = []span{
	{"hour", time.Hour, time.Minute, "15:04", false},
	{"day", 24 * time.Hour, 15 * time.Minute, "Mon 15:04", false},
	{"month", 30 * 24 * time.Hour, 6 * time.Hour, "Jan 2 15:04", false},
}

const (
	// maxSpikes bounds the spikes that the page Upcoming names.
	maxSpikes = 5
	// A bucket is a spike if it has more than spikeFactor times the timers of an average bucket.
	spikeFactor = 3
)

// upcomingPage is the page of the density of due times.
type upcomingPage struct {
	Missing string
	AsOf    asOf
	Spans   []span
	Total   int64
	Bucket  time.Duration
	Chart   chart
	Spikes  []spike
}

// spike is a period in which many timers are due, with the service that has most of them.
type spike struct {
	Start, End time.Time
	Due        int64
	Service    string
	OfService  int64
}

// showUpcoming is the page of the timers that are due in the next hour, day or month.
func showUpcoming(q *request) (view, error) {
	r := q.index()
	if r == nil {
		return view{name: "upcoming", title: "Upcoming", data: upcomingPage{Missing: noHistory}}, nil
	}
	s := spans[0]
	all := slices.Clone(spans)
	for i := range all {
		if all[i].Name == cmp.Or(q.text("span"), s.Name) {
			s, all[i].Here = all[i], true
		}
	}
	now := schemas.TimeOf(q.console.o.NowMs())
	counts, err := r.Counts(q.Context(), visibility.CountsQuery{Tenant: q.tenant(), From: now, To: now.Add(s.long), Bucket: s.bucket})
	if err != nil {
		return view{}, err
	}
	page := upcomingPage{AsOf: progressOf(r), Spans: all, Bucket: s.bucket}
	page.Chart, page.Spikes, page.Total = s.density(counts.Buckets, now)
	for i := range page.Spikes {
		if err := q.nameSpike(r, &page.Spikes[i]); err != nil {
			return view{}, err
		}
	}
	return view{name: "upcoming", title: "Upcoming", data: page}, nil
}

// nameSpike finds the service that has most timers of a spike.
func (q *request) nameSpike(r visibility.Reader, sp *spike) error {
	counts, err := r.Counts(q.Context(), visibility.CountsQuery{Tenant: q.tenant(), From: sp.Start, To: sp.End, Bucket: sp.End.Sub(sp.Start), ByService: true})
	for i := range counts.Buckets {
		if b := &counts.Buckets[i]; b.Due > sp.OfService {
			sp.Service, sp.OfService = b.Service, b.Due
		}
	}
	return err
}

// density makes the chart of a period from its buckets, and finds its spikes.
func (s *span) density(buckets []visibility.Bucket, now time.Time) (c chart, spikes []spike, total int64) {
	var by []spike
	most := int64(1)
	for i := range buckets {
		b := &buckets[i]
		if b.Due == 0 {
			continue
		}
		by = append(by, spike{Start: b.Start, End: b.Start.Add(s.bucket), Due: b.Due})
		total += b.Due
		most = max(most, b.Due)
	}
	n := int(s.long / s.bucket)
	begin := now.Truncate(s.bucket)
	c = chart{Width: (n + 1) * barWidth, Height: barHeight, Text: fmt.Sprintf("%d timers are due in the next %s, at most %d in %s", total, s.Name, most, schemas.FormatDuration(s.bucket))}
	for _, sp := range by {
		x := int(sp.Start.Sub(begin)/s.bucket) * barWidth
		h := max(int(sp.Due*barHeight/most), 2)
		c.Bars = append(c.Bars, bar{x, barHeight - h, barWidth - 1, h, "pending", fmt.Sprintf("%s: %d", sp.Start.UTC().Format(s.format+" UTC"), sp.Due)})
		if sp.Due > 1 && sp.Due > spikeFactor*total/int64(n) {
			spikes = append(spikes, sp)
		}
	}
	slices.SortFunc(spikes, func(a, b spike) int { return cmp.Or(cmp.Compare(b.Due, a.Due), a.Start.Compare(b.Start)) })
	for i := 0; i < n; i += max(n/4, 1) {
		c.Labels = append(c.Labels, label{i * barWidth, begin.Add(time.Duration(i) * s.bucket).Format(s.format + " UTC")})
	}
	return c, spikes[:min(len(spikes), maxSpikes)], total
}
