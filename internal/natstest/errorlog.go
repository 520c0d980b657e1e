package natstest

import (
	"fmt"
	"slices"
	"sync"
)

// maxErrors bounds the messages that an errorLog keeps.
const maxErrors = 20

// errorLog keeps the first errors that a server logs, for the message of a failed start.
type errorLog struct {
	mu       sync.Mutex
	messages []string
}

func (l *errorLog) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.messages)
}

func (l *errorLog) keep(format string, v []any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.messages) < maxErrors {
		l.messages = append(l.messages, fmt.Sprintf(format, v...))
	}
}

func (l *errorLog) Errorf(format string, v ...any) { l.keep(format, v) }
func (l *errorLog) Fatalf(format string, v ...any) { l.keep(format, v) }
func (*errorLog) Noticef(string, ...any)           {}
func (*errorLog) Warnf(string, ...any)             {}
func (*errorLog) Debugf(string, ...any)            {}
func (*errorLog) Tracef(string, ...any)            {}
