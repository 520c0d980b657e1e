package scheduler

import "time"

// While the server reads records of a shard for an answer, the claims of that shard wait. Reads of a
// thousand records delayed due timers by tens of milliseconds. With reads of 250, the p99 of lateness was
// 6 to 18 ms, with reads of 16 it is 2.4 ms (docs/internals/measurements.md). The read-ahead and the sweeper
// therefore read a tick in pages, with a pause between two. The limit of a page is the number of the tick's
// expected timers divided by pagesOfTick, and is from minPage to maxPage. Smaller pages would cost too many
// requests: each takes two.
const (
	pagesOfTick    = 16
	minPage        = 16
	maxPage        = 250
	pacedPagePause = 5 * time.Millisecond
)

// tickPages derives the limit of a page from the number of timers in the last tick, or in this tick so far
// if that is more. So the limit grows while an unexpectedly large tick is read: it reaches maxPage after
// some 60 pages.
type tickPages struct {
	last int // timers that the index named for the last tick; if several were read at once, their mean
	now  int // timers that it named in the pages of this tick so far
}

// limit returns the limit of the next read: of a page of a single tick, or of several ticks at once, which
// have no pages.
func (p *tickPages) limit(ticks int) int {
	if ticks > 1 {
		return maxPage
	}
	return min(max(max(p.last, p.now)/pagesOfTick, minPage), maxPage)
}

// read notes how many timers the index named in a read: of a page of a tick, or of several ticks. Their records
// may have expired. end is true if no page follows.
func (p *tickPages) read(named, ticks int, end bool) {
	p.now += named
	if end {
		p.last, p.now = p.now/max(ticks, 1), 0
	}
}
