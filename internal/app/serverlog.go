package app

import (
	"fmt"
	"strings"
	"sync/atomic"

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

// explain says once what the lowered warnings mean.
func (l *serverLog) explain() {
	if n := l.unclean.Swap(0); n > 0 {
		l.log.Info().Int64("notes", n).Msg("the last process did not close the data folder (it was killed, or the power failed): nats-server rebuilt its indexes from the data files; this is normal")
	}
}

func (l *serverLog) Noticef(format string, v ...any) { l.log.Debug().Msgf(format, v...) }
func (l *serverLog) Errorf(format string, v ...any)  { l.log.Error().Msgf(format, v...) }
func (l *serverLog) Debugf(string, ...any)           {}
func (l *serverLog) Tracef(string, ...any)           {}
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
