package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/belfryio/belfry/internal/clustertime"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/internal/testsize"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// A start that is interrupted leaves nats-server creating or removing a stream.
func TestMain(m *testing.M) {
	waittest.Parallel(6)
	goleak.VerifyTestMain(m, natstest.ServerLeaks()...)
}

const (
	// bound is the time limit of a wait in a test. Even on a busy machine, no wait takes that long.
	bound = waittest.Bound
	// requestBound is the time limit of a request. It is shorter than bound, so that a wait which repeats a request survives a
	// request without an answer.
	requestBound = time.Minute
)

// options returns the options of a node with free ports and a temporary folder.
func options(t *testing.T) Options {
	return Options{
		Data: t.TempDir(), NATSListen: "127.0.0.1:0", HTTP: "127.0.0.1:0", Profile: ProfileFast, Shards: 2,
		AllowLoopback: true, Version: "1.2.3", Commit: "abc", Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel),
	}
}

func start(t *testing.T, o Options) *App {
	t.Helper()
	testsize.Brief(t, "a node for each test", "TestWholeLife", "TestSettingsReachTheParts")
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, a) })
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return a
}

func stop(t *testing.T, a *App) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	if err := a.Stop(ctx); err != nil {
		t.Errorf("Stop: got error %v, want none", err)
	}
}

func connectTo(t *testing.T, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func get(t *testing.T, a *App, path string) (int, string) {
	t.Helper()
	resp, err := http.Get("http://" + a.HTTPAddr() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	return resp.StatusCode, string(b)
}

func event(id string, attrs string) []byte {
	return fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":"/test","type":"t",%s,"data":{"n":1}}`, id, attrs)
}

// addTo adds a timer by the API. It repeats the request while the answer is unavailable.
func addTo(t *testing.T, nc *nats.Conn, id, attrs string) {
	t.Helper()
	var code, text string
	waittest.Available(t, "the add of "+id, func() bool {
		m, err := nc.Request(schemas.SubjectAPIPrefix+"add", event(id, attrs), requestBound)
		if err != nil {
			t.Fatalf("add of %s: %v", id, err)
		}
		code, text = m.Header.Get(micro.ErrorCodeHeader), m.Header.Get(micro.ErrorHeader)
		return code == string(schemas.CodeUnavailable)
	}, func() string { return text })
	if code != "" {
		t.Fatalf("add of %s: %s: %s", id, code, text)
	}
}

// TestWholeLife: a timer that a NATS client adds fires and is called back.
func TestWholeLife(t *testing.T) {
	t.Parallel()
	called := make(chan *http.Request, 1)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { called <- r }))
	t.Cleanup(hook.Close)
	a := start(t, options(t))
	nc := connectTo(t, a.NATSURL())
	sub, err := nc.SubscribeSync("timers.fired.orders")
	if err != nil {
		t.Fatal(err)
	}
	ack, err := nc.Request("timers.add", event("e1", `"timerafter":"200ms","timersvc":"orders","timercallback":"`+hook.URL+`"`), requestBound)
	if err != nil || !strings.Contains(string(ack.Data), "TIMERS_ADD") {
		t.Fatalf("publish to timers.add: got %s (%v), want an acknowledgement of TIMERS_ADD", ack.Data, err)
	}
	msg, err := sub.NextMsg(bound)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(msg.Data), `"timerfired"`) {
		t.Errorf("got fired event %s, want the attribute timerfired in it", msg.Data)
	}
	if got := waittest.Receive(t, "a callback", called).Header.Get("User-Agent"); got != "belfry/1.2.3" {
		t.Errorf("callback: got User-Agent %q, want belfry/1.2.3", got)
	}
	if code, body := get(t, a, "/readyz"); code != http.StatusOK || !strings.Contains(body, `"ready":true`) {
		t.Errorf("/readyz: got status %d, body %s, want status 200 and ready", code, body)
	}
	if code, body := get(t, a, "/healthz"); code != http.StatusOK || !strings.Contains(body, "true") {
		t.Errorf("/healthz: got status %d, body %s, want status 200", code, body)
	}
	want := []string{`belfry_build_info{commit="abc",goversion="` + runtime.Version() + `",node="` + a.Node() + `",version="1.2.3"} 1`, "belfry_dead_letters 0", "belfry_rejections_expired_total 0", `belfry_stream_bytes{stream="TIMERS_ADD"}`, `belfry_stream_max_bytes{stream="timers_0"}`, "belfry_ready 1", `belfry_adds_total{result="accepted"} 1`,
		`belfry_fired_total{service="orders"} 1`, "go_goroutines", "process_cpu_seconds_total", "belfry_lateness_seconds_bucket", "belfry_low_watermark_lag_seconds{", "belfry_pending_timers{",
		"belfry_time_reading_age_seconds", `belfry_callbacks_total{outcome="success",service="orders"} 1`}
	missing := ""
	waittest.Until(t, "the metrics are complete", func() bool { // gauges of shards are set once a second
		_, metrics := get(t, a, "/metrics")
		n := slices.IndexFunc(want, func(w string) bool { return !strings.Contains(metrics, w) })
		if n >= 0 {
			missing = want[n]
		}
		return n < 0
	}, func() string { return "they lack " + missing })
}

// TestManyInOneProcess: several nodes in one process start, stop, and start again on
// their folders under the same names.
func TestManyInOneProcess(t *testing.T) {
	t.Parallel()
	for i := range 3 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			o := options(t)
			var node string
			for range 2 {
				a, err := New(o)
				if err != nil {
					t.Fatal(err)
				}
				if err := a.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
				if node != "" && a.Node() != node {
					t.Errorf("got node name %s after a restart, want %s", a.Node(), node)
				}
				node = a.Node()
				stop(t, a)
				stop(t, a) // a second Stop does nothing
				if err := a.Start(t.Context()); !errors.Is(err, ErrStopped) {
					t.Errorf("Start after Stop: got error %v, want %v", err, ErrStopped)
				}
			}
		})
	}
}

// TestDueDuringDownTime: a timer that became due while no node ran fires right after the
// start.
func TestDueDuringDownTime(t *testing.T) {
	t.Parallel()
	o := options(t)
	a := start(t, o)
	nc := connectTo(t, a.NATSURL())
	addTo(t, nc, "late", `"timerafter":"1s"`)
	nc.Close()
	stop(t, a)
	<-time.After(1100 * time.Millisecond) // the down time
	o.NATSListen = "127.0.0.1:0"
	begun := time.Now()
	b := start(t, o)
	nc = connectTo(t, b.NATSURL())
	js, err := nc.JetStream(nats.MaxWait(requestBound))
	if err != nil {
		t.Fatal(err)
	}
	sub, err := js.SubscribeSync("timers.fired.default")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sub.NextMsg(bound); err != nil {
		t.Fatal(err)
	}
	t.Logf("fired %s after the start began", time.Since(begun).Round(time.Millisecond))
}

func TestOneLineErrors(t *testing.T) {
	t.Parallel()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { busy.Close() })
	plain := natstest.Run(t, func(o *server.Options) { o.JetStream = false })
	private := natstest.Run(t, func(o *server.Options) { o.Username, o.Password = "u", "right" })
	locked := options(t)
	locked.Data = t.TempDir()
	start(t, locked)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		change func(*Options)
		is     error
		code   schemas.Code
		want   []string
	}{
		{"http port", func(o *Options) { o.HTTP = busy.Addr().String() }, ErrInUse, "", []string{busy.Addr().String(), "--http"}},
		{"nats port", func(o *Options) { o.NATSListen = busy.Addr().String() }, ErrInUse, "", []string{busy.Addr().String(), "--nats-listen"}},
		{"locked folder", func(o *Options) { o.Data = locked.Data }, ErrInUse, "", []string{locked.Data, fmt.Sprintf("process %d", os.Getpid())}},
		{"locked history folder", func(o *Options) { o.HistoryFolder = filepath.Join(locked.Data, historyFolder) }, ErrInUse, "", []string{"history folder", "--history-folder"}},
		{"folder is a file", func(o *Options) { o.Data = file }, nil, schemas.CodeConfig, []string{file}},
		{"no folder", func(o *Options) { o.Data = "" }, nil, schemas.CodeConfig, []string{"data"}},
		{"unreachable", func(o *Options) { o.NATSURL = "nats://user:hunter2@127.0.0.1:1" }, ErrUnreachable, "", []string{"127.0.0.1:1", "xxxxx@"}},
		{"wrong password", func(o *Options) { o.NATSURL = strings.Replace(private.URL(), "//", "//u:hunter2@", 1) }, ErrUnreachable, "", []string{"Authorization"}},
		{"no JetStream", func(o *Options) { o.NATSURL = plain.URL() }, nil, schemas.CodeConfig, []string{"without JetStream"}},
		{"no creds file", func(o *Options) { o.NATSURL, o.Creds = plain.URL(), "/none" }, nil, schemas.CodeConfig, []string{"creds"}},
		{"creds without url", func(o *Options) { o.Creds = "/none" }, nil, schemas.CodeConfig, []string{"nats-url"}},
		{"no ca file", func(o *Options) { o.NATSURL, o.TLS.CA = plain.URL(), "/none" }, nil, schemas.CodeConfig, []string{"tls-ca"}},
		{"role", func(o *Options) { o.Roles = []Role{"cook"} }, nil, schemas.CodeConfig, []string{"cook", "router, scheduler, functions and visibility"}},
		{"profile", func(o *Options) { o.Profile = "brave" }, nil, schemas.CodeConfig, []string{"brave", "safe"}},
		{"address", func(o *Options) { o.HTTP = "here" }, nil, schemas.CodeConfig, []string{"http", "HOST:PORT"}},
		{"port", func(o *Options) { o.NATSListen = "127.0.0.1:70000" }, nil, schemas.CodeConfig, []string{"70000"}},
		{"port in letters", func(o *Options) { o.NATSListen = "127.0.0.1:http" }, nil, schemas.CodeConfig, []string{"number"}},
		{"no such address", func(o *Options) { o.HTTP, o.Insecure = "192.0.2.1:1", true }, syscall.EADDRNOTAVAIL, "", []string{"192.0.2.1", "--http"}},
		{"replicas", func(o *Options) { o.Replicas = 3 }, nil, schemas.CodeConfig, []string{"replicas"}},
		{"shards", func(o *Options) { o.Shards = 1000 }, nil, schemas.CodeConfig, []string{"shards"}},
		{"node", func(o *Options) { o.Node = "a.b" }, nil, schemas.CodeConfig, []string{"a.b"}},
		{"retention", func(o *Options) { o.Retention = time.Millisecond }, nil, schemas.CodeConfig, []string{"retention"}},
		{"lease", func(o *Options) { o.Lease = time.Millisecond }, nil, schemas.CodeConfig, []string{"lease"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := options(t)
			tt.change(&o)
			a, err := New(o)
			if err == nil {
				err = a.Start(t.Context())
			}
			if err == nil {
				stop(t, a)
				t.Fatal("Start: got no error, want one")
			}
			if tt.is != nil && !errors.Is(err, tt.is) || tt.code != "" && schemas.CodeOf(err) != tt.code {
				t.Errorf("Start: got error %v with code %q, want %v with code %q", err, schemas.CodeOf(err), tt.is, tt.code)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Start: got error %q, want %q in it", err, want)
				}
			}
			if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("Start: got error %q, want one line without secrets", err)
			}
			if o.Data == locked.Data || o.Data == file || o.Data == "" {
				return
			}
			// Everything was released: the folder can be locked.
			unlock, err := lockFolder(o.Data)
			if err != nil {
				t.Fatalf("the data folder is still locked after the failed start: %v", err)
			}
			if err := unlock(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestShardsAreFixed: a folder with another number of shards is refused with an
// explanation.
func TestShardsAreFixed(t *testing.T) {
	t.Parallel()
	o := options(t)
	stop(t, start(t, o))
	o.Shards = 3
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	err = a.Start(t.Context())
	if schemas.CodeOf(err) != schemas.CodeConfig || !strings.Contains(err.Error(), "shards=2") || !strings.Contains(err.Error(), "shards=3") {
		t.Errorf("Start with another number of shards: got error %v, want code config and both numbers", err)
	}
	o.Shards = 0
	stop(t, start(t, o)) // uses the recorded number
}

// TestRolesOnTwoNodes: the roles can be split between nodes that share a server.
func TestRolesOnTwoNodes(t *testing.T) {
	t.Parallel()
	s := natstest.Run(t)
	o := options(t)
	o.Data, o.NATSURL = "", s.URL()
	nodes := []*App{}
	for _, roles := range [][]Role{{RoleScheduler}, {RoleRouter, RoleFunctions}, {RoleScheduler}} {
		o.Roles = roles
		nodes = append(nodes, start(t, o))
	}
	if nodes[0].Node() == nodes[2].Node() {
		t.Fatalf("two nodes on one host have the name %s, want different names", nodes[0].Node())
	}
	nc := s.Connect()
	sub, err := nc.SubscribeSync("timers.fired.default")
	if err != nil {
		t.Fatal(err)
	}
	add := func(id string) {
		t.Helper()
		addTo(t, nc, id, `"timerafter":"10ms"`)
		if _, err := sub.NextMsg(bound); err != nil {
			t.Fatal(err)
		}
	}
	add("one")
	for i, want := range []int{http.StatusNotFound, http.StatusOK, http.StatusNotFound} {
		if code, body := get(t, nodes[i], "/v1/timers"); code != want {
			t.Errorf("the HTTP API of node %d: got status %d, body %s, want %d, which only a node with a router has", i, code, body, want)
		}
	}
	stop(t, nodes[0]) // releases its clocks; the other scheduler takes over
	add("two")
	add("three")
}

// TestSameClock: a node with the embedded server assumes SameClockPPM on Linux. A node that connects to that
// server assumes DriftPPM.
func TestSameClock(t *testing.T) {
	t.Parallel()
	want := int64(clustertime.DriftPPM)
	if runtime.GOOS == "linux" { // other systems may slew the wall clock and the monotonic clock differently
		want = clustertime.SameClockPPM
	}
	embedding := start(t, options(t))
	o := options(t)
	o.Data, o.NATSURL = "", embedding.NATSURL()
	if got := embedding.time.DriftPPM(); got != want {
		t.Errorf("node with the embedded server: drift bound %d ppm, want %d", got, want)
	}
	if got := start(t, o).time.DriftPPM(); got != clustertime.DriftPPM {
		t.Errorf("node that connects to it: drift bound %d ppm, want %d", got, clustertime.DriftPPM)
	}
}

// TestTimerOfRestingService: the timer of a service at rest is called back when it is due.
func TestTimerOfRestingService(t *testing.T) {
	t.Parallel()
	called := make(chan struct{}, 1)
	hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called <- struct{}{} }))
	t.Cleanup(hook.Close)
	s := natstest.Run(t)
	o := options(t)
	o.Data, o.NATSURL = "", s.URL()
	first := start(t, o)
	addTo(t, s.Connect(), "far", `"timerafter":"10s","timersvc":"rare","timercallback":"`+hook.URL+`"`)
	stop(t, first)
	nc := s.Connect()
	st, err := store.Open(t.Context(), nc, store.Config{Node: "remover", Timeout: requestBound}, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	feed := store.Feed{Service: "rare"}
	state, err := st.ServiceState(t.Context(), feed)
	if err != nil || state.Awake || state.Rev == 0 { // an add does not wake the service
		t.Fatalf("state of the feed: got %+v (%v), want it at rest, with a key", state, err)
	}
	if err := st.RestService(t.Context(), feed, state.Rev, 0); err != nil {
		t.Fatal(err)
	}
	start(t, o)
	waittest.Receive(t, "a callback", called)
}

// TestReadiness: a node is not ready while its server is away, and ready again
// afterwards.
func TestReadiness(t *testing.T) {
	t.Parallel()
	s := natstest.Run(t)
	o := options(t)
	o.Data, o.NATSURL = "", s.URL()
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, a) })
	if r := a.Ready(); r.Ready || r.Checks["roles"].Reason != "not started" {
		t.Errorf("Ready before Start: got %+v, want the reason \"not started\"", r)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	becomes := func(want bool) {
		t.Helper()
		body := ""
		waittest.Until(t, fmt.Sprintf("ready is %t", want), func() bool {
			var code int
			code, body = get(t, a, "/readyz")
			var r Readiness
			if err := json.Unmarshal([]byte(body), &r); err != nil {
				t.Fatalf("cannot decode the answer of /readyz: %v: %s", err, body)
			}
			if r.Ready == want && (want != (code == http.StatusOK) || !want && r.Checks["store"].Reason == "") {
				t.Errorf("/readyz: got status %d, body %s, want the status that fits, and a reason of the store if it is not ready", code, body)
			}
			return r.Ready == want
		}, func() string { return "readyz is " + body })
	}
	becomes(true)
	s.Stop()
	becomes(false)
	if code, _ := get(t, a, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz without a NATS server: got status %d, want 200", code)
	}
	s.Restart()
	becomes(true)
}

// TestStopWhileStarting: Start returns when its context ends.
func TestStopWhileStarting(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond, 150 * time.Millisecond} {
		o := options(t)
		ctx, cancel := context.WithTimeout(t.Context(), after)
		a, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { stop(t, a) })
		err = a.Run(ctx)
		wg.Wait()
		cancel()
		t.Logf("after %s: %v", after, err)
		unlock, err := lockFolder(o.Data)
		if err != nil {
			t.Fatalf("the data folder is still locked after a start that ended after %s: %v", after, err)
		}
		if err := unlock(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// TestStopWithoutServer: Stop returns in time although the server is away.
func TestStopWithoutServer(t *testing.T) {
	t.Parallel()
	s := natstest.Run(t)
	o := options(t)
	o.Data, o.NATSURL = "", s.URL()
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	begun := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), StopTimeout)
	defer cancel()
	err = a.Stop(ctx) // the clocks may not be released
	t.Logf("Stop after %s: %v", time.Since(begun).Round(time.Millisecond), err)
	if time.Since(begun) > bound { // the context ends after StopTimeout
		t.Errorf("Stop took %s, want at most %s", time.Since(begun), bound)
	}
}

func TestRunStops(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	a, err := New(options(t))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	waittest.Until(t, "the node is ready", func() bool { return a.Ready().Ready })
	cancel()
	if err := waittest.Receive(t, "Run returns", done); err != nil {
		t.Error(err)
	}
}
