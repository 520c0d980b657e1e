package console

import (
	"fmt"
	"time"

	"github.com/belfryio/belfry/internal/visibility"
	"github.com/belfryio/belfry/schemas"
)

const (
	// nowSpan is the period before and after the present that the page Now shows.
	nowSpan = time.Minute
	// nowPages bounds the pages of the search index that the page Now reads.
	nowPages = 5
	// barHeight is the height of the tallest bar of a chart, and barWidth the distance between two
	// bars, both in pixels.
	barHeight, barWidth = 120, 8
)

// nowPage is the page of the last and the next minute.
type nowPage struct {
	Missing string // why there is nothing to show; "" if there is
	AsOf    asOf
	Chart   chart
	// Fired and Ahead are the numbers of timers in the chart before and after the present. More is
	// true if the chart leaves timers out.
	Fired, Ahead int
	More         bool
	P50, P99     int64 // lateness in milliseconds, if HasLate
	HasLate      bool
	// Rates are the last minutes, the newest first.
	Rates   []visibility.Bucket
	Cluster bool
}

// showNow is the page of the last and the next minute.
func showNow(q *request) (view, error) {
	r := q.index()
	if r == nil {
		return view{name: "now", title: "Now", data: nowPage{Missing: noHistory}}, nil
	}
	now := schemas.TimeOf(q.console.o.NowMs())
	page := nowPage{AsOf: progressOf(r), Cluster: q.id.Tenant == ""}
	query := visibility.Query{DueFrom: now.Add(-nowSpan), DueTo: now.Add(nowSpan), Limit: visibility.MaxLimit}
	var entries []visibility.Entry
	for i := 0; ; i++ {
		found, err := q.search(r, query, q.tenant())
		if err != nil {
			return view{}, err
		}
		entries = append(entries, found.Entries...)
		if query.Cursor = found.Cursor; query.Cursor == "" || i == nowPages {
			break
		}
	}
	page.More = query.Cursor != ""
	page.Chart = nowChart(entries, now)
	for i := range entries {
		if entries[i].Timer.State.Waits() {
			page.Ahead++
		} else {
			page.Fired++
		}
	}
	page.P50, page.P99, page.HasLate = lateness(entries, now.Add(-nowSpan))
	counts, err := r.Counts(q.Context(), visibility.CountsQuery{Tenant: q.tenant(), From: now.Add(-5 * time.Minute), To: now})
	if err != nil {
		return view{}, err
	}
	for i := len(counts.Buckets) - 1; i >= 0; i-- {
		page.Rates = append(page.Rates, counts.Buckets[i])
	}
	return view{name: "now", title: "Now", data: page}, nil
}

// chart is a chart of stacked bars.
type chart struct {
	Width, Height int
	Bars          []bar
	// Text describes the chart in words. Mark is the position of the present in pixels; 0 for none.
	Text string
	Mark int
	// Labels are below the bars.
	Labels []label
}

// bar is a part of a bar. Its class is a state.
type bar struct {
	X, Y, Width, Height int
	Class, Title        string
}

type label struct {
	X    int
	Text string
}

// nowChart stacks the entries of each second before and after now by their states.
func nowChart(entries []visibility.Entry, now time.Time) chart {
	seconds := int(2 * nowSpan / time.Second)
	begin := now.Add(-nowSpan)
	counts := make([]map[schemas.State]int, seconds)
	most := 1
	total := 0
	for i := range entries {
		t := &entries[i].Timer
		n := int(t.Due.Sub(begin) / time.Second)
		if n < 0 || n >= seconds {
			continue
		}
		if counts[n] == nil {
			counts[n] = map[schemas.State]int{}
		}
		counts[n][t.State]++
		total++
		sum := 0
		for _, k := range counts[n] {
			sum += k
		}
		most = max(most, sum)
	}
	c := chart{Width: seconds * barWidth, Height: barHeight, Mark: seconds / 2 * barWidth, Text: fmt.Sprintf("%d timers in the last and the next %d seconds, at most %d in a second", total, seconds/2, most)}
	for n, states := range counts {
		y := barHeight
		for s := schemas.State(1); s.Valid(); s++ {
			if k := states[s]; k > 0 {
				h := max(k*barHeight/most, 2)
				y -= h
				c.Bars = append(c.Bars, bar{n * barWidth, max(y, 0), barWidth - 1, h, s.String(), fmt.Sprintf("%+d s: %d %s", n-seconds/2, k, s)})
			}
		}
	}
	for _, at := range []int{-60, -30, 0, 30} {
		c.Labels = append(c.Labels, label{(at + seconds/2) * barWidth, fmt.Sprintf("%+d s", at)})
	}
	return c
}
