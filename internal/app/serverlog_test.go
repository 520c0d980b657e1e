package app

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// TestServerLog: expected warnings are hidden and explained once, other messages are
// logged, and write errors are reported and throttled.
func TestServerLog(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	var failed atomic.Bool
	l := &serverLog{log: zerolog.New(&out).Level(zerolog.InfoLevel), fatal: make(chan string, 1), writeFailed: &failed}
	for _, stream := range []string{"KV_clock", "KV_timers_0"} {
		l.Warnf("Filestore [%s] TTL state is outdated; attempting to recover using linear scan (seq %d to %d)", stream, 1, 2)
		l.Warnf("Filestore [%s] Stream state outdated, last block has additional entries, will rebuild", stream)
	}
	l.Warnf("Plaintext passwords detected, use nkeys or bcrypt")
	if out.Len() > 0 {
		t.Errorf("after expected warnings: got log %s, want nothing at level info", out.String())
	}
	l.explain()
	l.explain()
	if strings.Count(out.String(), "\n") != 1 || !strings.Contains(out.String(), `"notes":4`) {
		t.Errorf("explain twice: got log %s, want one line that counts 4 warnings", out.String())
	}
	out.Reset()
	l.Warnf("Filestore [KV_clock] Stream state checksum did not match")
	l.Errorf("something else")
	if strings.Count(out.String(), "\n") != 2 || failed.Load() {
		t.Errorf("after two other messages: got log %s, write failed %v, want two lines and false", out.String(), failed.Load())
	}
	out.Reset()
	for range 1000 {
		l.Errorf("JetStream failed to store a msg on stream '$G > KV_clock': write 1.blk: no space left on device")
	}
	if n := strings.Count(out.String(), "\n"); n != firstCount || !failed.Load() {
		t.Errorf("after 1,000 write errors: got %d lines, write failed %v, want %d lines and true", n, failed.Load(), firstCount)
	}
	if f := (firstOnes{}); !f.allow(time.Unix(1, 0)) {
		t.Error("allow: got false for the first line, want true")
	}
}
