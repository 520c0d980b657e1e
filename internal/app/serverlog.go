package app

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// serverLog writes the embedded server's log to the node's log. Fatalf does not end the
// process; startServer receives its text instead.
//
// Some of nats-server's warnings are expected. serverLog writes them at level debug, and
// logs one explanation; see uncleanWarnings and quietWarnings.
type serverLog struct {
	log   zerolog.Logger
	fatal chan string
	// unclean counts the warnings about a data folder that was not closed in order.
	unclean atomic.Int64
	// writeFailed is set when the server reports an error of the disk.
	writeFailed *atomic.Bool
	// first throttles lines about such errors, which nats-server repeats.
	first firstOnes
	// clients throttles lines about refused clients.
	clients firstOnes
}

// Work-around 16: uncleanWarnings lists parts of the warnings that nats-server 2.15 logs when it opens a data
// folder whose last process was killed. The state files that it writes when it stops are
// then missing or older than the data, so it rebuilds them. The list has no reports of
// damaged files ("checksum did not match", "corrupt").
var uncleanWarnings = []string{
	"TTL state is outdated",
	"Message scheduling state is outdated",
	"Sourcing state is outdated",
	"Stream state outdated",
	"Stream state detected prior state",
	"Recovering stream state from index errored: prior state file",
}

// quietWarnings lists parts of warnings that do not apply to an embedded server.
var quietWarnings = []string{
	// Passwords in the config file may be plain; the node's own is random and never stored.
	"Plaintext passwords detected",
}

// writeErrors lists parts of the errors after which nats-server 2.15 rejects every write
// to a stream, or turns JetStream off. nats-server writes the first one with C and c.
var writeErrors = []string{"ritical write error", "no space left on device", "DISABLED"}

func (l *serverLog) Warnf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	switch {
	case containsAny(text, uncleanWarnings):
		l.unclean.Add(1)
		l.log.Debug().Msg(text)
	case containsAny(text, quietWarnings):
		l.log.Debug().Msg(text)
	default:
		l.log.Warn().Msg(text)
	}
}

// explain logs one line that explains the warnings that serverLog wrote at level debug.
func (l *serverLog) explain() {
	if n := l.unclean.Swap(0); n > 0 {
		l.log.Info().Int64("notes", n).Msg("the last process did not close the data folder (it was killed, or the power failed): nats-server rebuilt its indexes from the data files; this is normal")
	}
}

func (l *serverLog) Noticef(format string, v ...any) { l.log.Debug().Msgf(format, v...) }
func (l *serverLog) Errorf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	if containsAny(text, writeErrors) {
		l.writeFailed.Store(true)
		if !l.first.allow(time.Now()) {
			return // watch logs the reason once a minute
		}
	}
	if containsAny(text, clientErrors) {
		if l.clients.allow(time.Now()) {
			l.log.Warn().Msg(text)
		}
		return
	}
	l.log.Error().Msg(text)
}

// clientErrors lists parts of nats-server's reports about refused clients. Any host that
// reaches the port can cause them, so serverLog throttles them.
var clientErrors = []string{"authentication error", "TLS handshake error", "Client parser ERROR", "authorization violation"}

// firstOnes admits the first lines of each interval and drops the others.
type firstOnes struct {
	mu    sync.Mutex
	since time.Time
	count int
}

// Limits of a firstOnes.
const (
	firstInterval = time.Minute
	firstCount    = 10
)

func (f *firstOnes) allow(now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.since) >= firstInterval {
		f.since, f.count = now, 0
	}
	f.count++
	return f.count <= firstCount
}
func (l *serverLog) Debugf(string, ...any) {}
func (l *serverLog) Tracef(string, ...any) {}
func (l *serverLog) Fatalf(format string, v ...any) {
	select {
	case l.fatal <- fmt.Sprintf(format, v...):
	default: // the first one is the reason
	}
}

func containsAny(text string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(text, p) {
			return true
		}
	}
	return false
}
