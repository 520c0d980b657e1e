// Package logtest collects log lines for tests.
package logtest

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
	"testing"
)

// Buffer collects JSON log lines. Goroutines may write it while a test reads it. Its zero
// value is empty.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String returns everything written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Count returns how often text was written.
func (b *Buffer) Count(text string) int { return strings.Count(b.String(), text) }

// Line returns the first line that has part.
func (b *Buffer) Line(part string) (line string, found bool) {
	for line := range strings.Lines(b.String()) {
		if strings.Contains(line, part) {
			return strings.TrimSuffix(line, "\n"), true
		}
	}
	return "", false
}

// Lines returns the lines with a message. A line that is not JSON fails the test.
func (b *Buffer) Lines(t *testing.T, message string) []map[string]any {
	t.Helper()
	var out []map[string]any
	for line := range strings.Lines(b.String()) {
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		if m["message"] == message {
			out = append(out, m)
		}
	}
	return out
}
