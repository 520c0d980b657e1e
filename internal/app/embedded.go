package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/pause"
)

// embedded is the node's own NATS server. It lives longer than a server instance: if an
// instance can no longer write, watch replaces it by a new instance with the same data
// folder and port, and the node's connections reconnect.
//
// Work-arounds 13 and 14 (docs/internals/nats-server.md). nats-server 2.15 does not recover from a write error. The stream rejects every later
// write, even when the disk has free space again, and some errors turn JetStream off. Only
// a new instance, which reads the data folder again, accepts writes. (To reproduce: fill
// the disk under "nats-server -js", publish, free space, publish.) The replacement loses no
// acknowledged write: acknowledged writes are in the files, and nats-server does not
// acknowledge a failed write.
//
// An instance can also hang on a full disk: a purge that cannot flush a block locks the
// stream's store twice (2.15.2, fileStore.PurgeEx, msgBlock.flushPendingMsgs and
// fileStore.rebuildState). The node cannot stop such an instance, and a second instance
// must not write to the same folder, so the process must be replaced: see ErrHung.
type embedded struct {
	o   *Options
	log zerolog.Logger
	// fail ends the node with an error.
	fail func(error)
	// room returns the free space of the data folder's disk, and the free space that the
	// server needs to start. answerWithin is answerBound. Tests replace both.
	room         func() (free, need int64)
	answerWithin time.Duration
	// password is the password of nodeUser; "" without users.
	password string

	mu   sync.Mutex
	srv  *server.Server // nil while no instance runs
	halt func()         // stops srv and waits for its end
	port int            // the port of the first instance; later instances use it again

	// hint is true after the server has logged a failed write.
	hint atomic.Bool
	// trouble is the reason why the server does not accept writes; nil if it does.
	trouble atomic.Pointer[string]

	stopWatch context.CancelFunc
	watched   chan struct{} // closed when watch has ended
}

// Bounds of watching the embedded server and replacing it.
const (
	// watchInterval is the time between two checks of the server. A check without a hint
	// of trouble is one atomic read.
	watchInterval = time.Second
	// healthEvery is the number of checks per check of every stream's health, which reads
	// the names of the folders.
	healthEvery = 10
	// restartMin and restartMax bound the wait between two attempts to replace the
	// server; it doubles until the server has been well for restartMax.
	restartMin = time.Second
	restartMax = time.Minute
	// troubleLogInterval is the time between two log lines about the same trouble.
	troubleLogInterval = time.Minute
	// answerBound bounds the server's answer to a health check. It applies only if the disk
	// was too full within hungMemory, because a busy server may be slow.
	answerBound = 10 * time.Second
	hungMemory  = 10 * time.Minute
	// haltBound bounds the stop of an instance; an instance that takes longer counts as hung.
	haltBound = 30 * time.Second
	// maxNeedBytes is the free space that the data folder's disk must have before the server
	// starts: enough for the state files that a server writes when it starts and stops, and
	// for a second of firing. On a disk smaller than ten times that, a tenth of the disk is
	// sufficient.
	maxNeedBytes = 16 << 20
)

var errNoServer = errors.New("the embedded server does not run")

// startEmbedded starts the server and returns when clients can connect, which takes as
// long as JetStream needs to read the data folder. Before that it waits, within ctx, until
// the folder's disk has free space. It reports the current step to say, and calls fail if
// the server hangs later.
func startEmbedded(ctx context.Context, o *Options, say func(string), fail func(error)) (*embedded, error) {
	e := &embedded{o: o, fail: fail, answerWithin: answerBound, log: o.Log.With().Str("component", "nats-server").Logger(), password: rand.Text(), watched: make(chan struct{})}
	e.room = func() (int64, int64) { return freeBytes(o.Data), needBytes(o.Data) }
	if err := tryPort(ctx, "nats-listen", o.NATSListen); err != nil {
		return nil, err
	}
	if err := e.waitForRoom(ctx, say); err != nil {
		return nil, err
	}
	say("the embedded server is starting")
	moved, err := o.moveStreams()
	if err != nil {
		return nil, err
	}
	if moved {
		e.log.Info().Str("account", o.account()).Msg("moved the streams to the account that the setting nats-users requires")
	}
	if err := e.start(ctx); err != nil {
		return nil, err
	}
	watch, cancel := context.WithCancel(context.WithoutCancel(ctx))
	e.stopWatch = cancel
	go func() {
		defer close(e.watched)
		e.watch(watch)
	}()
	return e, nil
}

// Unwatch stops watching the server, so that it is no longer replaced. It may be called
// more than once.
func (e *embedded) Unwatch(context.Context) error {
	e.stopWatch()
	<-e.watched
	return nil
}

// Stop stops the server. It ignores the deadline of ctx, which could interrupt the server's
// last write to disk.
func (e *embedded) Stop(ctx context.Context) error {
	err := e.Unwatch(ctx)
	e.stop()
	return err
}

func (e *embedded) stop() {
	e.mu.Lock()
	halt := e.halt
	e.srv, e.halt = nil, nil
	e.mu.Unlock()
	if halt != nil {
		halt()
	}
}

// InProcessConn connects to the current server instance without a socket. It implements
// nats.InProcessConnProvider, so connections reconnect to the next instance.
func (e *embedded) InProcessConn() (net.Conn, error) {
	e.mu.Lock()
	srv := e.srv
	e.mu.Unlock()
	if srv == nil {
		return nil, errNoServer
	}
	return srv.InProcessConn()
}

// ClientURL returns the URL for clients, or "" while no server runs.
func (e *embedded) ClientURL() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.srv == nil {
		return ""
	}
	return e.srv.ClientURL()
}

// Trouble returns the reason why the server does not accept writes, and the condition for
// its restart. It returns "" while the server accepts writes.
func (e *embedded) Trouble() string {
	if s := e.trouble.Load(); s != nil {
		return *s
	}
	return ""
}

// start starts an instance and waits until clients can connect to it.
func (e *embedded) start(ctx context.Context) error {
	so, err := e.serverOptions()
	if err != nil {
		return err
	}
	srv, err := server.NewServer(so)
	if err != nil {
		return badConfig("the embedded server refuses its settings: %w", err)
	}
	e.hint.Store(false)
	l := &serverLog{log: e.log, fatal: make(chan string, 1), writeFailed: &e.hint}
	srv.SetLoggerV2(l, false, false, false)
	started := make(chan struct{})
	go func() {
		defer close(started)
		srv.Start()
	}()
	halt := func() {
		<-started
		srv.Shutdown()
		srv.WaitForShutdown()
	}
	for {
		select {
		case text := <-l.fatal:
			halt()
			return serverFailure(e.o, text)
		case <-ctx.Done():
			halt()
			return fmt.Errorf("the embedded server was stopped while it started: %w", context.Cause(ctx))
		case <-started:
		}
		if srv.ReadyForConnections(100 * time.Millisecond) {
			break
		}
	}
	l.explain()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.srv, e.halt = srv, halt
	if addr, ok := srv.Addr().(*net.TCPAddr); ok {
		e.port = addr.Port
	}
	return nil
}

// embeddedName is the name of every embedded server. EmbeddedOnLoopback recognises one by it.
const embeddedName = "belfry"

// serverOptions returns the options of the next instance.
func (e *embedded) serverOptions() (*server.Options, error) {
	host, portText, err := net.SplitHostPort(e.o.NATSListen)
	if err != nil {
		return nil, badConfig("nats-listen: %w", err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, badConfig("nats-listen: %w", err)
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	e.mu.Lock()
	if e.port != 0 {
		port = e.port
	}
	e.mu.Unlock()
	if host == "" {
		host = "0.0.0.0"
	}
	so := &server.Options{
		ServerName: embeddedName, Host: host, Port: port, DontListen: e.o.dontListen, NoSigs: true, DisableJetStreamBanner: true,
		JetStream: true, StoreDir: e.o.Data, SyncAlways: e.o.Profile == ProfileSafe,
	}
	if so.TLSConfig, err = e.o.NATSTLS.config("nats-tls"); err != nil {
		return nil, err
	}
	so.TLSVerify, so.TLSTimeout = e.o.NATSTLS.CA != "", serverTLSTimeoutSeconds
	return so, e.o.addUsers(so, e.password)
}

// inProcessURL is a placeholder for the URL of a connection without a socket. Its scheme is
// not tls://, because the connection has no TLS.
const inProcessURL = "nats://in-process"

// options returns the options for a connection of the node itself: without a socket, and
// with the node's own user.
func (e *embedded) options() []nats.Option {
	opts := []nats.Option{
		nats.InProcessServer(e), nats.PingInterval(pingOwn),
		// While a write blocks, even nats.Conn.Status blocks.
		nats.FlusherTimeout(answerBound), nats.ReconnectOnFlusherError(),
	}
	if len(e.o.Users) > 0 {
		opts = append(opts, nats.UserInfo(nodeUser, e.password))
	}
	return opts
}

func serverFailure(o *Options, text string) error {
	if strings.Contains(text, "address already in use") { // taken since tryPort
		return portInUse("nats-listen", o.NATSListen, nil)
	}
	return fmt.Errorf("the embedded server on data folder %s does not start: %s", o.Data, text)
}

// watch replaces each instance that cannot write, until ctx ends.
func (e *embedded) watch(ctx context.Context) {
	wait, wellSince := restartMin, time.Now()
	var shortSince time.Time // time of the last check that found the disk too full
	for look := 1; pause.For(ctx, watchInterval); look++ {
		if free, need := e.room(); free < need {
			shortSince = time.Now()
		}
		short := !shortSince.IsZero() && time.Since(shortSince) < hungMemory
		why, answered := e.ask(ctx, short || look%healthEvery == 0)
		switch {
		case !answered && short:
			e.giveUp(ctx, "it does not answer since its disk was full")
			return
		case why == "":
			if time.Since(wellSince) > restartMax {
				wait = restartMin
			}
			continue
		}
		if !e.replace(ctx, why, wait) {
			return
		}
		wait, wellSince = min(2*wait, restartMax), time.Now()
	}
}

// ask calls failure and waits for it at most answerWithin, because a server that hangs does
// not answer.
func (e *embedded) ask(ctx context.Context, thorough bool) (why string, answered bool) {
	answer := make(chan string, 1)
	go func() { answer <- e.failure(thorough) }() // ends with the server, or with the process
	bound := time.NewTimer(e.answerWithin)
	defer bound.Stop()
	select {
	case why := <-answer:
		return why, true
	case <-bound.C:
		return "", false
	case <-ctx.Done():
		return "", true
	}
}

// giveUp waits until the disk has free space and then ends the node with ErrHung.
func (e *embedded) giveUp(ctx context.Context, why string) {
	why = "the embedded server hangs: " + why
	e.setTrouble(why)
	e.log.Error().Str("reason", why).Int64("free_mb", e.freeMB()).Msg("the embedded server hangs; the process is replaced when the disk has free space")
	if e.waitForRoom(ctx, e.setTrouble) != nil {
		return
	}
	e.fail(errorOf(ErrHung, nil, "%s; the process must be started again", why))
}

// failure returns the reason why the server cannot write, or "". If thorough is true it
// checks the health of every stream; otherwise only after the server logged a failed write.
func (e *embedded) failure(thorough bool) string {
	e.mu.Lock()
	srv := e.srv
	e.mu.Unlock()
	hint := e.hint.Load()
	switch {
	case srv == nil:
		return errNoServer.Error()
	case !srv.JetStreamEnabled():
		return "nats-server has turned JetStream off"
	case hint:
		// The stream's store keeps the error until a restart, and the stream's health does
		// not include every such error.
		return "nats-server cannot write to the data folder"
	case !thorough:
		return ""
	}
	for _, f := range srv.Healthz(&server.HealthzOptions{Details: true}).Errors {
		if strings.Contains(f.Error, "write error") {
			return f.Error
		}
	}
	return ""
}

// replace waits until the disk has free space, then for the duration wait, and starts a new
// instance. It retries until that succeeds, and returns false if ctx ends first.
func (e *embedded) replace(ctx context.Context, why string, wait time.Duration) bool {
	begun := time.Now()
	why = "the embedded server does not accept writes: " + why
	e.setTrouble(why)
	e.log.Error().Str("reason", why).Int64("free_mb", e.freeMB()).Msg("the embedded server does not accept writes; it is restarted when the disk has free space")
	for {
		if e.waitForRoom(ctx, e.setTrouble) != nil {
			return false
		}
		e.setTrouble(why + "; it restarts")
		if !pause.For(ctx, wait) {
			return false
		}
		if !pause.Within(haltBound, e.stop) { // the stop ends with the instance, or with the process
			e.giveUp(ctx, "it does not stop")
			return false
		}
		err := e.start(ctx)
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return false
		}
		e.log.Error().Err(err).Dur("retry_in_ms", wait).Msg("the embedded server could not be restarted; retrying")
		why = err.Error()
		wait = min(2*wait, restartMax)
	}
	e.trouble.Store(nil)
	e.log.Info().Dur("took_ms", time.Since(begun)).Int64("free_mb", e.freeMB()).Msg("the embedded server was restarted and accepts writes again")
	return true
}

func (e *embedded) setTrouble(s string) { e.trouble.Store(&s) }

// waitForRoom waits until the data folder's disk has free space. If ctx ends first, it
// returns the cause.
func (e *embedded) waitForRoom(ctx context.Context, say func(string)) error {
	var logged time.Time
	for {
		free, need := e.room()
		if free >= need {
			return nil
		}
		text := fmt.Sprintf("disk of data folder %s is full: %d MB free, needs %d MB", e.o.Data, toMB(free), toMB(need))
		say(text)
		if logged.IsZero() || time.Since(logged) > troubleLogInterval {
			logged = time.Now()
			e.log.Error().Str("folder", e.o.Data).Int64("free_mb", toMB(free)).Int64("needs_mb", toMB(need)).
				Msg("the disk of the data folder is full: waiting for free space")
		}
		if !pause.For(ctx, watchInterval) {
			return context.Cause(ctx)
		}
	}
}

func (e *embedded) freeMB() int64 {
	free, _ := e.room()
	return toMB(free)
}

// needBytes returns the free space that the folder's disk must have for the server to start.
func needBytes(dir string) int64 { return min(maxNeedBytes, totalBytes(dir)/10) }

// toMB converts bytes to MB and rounds up, so that only 0 becomes 0.
func toMB(bytes int64) int64 { return (bytes + 1<<20 - 1) >> 20 }
