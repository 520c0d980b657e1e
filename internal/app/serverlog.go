package app

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
)

// serverLog carries the embedded server's log into the node's. A Fatalf must not end
// the process, so startServer gets its text.
//
// Some of nats-server's warnings are expected. They are on level debug here, and the
// node says once what they mean; see unclean and quiet.
type serverLog struct {
	log   zerolog.Logger
	fatal chan string
	// unclean counts the warnings about a data folder that was not closed in order.
	unclean atomic.Int64
	// writeFailed is set when the server reports an error of the disk.
	writeFailed *atomic.Bool
	// first bounds the lines about such errors: nats-server repeats them.
	first firstOnes
	// clients bounds the lines about clients that are not let in.
	clients firstOnes
}

// uncleanWarnings are parts of the warnings with which nats-server 2.15 reads a data
// folder whose last process was killed: the notes that it writes when it stops are
// missing or older than the data, so it rebuilds them from the data. Reports of
// damaged files ("checksum did not match", "corrupt") are not among them.
var uncleanWarnings = []string{
	"TTL state is outdated",
	"Message scheduling state is outdated",
	"Sourcing state is outdated",
	"Stream state outdated",
	"Stream state detected prior state",
	"Recovering stream state from index errored: prior state file",
}

// quietWarnings are parts of warnings that say nothing about an embedded server.
var quietWarnings = []string{
	// Passwords in the config file may be plain; the node's own is random and never stored.
	"Plaintext passwords detected",
}

// writeErrors are parts of the errors after which nats-server 2.15 refuses every write
// to a stream, or turns JetStream off. They begin in either case.
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

// explain logs once what the lowered warnings mean.
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
			return // watch says once a minute what is the matter
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

// clientErrors are parts of nats-server's reports about refused clients. Any host that
// reaches the port can cause them, so their number is bounded.
var clientErrors = []string{"authentication error", "TLS handshake error", "Client parser ERROR", "authorization violation"}

// firstOnes lets through the first lines of each interval.
type firstOnes struct {
	mu    sync.Mutex
	since time.Time
	count int
}

// Bounds of lines about the same trouble.
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
