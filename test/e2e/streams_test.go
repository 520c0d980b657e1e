package e2e

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
	"github.com/belfryio/belfry/test/proc"
)

// streamServices is the number of services over which the idle streams are spread.
const streamServices = 10

// TestIdleStreams: 200 idle streams of fired events, slow clients and huge bodies are at the HTTP port of a node
// while timers fire. Every timer is called, and then every stream gets an event. The lateness of the timers without
// and with these clients, and the memory of the node, are logged. BELFRY_STREAMS is the number of streams, for a long run
// such as 4000.
func TestIdleStreams(t *testing.T) {
	t.Parallel()
	streams, timers := 200, 100
	if text := os.Getenv("BELFRY_STREAMS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < streamServices {
			t.Fatalf("BELFRY_STREAMS is %q; it must be a number of streams, %d or more", text, streamServices)
		}
		streams, timers = n, 2000
	}
	node := proc.New(t, proc.Options{Config: "allow-loopback: true\n"})
	node.Start()
	node.Ready(t.Context())
	c := connect(t, node.URL())
	to := newTarget(t, 0)
	fire := func(phase string) {
		t.Helper()
		due := map[string]time.Time{}
		for n := range timers {
			id := strings.ReplaceAll(fmt.Sprint(phase, n), " ", "-")
			due[id] = time.Now().Add(2 * time.Second).Truncate(time.Millisecond)
			c.publish(structured(attrs{"id": id, "timersvc": "fire", "timercallback": to.url, "timerat": schemas.FormatTime(due[id].UnixMilli())}, `{}`))
			<-time.After(10 * time.Millisecond) // 100 a second
		}
		waittest.UntilWithin(t, 4*bound, "every timer is called", func() bool { return to.has(due) })
		var late []time.Duration
		to.mu.Lock()
		for id, at := range due {
			late = append(late, to.ids[id].Sub(at))
		}
		to.mu.Unlock()
		slices.Sort(late)
		t.Logf("%s: %d timers called, late by %s (half), %s (99 %%), %s (most); the node has %.0f MB", phase, timers, late[timers/2], late[timers*99/100], late[timers-1], resident(node)/1e6)
	}
	fire("without clients")

	var open []*bufio.Reader
	for n := range streams {
		open = append(open, idleStream(t, node.Address(), fmt.Sprint("idle", n%streamServices)))
	}
	fire(fmt.Sprintf("with %d idle streams", streams))

	ctx, end := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for range streams / 20 {
		clients.Go(func() { slowBody(ctx, node.Address()) })
	}
	for range 4 {
		clients.Go(func() { hugeBodies(ctx, t, node.Address()) })
	}
	fire(fmt.Sprintf("with %d slow bodies and 4 clients of huge bodies, too", streams/20))
	end()
	clients.Wait()

	for n := range streamServices {
		c.publish(structured(attrs{"id": fmt.Sprint("wake", n), "timersvc": fmt.Sprint("idle", n), "timerafter": "10ms"}, `{}`))
	}
	for n, r := range open {
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				t.Fatalf("stream %d: %v before its event", n, err)
			}
			if strings.Contains(line, fmt.Sprintf(`"id":"wake%d"`, n%streamServices)) {
				break
			}
		}
	}
}

// has reports whether all events of due have been called.
func (x *target) has(due map[string]time.Time) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for id := range due {
		if _, ok := x.ids[id]; !ok {
			return false
		}
	}
	return true
}

// idleStream opens a stream and reads its beginning.
func idleStream(t *testing.T, addr, service string) *bufio.Reader {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(20 * time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "GET /v1/stream?service=%s HTTP/1.1\r\nHost: %s\r\n\r\n", service, addr); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReaderSize(conn, 1<<10)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("open a stream: %v", err)
		}
		if strings.HasPrefix(line, "HTTP/1.1") && !strings.Contains(line, "200") {
			t.Fatalf("open a stream: got %s", line)
		}
		if strings.HasPrefix(line, "id: ") {
			return r
		}
	}
}

// slowBody sends an add whose body comes a byte a second, again and again.
func slowBody(ctx context.Context, addr string) {
	for ctx.Err() == nil {
		body, send := io.Pipe()
		go func() {
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for {
				if _, err := send.Write([]byte("x")); err != nil {
					return
				}
				select {
				case <-ctx.Done():
					_ = send.CloseWithError(ctx.Err())
					return
				case <-tick.C:
				}
			}
		}()
		answer(ctx, addr, body, 1<<20)
		_ = body.Close()
	}
}

// hugeBodies sends adds of 64 MiB until ctx ends. Each is refused.
func hugeBodies(ctx context.Context, t *testing.T, addr string) {
	const size = 64 << 20
	zeros := make([]byte, size)
	for ctx.Err() == nil {
		if status := answer(ctx, addr, bytes.NewReader(zeros), size); status != 0 && status != http.StatusRequestEntityTooLarge && status != http.StatusServiceUnavailable {
			t.Errorf("an add of %d bytes: got status %d, want 413 or 503", size, status)
		}
	}
}

// answer returns the status of an add with a body, 0 without an answer.
func answer(ctx context.Context, addr string, body io.Reader, length int64) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+addr+"/v1/timers?in=1h&svc=slow", body)
	if err != nil {
		return 0
	}
	req.ContentLength = length
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	defer func() { _ = resp.Body.Close() }()
	return resp.StatusCode
}

var residentLine = regexp.MustCompile(`(?m)^process_resident_memory_bytes (\S+)$`)

// resident returns the memory of a node in bytes, 0 if the system does not tell.
func resident(n *proc.Node) float64 {
	m := residentLine.FindStringSubmatch(n.Metrics())
	if m == nil {
		return 0
	}
	bytes, _ := strconv.ParseFloat(m[1], 64)
	return bytes
}
