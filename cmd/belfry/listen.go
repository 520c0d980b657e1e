package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/schemas"
)

const (
	// defaultListen is the address of listen.
	defaultListen = "127.0.0.1:8090"
	// listenQueue is the queue group of listen --nats: several processes share the callbacks.
	listenQueue = "belfry-listen"
	// maxCallback bounds the body of a callback, in bytes. Belfry's events are smaller.
	maxCallback = 8 << 20
	// maxHeard bounds the runs whose attempts listen counts.
	maxHeard = 100_000
	// listenStop bounds how long the end of listen waits for answers under way.
	listenStop = 2 * time.Second
	// listenHeaderWait bounds the time for the headers of a request.
	listenHeaderWait = 10 * time.Second
)

func (c *cli) listenCommand() *cobra.Command {
	l := &listener{c: c, heard: map[string]int{}, answers: map[int]int{}}
	var answer, subject, address string
	cmd := &cobra.Command{
		Use:   "listen [ADDRESS]",
		Short: "Print callbacks and answer them, to try them out",
		Long: `Receive callbacks over HTTP, print a line for each and answer it, until interrupted. The
command prints the URL to give a timer as its callback. ADDRESS is [HOST]:PORT (default
` + defaultListen + `). A node with the embedded server on loopback calls programs on its
host; any other needs --allow-loopback. With --nats it answers callbacks to a NATS
subject, and listens on HTTP only if an ADDRESS is given.

Without further flags every callback succeeds. --status, --fail-first, --retry-after and
--delay show what Belfry does with errors, "not now" and slow targets. LATE counts from the
due time. The command also answers the handshake of CloudEvents webhooks (OPTIONS).

With --secret-file it verifies the signature of each callback, and answers 401 if it is
wrong. Beyond loopback it listens only with secrets.`,
		Example: `  belfry listen :8090
  belfry listen --fail-first 2 --payload
  belfry listen --status 503 --retry-after 30s
  belfry listen --nats callbacks.orders --delay 5s`,
		Args: atMost(1),
	}
	fs := cmd.Flags()
	l.add(fs)
	fs.StringVar(&answer, "answer", "", "the body of the answer: text, @FILE, or @- for standard input")
	fs.StringVar(&subject, "nats", "", "answer callbacks to this NATS subject, which may have wildcards")
	complete(cmd, "status", "200", "202", "400", "410", "429", "500", "503")
	check := func(args []string) (err error) {
		if len(args) == 1 || subject == "" {
			if address, err = listenAddress(args); err != nil {
				return err
			}
		}
		if subject != "" && (strings.ContainsAny(subject, " \t") || !server.IsValidSubject(subject) || strings.HasPrefix(subject, "timers.")) {
			return usagef("--nats %.80q is not a subject, or is one of Belfry's own, which begin with timers", subject)
		}
		if err := l.check(address); err != nil {
			return err
		}
		l.answer, err = c.readData("--answer", answer)
		return err
	}
	c.connected(cmd, check, func(ctx context.Context, f *clientFlags) error {
		if subject == "" {
			return l.run(ctx, address, nil, "")
		}
		return f.connect(ctx, func(ctx context.Context, s session) error { return l.run(ctx, address, s.Conn(), subject) })
	})
	timeoutOfRequests(cmd)
	return cmd
}

// listenAddress returns the address to listen on, with a host.
func listenAddress(args []string) (string, error) {
	if len(args) == 0 {
		return defaultListen, nil
	}
	host, port, err := net.SplitHostPort(args[0])
	if _, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil {
		return "", usagef("%.80q is not an address: write [HOST]:PORT, such as :8090", args[0])
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port), nil
}

// listener answers callbacks.
type listener struct {
	c          *cli
	status     int
	failFirst  int
	delay      time.Duration
	retryAfter time.Duration
	payload    bool
	secretFile string
	answer     []byte
	verifiers  []*standardwebhooks.Webhook

	mu sync.Mutex
	// heard has the number of callbacks of each run, by its key.
	heard    map[string]int
	runs     int
	requests int
	answers  map[int]int
	started  bool  // the header of the table is printed
	err      error // of the output; it ends the command
	stop     context.CancelFunc
}

func (l *listener) add(fs *pflag.FlagSet) {
	fs.IntVar(&l.status, "status", http.StatusOK, "status of the answer, 200 to 599; over NATS all but 2xx are errors")
	fs.IntVar(&l.failFirst, "fail-first", 0, "fail the first callbacks of each run, this many, with 503 or an error of --status; then succeed")
	fs.Var(cmdline.Duration(&l.delay), "delay", "wait so long before each answer")
	fs.Var(cmdline.Duration(&l.retryAfter), "retry-after", "send Retry-After with the answers that are errors")
	fs.BoolVar(&l.payload, "payload", false, "also print the data of each event; with -o json the whole event")
	fs.StringVar(&l.secretFile, "secret-file", "", "file with the secrets of the service, one a line: verify the signatures of callbacks over HTTP")
}

// check checks the flags, before anything listens.
func (l *listener) check(address string) error {
	switch {
	case l.status < 200 || l.status > 599:
		return usagef("--status must be 200 to 599")
	case l.failFirst < 0:
		return usagef("--fail-first must not be negative")
	case l.retryAfter > 0 && l.retryAfter < time.Second:
		return usagef("--retry-after must be 1s or more: the header has whole seconds")
	case l.retryAfter > 0 && l.failFirst == 0 && success(l.status):
		return usagef("--retry-after is sent with errors alone, and these flags make none: give --fail-first, or --status 503")
	}
	if l.secretFile != "" {
		text, err := os.ReadFile(l.secretFile)
		if err != nil {
			return usagef("--secret-file: %v", err)
		}
		for _, secret := range strings.Fields(string(text)) {
			w, err := standardwebhooks.NewWebhook(secret)
			if err != nil || !strings.HasPrefix(secret, "whsec_") {
				return usagef("--secret-file: secret %d is not whsec_ and base64", len(l.verifiers)+1)
			}
			l.verifiers = append(l.verifiers, w)
		}
		if len(l.verifiers) == 0 {
			return usagef("--secret-file: %s has no secret", l.secretFile)
		}
	}
	if address == "" {
		return nil
	}
	host, _, err := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	if err == nil && len(l.verifiers) == 0 && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return usagef("%s is not a loopback address: give --secret-file, so that only signed callbacks are answered", address)
	}
	return nil
}

func success(status int) bool { return status >= 200 && status <= 299 }

// run listens until ctx ends.
func (l *listener) run(ctx context.Context, address string, nc *nats.Conn, subject string) error {
	ctx, l.stop = context.WithCancel(ctx)
	defer l.stop()
	if nc != nil {
		var handling sync.WaitGroup
		defer handling.Wait()
		sub, err := nc.QueueSubscribe(subject, listenQueue, func(m *nats.Msg) {
			handling.Go(func() { l.serveNATS(ctx, m) })
		})
		if err == nil {
			err = nc.FlushTimeout(listenHeaderWait)
		}
		if err != nil {
			return schemas.Errorf(schemas.CodeUnavailable, "subscribe to %s: %w", subject, err)
		}
		defer sub.Unsubscribe() //nolint:errcheck // fails only with the connection
		l.say("listening: the callback is %s%s", schemas.NATSScheme, subject)
	}
	if address == "" {
		<-ctx.Done()
		return l.end()
	}
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		err = fmt.Errorf("%w: %w", app.ErrInUse, err)
	}
	if err != nil {
		return fmt.Errorf("listen on %s: %w", address, err)
	}
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { l.serveHTTP(ctx, w, r) }), ReadHeaderTimeout: listenHeaderWait,
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), listenStop)
		defer cancel()
		if srv.Shutdown(late) != nil {
			srv.Close() //nolint:errcheck // ends the requests that are left
		}
	}()
	l.say("listening: the callback is http://%s/ (a node with --nats-url calls this host only with --allow-loopback)", socket.Addr())
	err = srv.Serve(socket)
	l.stop()
	<-stopped
	if !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return l.end()
}

func (l *listener) say(format string, args ...any) {
	fmt.Fprintf(l.c.err, format+"\n", args...) //nolint:errcheck // stderr is the last resort
}

// end prints the numbers of the answers.
func (l *listener) end() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []string
	for _, status := range slices.Sorted(maps.Keys(l.answers)) {
		all = append(all, fmt.Sprintf("%d answered %s", l.answers[status], answerText(status)))
	}
	text := "no callbacks"
	if len(all) > 0 {
		text = fmt.Sprintf("%d callbacks (of %d runs): %s", l.requests, l.runs, strings.Join(all, ", "))
	}
	l.say("%s", text)
	return l.err
}

// answerText describes a status; 0 is no answer.
func answerText(status int) string {
	if status == 0 {
		return "gone"
	}
	return strconv.Itoa(status)
}

// callbackLine is one line of listen. Its JSON is part of the interface.
type callbackLine struct {
	At      time.Time `json:"at"`
	ID      string    `json:"id"`
	Source  string    `json:"source"`
	Type    string    `json:"type"`
	Service string    `json:"service,omitempty"`
	// Key is the idempotency key, <timer id>.<run>.
	Key        string `json:"key,omitempty"`
	Run        uint32 `json:"run,omitempty"`
	Attempt    uint32 `json:"attempt,omitempty"`
	Scheduled  string `json:"scheduled,omitempty"`
	LatenessMs int64  `json:"lateness_ms"`
	// Status is the status of the answer; 0 if the caller was gone before it.
	Status int `json:"status"`
	// Signature is valid or invalid if secrets are given.
	Signature string `json:"signature,omitempty"`
	// Error says why the request is not a callback of Belfry.
	Error string          `json:"error,omitempty"`
	Event json.RawMessage `json:"event,omitempty"`

	data string
}

// read decodes a callback.
func (l *listener) read(hdr nats.Header, key string, body []byte) callbackLine {
	line := callbackLine{At: time.Now(), Key: key}
	e, spec, fired, err := schemas.ParseFired(hdr, body)
	if err != nil {
		line.Error = err.Error()
		return line
	}
	line.ID, line.Source, line.Type, line.Service = e.ID(), e.Source(), e.Type(), spec.Service
	line.Run, line.Attempt, line.Scheduled = fired.Run, fired.Attempt, schemas.FormatTime(fired.ScheduledMs)
	line.LatenessMs = line.At.UnixMilli() - fired.ScheduledMs
	if ahead := fired.FiredMs - line.At.UnixMilli(); ahead > 1000 { // the clock of "belfry dev" was moved
		line.LatenessMs = fired.FiredMs - fired.ScheduledMs
	}
	if !l.payload {
		return line
	}
	line.data = string(e.Data())
	if line.Event, err = json.Marshal(e); err != nil {
		line.Event, line.Error = nil, err.Error()
	}
	return line
}

// decide returns the status of the answer to a callback of a run.
func (l *listener) decide(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests++
	if _, known := l.heard[key]; !known {
		l.runs++
	}
	if len(l.heard) == maxHeard {
		clear(l.heard)
	}
	l.heard[key]++
	switch {
	case l.failFirst == 0:
		return l.status
	case l.heard[key] > l.failFirst && success(l.status):
		return l.status
	case l.heard[key] > l.failFirst:
		return http.StatusOK
	case success(l.status):
		return http.StatusServiceUnavailable
	}
	return l.status
}

// wait waits for --delay, and returns at once when ctx ends. It reports whether the caller is still there.
func (l *listener) wait(ctx, caller context.Context) bool {
	if l.delay == 0 {
		return true
	}
	timer := time.NewTimer(l.delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-caller.Done():
		return false
	}
	return true
}

// seconds is the value of Retry-After for a status; "" for none.
func (l *listener) seconds(status int) string {
	if l.retryAfter == 0 || success(status) {
		return ""
	}
	return strconv.Itoa(int((l.retryAfter + time.Second - 1) / time.Second))
}

func (l *listener) serveHTTP(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPost:
	case http.MethodOptions:
		l.handshake(w, r)
		return
	default:
		w.Header().Set("Allow", "POST, OPTIONS")
		http.Error(w, "belfry listen answers callbacks: POST", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxCallback))
	if err != nil {
		http.Error(w, "the body cannot be read, or is too large", http.StatusBadRequest)
		return
	}
	line := l.read(nats.Header(r.Header), r.Header.Get("Idempotency-Key"), body)
	if line.Signature = l.verify(body, r.Header); line.Signature == signatureInvalid {
		line.Status = http.StatusUnauthorized
		l.count()
		http.Error(w, "the signature is not valid", line.Status)
		l.print(&line)
		return
	}
	line.Status = l.decide(line.Key)
	if !l.wait(ctx, r.Context()) {
		line.Status = 0
		l.print(&line)
		return
	}
	if s := l.seconds(line.Status); s != "" {
		w.Header().Set("Retry-After", s)
	}
	kind := "text/plain; charset=utf-8"
	if json.Valid(l.answer) {
		kind = "application/json"
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(line.Status)
	w.Write(l.answer) //nolint:errcheck // the caller may be gone
	l.print(&line)
}

// The values of callbackLine.Signature.
const (
	signatureValid   = "valid"
	signatureInvalid = "invalid"
)

// verify reports whether one of the secrets has signed a callback; "" without secrets.
func (l *listener) verify(body []byte, hdr http.Header) string {
	if len(l.verifiers) == 0 {
		return ""
	}
	for _, w := range l.verifiers {
		if w.Verify(body, hdr) == nil {
			return signatureValid
		}
	}
	return signatureInvalid
}

// handshake allows callbacks of the origin that asks, at any rate.
func (l *listener) handshake(w http.ResponseWriter, r *http.Request) {
	origin := r.Header.Get("WebHook-Request-Origin")
	w.Header().Set("Allow", "POST, OPTIONS")
	if origin == "" {
		return
	}
	w.Header().Set("WebHook-Allowed-Origin", origin)
	w.Header().Set("WebHook-Allowed-Rate", "*")
	l.say("handshake: callbacks of %s are allowed at any rate", printable(origin))
}

func (l *listener) serveNATS(ctx context.Context, m *nats.Msg) {
	line := l.read(m.Header, m.Header.Get("Idempotency-Key"), m.Data)
	line.Status = l.decide(line.Key)
	l.wait(ctx, context.WithoutCancel(ctx)) // a caller over NATS does not say that it is gone
	reply := &nats.Msg{Subject: m.Reply, Data: l.answer, Header: nats.Header{}}
	if !success(line.Status) {
		reply.Header.Set(micro.ErrorCodeHeader, strconv.Itoa(line.Status))
		reply.Header.Set(micro.ErrorHeader, http.StatusText(line.Status))
	}
	if s := l.seconds(line.Status); s != "" {
		reply.Header.Set("Retry-After", s)
	}
	if m.Reply != "" {
		if err := m.RespondMsg(reply); err != nil {
			line.Error = err.Error()
		}
	}
	l.print(&line)
}

// count counts a callback that decide does not see.
func (l *listener) count() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests++
}

// print prints a callback, and counts its answer.
func (l *listener) print(line *callbackLine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers[line.Status]++
	if err := l.write(line); err != nil && l.err == nil {
		l.err = err
		l.stop()
	}
}

// listenColumns is the header of the table of listen; DATA comes with --payload.
var listenColumns = []string{"TIME", "LATE", "ATTEMPT", "ANSWER", "ID", "TYPE", "DATA"}

func (l *listener) write(line *callbackLine) error {
	if l.c.json() {
		return l.c.printJSON(line)
	}
	t := table{l.c.out, []int{l.c.zone.clockWidth(), 9, 7, 6, 20, 16}}
	columns := len(listenColumns) - 1 + count(l.payload)
	if !l.started {
		l.started = true
		if err := t.row(listenColumns[:columns]...); err != nil {
			return err
		}
	}
	answer := answerText(line.Status)
	at := l.c.zone.clock(line.At)
	if line.Error != "" {
		return t.row(at, "", "", answer, cut("not a callback of Belfry: "+line.Error, 200))
	}
	row := []string{at, fmt.Sprintf("%+.3fs", float64(line.LatenessMs)/1000), strconv.Itoa(int(line.Attempt)), answer, cut(line.ID, 40), cut(line.Type, 30), cut(line.data, 400)}
	if line.Signature == signatureInvalid {
		row[5] += " (wrong signature)"
	}
	return t.row(row[:columns]...)
}
