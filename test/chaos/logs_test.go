//go:build unix

package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// sweeperFound is the log message of a missed timer. TestSweeperFound compares it with the
// scheduler's.
const sweeperFound = "the sweeper found a timer unfired behind the low watermark"

// TestSweeperFound: the scheduler logs a missed timer with the message that logs looks for.
func TestSweeperFound(t *testing.T) {
	t.Parallel()
	const file = "../../scheduler/sweep.go"
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), `Msg("`+sweeperFound+`")`) {
		t.Errorf("%s does not log %q", file, sweeperFound)
	}
}

// logs counts the warnings and errors of the nodes, and fails the test for messages that
// must never occur.
func (c *cluster) logs(t *testing.T) string {
	t.Helper()
	counts := map[string]int{}
	for _, m := range c.nodes {
		f, err := os.Open(m.LogPath())
		if err != nil {
			t.Error(err)
			continue
		}
		s := bufio.NewScanner(f)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			var line struct{ Level, Component, Call, Message string }
			if err := json.Unmarshal(s.Bytes(), &line); err != nil {
				if text := s.Text(); strings.Contains(text, "panic") || strings.Contains(text, "fatal error") || strings.Contains(text, "DATA RACE") {
					t.Errorf("%s: %s", m.title, text)
				} else {
					counts["(plain) "+strings.SplitN(text, "(", 2)[0]]++
				}
				continue
			}
			if line.Message == sweeperFound || strings.Contains(line.Message, "panic") {
				t.Errorf("%s: %s", m.title, s.Text())
			}
			if line.Level == "warn" || line.Level == "error" {
				counts[strings.TrimSpace(fmt.Sprintf("%s %s: %s %s", line.Level, line.Component, line.Message, line.Call))]++
			}
		}
		if err := s.Err(); err != nil {
			t.Error(err)
		}
		f.Close()
	}
	var lines []string
	for text, n := range counts {
		lines = append(lines, fmt.Sprintf("%6d  %s", n, text))
	}
	slices.Sort(lines)
	slices.Reverse(lines)
	return strings.Join(lines, "\n")
}

// logPaths adds the log files of all processes.
func (c *cluster) logPaths(into map[string]string) {
	for _, m := range c.nodes {
		into[m.title+".log"] = m.LogPath()
	}
	for _, s := range c.servers {
		into[s.Name+".log"] = s.LogPath()
	}
}
