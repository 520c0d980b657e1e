package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/certtest"
	"github.com/belfryio/belfry/internal/tcptest"
	"github.com/belfryio/belfry/internal/throttle"
)

// logLine is one line of a node's log.
type logLine struct {
	Level, Component, Message string
	Shard                     *int
}

// logLines parses the whole log of a process. Every line must be JSON.
func logLines(t *testing.T, n *node) []logLine {
	t.Helper()
	var out []logLine
	for line := range strings.Lines(n.log.String()) {
		var l logLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Errorf("stderr has the line %q, want JSON: %v", line, err)
			continue
		}
		out = append(out, l)
	}
	return out
}

// calm checks that a start has logged no warning and no line of a single shard.
func calm(t *testing.T, n *node) {
	t.Helper()
	n.logged(t, "shards taken")
	for _, l := range logLines(t, n) {
		if l.Level != "info" || l.Shard != nil {
			t.Errorf("the log of a normal start has %+v, want only lines of level info without a shard", l)
		}
	}
}

// TestStartLog: the first start, a start after SIGTERM, and a start after SIGKILL, which
// explains nats-server's messages, log no warning.
func TestStartLog(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	calm(t, n)
	ok[added](t, n, "add", "--in", "1h")
	n.stop(t)
	n = serve(t, n.data)
	calm(t, n)
	if strings.Contains(n.log.String(), "did not close the data folder") {
		t.Errorf("the log of a start after SIGTERM mentions an unclean stop, want none: %s", n.log.String())
	}
	for range 3 {
		ok[added](t, n, "add", "--in", "1h")
		if err := n.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-n.done
		n = serve(t, n.data)
		calm(t, n)
		if strings.Count(n.log.String(), "did not close the data folder") != 1 {
			t.Errorf("the log of a start after SIGKILL does not explain the unclean stop exactly once: %s", n.log.String())
		}
	}
	n.stop(t)
}

// TestHostileCalleeStaysInTheLog: net/http reports bytes that a callee sends on an idle
// connection with the standard logger. They appear as JSON lines on stderr.
func TestHostileCalleeStaysInTheLog(t *testing.T) {
	t.Parallel()
	callee := tcptest.Serve(t, func(c net.Conn) {
		b := make([]byte, 64<<10)
		if _, err := c.Read(b); err != nil {
			return
		}
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		<-time.After(200 * time.Millisecond) // the connection is idle by then
		fmt.Fprint(c, "HTTP/1.1 500 \x1b[31mhostile\r\n\r\n\n{\"level\":\"error\",\"message\":\"forged\"}\n")
		c.Read(b) // until the node closes
	})
	n := serve(t, "", "--allow-loopback")
	ok[added](t, n, "add", "--in", "1ms", "--callback", "http://"+callee+"/")
	line := n.logged(t, "Unsolicited response") // net/http's report
	if !strings.HasPrefix(line, "{") || strings.Contains(line, "\x1b") {
		t.Errorf("net/http's report is logged as %q, want one line of JSON without control characters", line)
	}
	for _, l := range logLines(t, n) {
		if l.Message == "forged" {
			t.Error("the log has a line that the callee wrote, want none")
		}
	}
	n.stop(t)
}

// TestStdLog: each text becomes one line of bounded length; lines are throttled; the
// standard logger is restored.
func TestStdLog(t *testing.T) {
	var out bytes.Buffer
	before := log.Writer()
	now := time.Unix(1, 0)
	s := &stdLog{log: zerolog.New(&out), now: func() time.Time { return now }, throttle: throttle.Log{Every: stdLogInterval}}
	for range 5 {
		if n, err := s.Write([]byte("a\n\x1b[31mb")); n != 8 || err != nil {
			t.Fatalf("Write: got %d, %v, want 8 bytes", n, err)
		}
	}
	now = now.Add(stdLogInterval)
	if _, err := s.Write(bytes.Repeat([]byte("é"), stdLogBytes)); err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		lines = append(lines, line)
	}
	if len(lines) != 2 || !strings.Contains(lines[0], `"a  [31mb"`) || !strings.Contains(lines[1], `"suppressed":4`) || len(lines[1]) > 2*stdLogBytes {
		t.Errorf("log: got %s, want two lines, the second cut and with 4 suppressed lines", out.String())
	}
	restore := routeStdLog(zerolog.New(&out))
	log.Print("routed")
	restore()
	if !strings.Contains(out.String(), `"routed"`) || log.Writer() != before {
		t.Errorf("log: got %s, want the line \"routed\" and the standard logger restored", out.String())
	}
}

// TestSecretFilesOfOthers: the node warns about each file with secrets that every user
// can read, and about no other file.
func TestSecretFilesOfOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tokens := file("tokens", "[]", 0o644)
	open, private := file("open", secret+"\n", 0o644), file("private", secret+"\n", 0o600)
	ca := certtest.New(t).File()
	if err := os.Chmod(ca, 0o644); err != nil { //nolint:gosec // a certificate is public
		t.Fatal(err)
	}
	for text, want := range map[string][]string{
		"services: {a: {secret-file: " + open + ", tls-ca: " + ca + "}}": {open},
		"services: {a: {secret-file: " + private + "}}":                  nil,
		"services: {a: {secret: " + secret + "}}":                        {"belfry.yaml"},
		"nats-user: a\nnats-password-file: " + open:                      {open},
		"http-token-file: " + open + "\nhttp-tokens: " + tokens:          {open, tokens},
		"nats-users: [{name: a, admin: true, password: x}]":              {"belfry.yaml"},
	} {
		config := writeConfig(t, text)
		if err := os.Chmod(config, 0o644); err != nil { //nolint:gosec // the finding of the test
			t.Fatal(err)
		}
		n := serve(t, "", "--config", config)
		for _, path := range want {
			if !strings.Contains(n.log.String(), path+`"`) {
				t.Errorf("config %s: the log has no warning about %s: %s", text, path, n.log.String())
			}
		}
		if got := strings.Count(n.log.String(), "chmod 600 "); got != len(want) {
			t.Errorf("config %s: got %d warnings, want %d: %s", text, got, len(want), n.log.String())
		}
		n.stop(t)
	}
}
