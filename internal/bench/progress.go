package bench

import (
	"fmt"
	"io"
	"time"
)

// progress shows the progress of a run: on a terminal one line that it overwrites, elsewhere a
// line every few seconds.
type progress struct {
	w     io.Writer
	live  bool
	begun time.Time
	last  time.Time
}

const (
	liveEvery  = 100 * time.Millisecond
	lineEvery  = 2 * time.Second
	clearToEnd = "\x1b[K"
)

func (e *Env) progress() *progress {
	return &progress{w: e.Progress, live: e.Live, begun: time.Now()}
}

// show shows a line, unless the last one is more recent than liveEvery or lineEvery. After an
// error of the writer it shows nothing more; the run continues.
func (p *progress) show(format string, args ...any) {
	every := lineEvery
	if p.live {
		every = liveEvery
	}
	now := time.Now()
	if p.w == nil || now.Sub(p.last) < every {
		return
	}
	p.last = now
	line := fmt.Sprintf("%6.1fs  ", now.Sub(p.begun).Seconds()) + fmt.Sprintf(format, args...)
	if p.live {
		line = "\r" + line + clearToEnd
	} else {
		line += "\n"
	}
	if _, err := io.WriteString(p.w, line); err != nil {
		p.w = nil
	}
}

// end clears the line.
func (p *progress) end() {
	if p.w != nil && p.live {
		if _, err := io.WriteString(p.w, "\r"+clearToEnd); err != nil {
			p.w = nil
		}
	}
}
