package scheduler

import "time"

// While the server reads records of a shard for an answer, the claims of that shard wait. A thousand records
// at once would delay due timers by tens of milliseconds, 250 by up to ten. The read-ahead and the sweeper
// therefore read a tick in about pagesOfTick pages, with a pause after each. A page has at least minPage
// timers, because each page costs two requests, and at most maxPage.
const (
	pagesOfTick    = 16
	minPage        = 16
	maxPage        = 250
	pacedPagePause = 5 * time.Millisecond
)

// tickPages chooses the size of pages by the number of timers in the last tick, or so far in this one if
// that is more: a burst is read in some 60 small pages and then in large ones.
type tickPages struct {
	last int // timers of the last tick; if several were read at once, their mean
	now  int // timers in the pages of this tick so far
}

// limit returns the limit of the next page, or of a read of several ticks at once, which has no pages.
func (p *tickPages) limit(ticks int) int {
	if ticks > 1 {
		return maxPage
	}
	return min(max(max(p.last, p.now)/pagesOfTick, minPage), maxPage)
}

// read notes how many timers a page has, or a read of several ticks. end is true for the last page of a
// tick.
func (p *tickPages) read(timers, ticks int, end bool) {
	p.now += timers
	if end {
		p.last, p.now = p.now/max(ticks, 1), 0
	}
}
