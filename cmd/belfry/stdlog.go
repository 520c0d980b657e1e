package main

import (
	"bytes"
	"log"
	"strings"
	"time"
	"unicode"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/throttle"
)

// Bounds of the texts that reach the log through Go's standard logger.
const (
	// stdLogInterval is the minimum time between two lines. A callee can cause such lines,
	// because net/http quotes its bytes, and must not be able to fill the log.
	stdLogInterval = time.Second
	// stdLogBytes bounds one text.
	stdLogBytes = 512
)

// stdLog is the output of Go's standard logger while a node runs. Packages such as
// net/http log errors there that they cannot return to a caller. Each text becomes one
// line of the node's log, bounded, printable and throttled.
type stdLog struct {
	log zerolog.Logger
	now func() time.Time

	throttle throttle.Log
}

// routeStdLog sends Go's standard logger to l until the returned function is called.
// The logger is global to the process, so only the program does this.
func routeStdLog(l zerolog.Logger) (restore func()) {
	w, flags, prefix := log.Writer(), log.Flags(), log.Prefix()
	log.SetFlags(0)
	log.SetPrefix("")
	log.SetOutput(&stdLog{log: l.With().Str("component", "go").Logger(), now: time.Now, throttle: throttle.Log{Every: stdLogInterval}})
	return func() {
		log.SetOutput(w)
		log.SetFlags(flags)
		log.SetPrefix(prefix)
	}
}

// Write logs one text. It always succeeds.
func (s *stdLog) Write(b []byte) (int, error) {
	suppressed, ok := s.throttle.Allow(s.now())
	if !ok {
		return len(b), nil
	}
	e := s.log.Warn()
	if suppressed > 0 {
		e = e.Int("suppressed", suppressed)
	}
	e.Msg(printableText(b))
	return len(b), nil
}

// printableText makes one bounded line without control characters.
func printableText(b []byte) string {
	b = bytes.TrimSpace(b)
	cut := len(b) > stdLogBytes
	text := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(string(b[:min(len(b), stdLogBytes)]), ""))
	if cut {
		text += "…"
	}
	return text
}
