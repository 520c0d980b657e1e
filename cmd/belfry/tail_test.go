package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
	"github.com/belfryio/belfry/schemas"
)

// firedStream is the stream of fired events on a server without a node.
type firedStream struct {
	t  *testing.T
	js jetstream.JetStream
}

// onServer connects to a server whose store has the stream.
func onServer(t *testing.T, srv *natstest.Server) firedStream {
	t.Helper()
	return firedStream{t, natstest.JetStream(t, srv.InProcess())}
}

// newFiredStream starts a server and creates the stream.
func newFiredStream(t *testing.T, options ...natstest.Option) (*natstest.Server, firedStream) {
	t.Helper()
	srv := natstest.Run(t, options...)
	f := onServer(t, srv)
	if _, err := f.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: schemas.StreamFired, Subjects: []string{schemas.SubjectFired("*")}}); err != nil {
		t.Fatal(err)
	}
	return srv, f
}

// fire stores the event of a timer, as a node does.
func (f firedStream) fire(svc, id string) {
	f.t.Helper()
	m := &nats.Msg{
		Subject: schemas.SubjectFired(svc),
		Header:  nats.Header{"Content-Type": {"application/cloudevents+json"}},
		Data: fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":"/s","type":"t","timersvc":%q,"timerscheduled":"2030-01-02T03:04:05Z","timerfired":"2030-01-02T03:04:05Z","timerrun":1,"timerattempt":0}`,
			id, svc),
	}
	if _, err := f.js.PublishMsg(f.t.Context(), m); err != nil {
		f.t.Fatal(err)
	}
}

// consumers returns the names of the stream's consumers.
func (f firedStream) consumers() (names []string) {
	f.t.Helper()
	stream, err := f.js.Stream(f.t.Context(), schemas.StreamFired)
	if err != nil {
		f.t.Fatal(err)
	}
	list := stream.ConsumerNames(f.t.Context())
	for name := range list.Name() {
		names = append(names, name)
	}
	if err := list.Err(); err != nil {
		f.t.Fatal(err)
	}
	return names
}

// has waits until the stream has n consumers. If tail left its ordered consumer behind, the server would keep that for longer
// than the wait.
func (f firedStream) has(n int) {
	f.t.Helper()
	var names []string
	waittest.Until(f.t, fmt.Sprintf("the stream to have %d consumers", n), func() bool {
		names = f.consumers()
		return len(names) == n
	}, func() string { return fmt.Sprintf("it has %q", names) })
}

// tailing is a tail that runs in this process.
type tailing struct {
	t         *testing.T
	out, err  logtest.Buffer
	interrupt context.CancelFunc
	ended     chan int
}

// startTail runs "belfry tail" and waits until its table has a header: then its consumer exists.
func startTail(t *testing.T, url string, args ...string) *tailing {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &tailing{t: t, interrupt: cancel, ended: make(chan int, 1)}
	env := func(name string) (string, bool) {
		if name != "NATS_URL" {
			return "", false
		}
		return url, true
	}
	go func() {
		l.ended <- run(ctx, append([]string{"tail"}, args...), process{in: strings.NewReader(""), out: &l.out, err: &l.err, lookupEnv: env})
	}()
	t.Cleanup(cancel)
	waittest.Until(t, "tail to print its header", func() bool { return strings.HasPrefix(l.out.String(), "FIRED") || len(l.ended) > 0 })
	if len(l.ended) > 0 {
		t.Fatalf("tail ended at once: %s", l.err.String())
	}
	return l
}

// shows waits until tail has shown an event with this id.
func (l *tailing) shows(id string) {
	l.t.Helper()
	waittest.Until(l.t, "tail to show event "+id, func() bool { return slices.Contains(l.events(), id) }, l.out.String, l.err.String)
}

// events returns the ids of the events that tail has shown.
func (l *tailing) events() (ids []string) {
	whole := l.out.String()
	whole = whole[:strings.LastIndexByte(whole, '\n')+1]
	for line := range strings.Lines(whole) {
		if columns := strings.Fields(line); columns[0] != "FIRED" {
			ids = append(ids, columns[4])
		}
	}
	return ids
}

// stop interrupts tail. It fails the test if tail does not end within the given time, without an error.
func (l *tailing) stop(within time.Duration) {
	l.t.Helper()
	l.interrupt()
	select {
	case code := <-l.ended:
		if code != exitOK || l.err.String() != "" {
			l.t.Errorf("interrupted tail: got exit code %d and stderr %q, want 0 and nothing", code, l.err.String())
		}
	case <-time.After(within):
		l.t.Fatalf("tail has not ended %s after the interrupt", within)
	}
}

// TestTailFromItsStart: tail shows all events from its start on. They include events that fired before its first one, while
// its consumer was lost.
func TestTailFromItsStart(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(f firedStream){
		"empty stream": func(firedStream) {},
		"older events": func(f firedStream) {
			f.fire("bills", "other")
			f.fire("orders", "last")
		},
		"purged stream": func(f firedStream) {
			f.fire("orders", "older")
			f.fire("bills", "other")
			stream, err := f.js.Stream(f.t.Context(), schemas.StreamFired)
			if err != nil {
				f.t.Fatal(err)
			}
			if err := stream.Purge(f.t.Context()); err != nil {
				f.t.Fatal(err)
			}
		},
	} {
		for _, args := range [][]string{{"orders"}, {"orders", "--since", "0s"}} {
			t.Run(name+", "+strings.Join(args, " "), func(t *testing.T) {
				t.Parallel()
				srv, f := newFiredStream(t)
				before(f)
				l := startTail(t, srv.URL(), args...)
				f.has(1)
				// Consumers in memory end with their server. Another server on the same store, which tail cannot
				// reach, stores the events.
				srv.Stop()
				away := natstest.Run(t, func(o *server.Options) { o.StoreDir, o.DontListen = srv.StoreDir(), true })
				f = onServer(t, away)
				f.fire("bills", "other")
				f.fire("orders", "missed")
				away.Stop()
				srv.Start()
				f = onServer(t, srv)
				waittest.Until(t, "tail to have a consumer again", func() bool { return len(f.consumers()) > 0 })
				f.fire("orders", "live")
				l.shows("live")
				if got, want := l.events(), []string{"missed", "live"}; !slices.Equal(got, want) {
					t.Errorf("tail shows the events %q, want %q", got, want)
				}
				l.stop(waittest.Bound)
				f.has(0)
			})
		}
	}
}

// TestTailPermissions: tail needs no permission beyond creating a consumer of the service's events and reading from it.
func TestTailPermissions(t *testing.T) {
	t.Parallel()
	srv, f := newFiredStream(t, func(o *server.Options) {
		allowed := &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: []string{"$JS.API.CONSUMER.CREATE.TIMERS_FIRED.*." + schemas.SubjectFired("orders"), "$JS.API.CONSUMER.MSG.NEXT.TIMERS_FIRED.*"}},
			Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
		}
		o.Users = []*server.User{{Username: "reader", Password: "x", Permissions: allowed}, {Username: "admin", Password: "x"}}
		o.NoAuthUser = "admin"
	})
	f.fire("orders", "older")
	l := startTail(t, strings.Replace(srv.URL(), "//", "//reader:x@", 1), "orders")
	f.fire("bills", "other")
	f.fire("orders", "live")
	l.shows("live")
	if got, want := l.events(), []string{"live"}; !slices.Equal(got, want) {
		t.Errorf("tail shows the events %q, want %q", got, want)
	}
	l.stop(waittest.Bound)
}

// TestTailInterruptedWithoutStream: an interrupt ends tail also while its stream is missing.
func TestTailInterruptedWithoutStream(t *testing.T) {
	t.Parallel()
	srv, f := newFiredStream(t)
	l := startTail(t, srv.URL(), "orders")
	asked, err := f.js.Conn().SubscribeSync("$JS.API.CONSUMER.CREATE." + schemas.StreamFired + ".>")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.js.Conn().Flush(); err != nil {
		t.Fatal(err)
	}
	if err := f.js.DeleteStream(t.Context(), schemas.StreamFired); err != nil {
		t.Fatal(err)
	}
	if _, err := asked.NextMsg(waittest.Bound); err != nil {
		t.Fatalf("tail does not ask for another consumer: %v", err)
	}
	l.stop(20 * tidyTimeout)
}

// TestTailRemovesFirstConsumer: tail creates a consumer to find its start, and removes it at once.
func TestTailRemovesFirstConsumer(t *testing.T) {
	t.Parallel()
	srv, f := newFiredStream(t)
	requests, err := f.js.Conn().SubscribeSync("$JS.API.CONSUMER.*." + schemas.StreamFired + ".>")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.js.Conn().Flush(); err != nil {
		t.Fatal(err)
	}
	// next returns the verb of the next request, and the name of its consumer.
	next := func() (verb, name string) {
		t.Helper()
		m, err := requests.NextMsg(waittest.Bound)
		if err != nil {
			t.Fatal(err)
		}
		tokens := strings.Split(m.Subject, ".")
		return tokens[3], tokens[5]
	}
	l := startTail(t, srv.URL(), "orders")
	_, first := next()
	if verb, name := next(); verb != "DELETE" || name != first {
		t.Errorf("tail sends %s %s after it has created consumer %s, want DELETE", verb, name, first)
	}
	l.stop(waittest.Bound)
}

// TestTailRefused: tail goes on after the server has refused its login several times, with a URL and with a context.
func TestTailRefused(t *testing.T) {
	t.Parallel()
	for _, named := range []bool{false, true} {
		t.Run(fmt.Sprintf("context %t", named), func(t *testing.T) {
			t.Parallel()
			var logins natstest.Logins
			srv, f := newFiredStream(t, logins.Option)
			args := []string{"orders"}
			if named {
				path := filepath.Join(t.TempDir(), "here.json")
				if err := os.WriteFile(path, fmt.Appendf(nil, `{"url":%q}`, srv.URL()), 0o600); err != nil {
					t.Fatal(err)
				}
				args = append(args, "--context", path)
			}
			l := startTail(t, srv.URL(), args...)
			logins.Refuse("belfry cli")
			srv.Restart()
			waittest.Until(t, "tail to be refused three times", func() bool { return logins.Refused(1, 3) || len(l.ended) > 0 })
			logins.Allow()
			f.fire("orders", "live")
			waittest.Until(t, "tail to show the event", func() bool { return slices.Contains(l.events(), "live") || len(l.ended) > 0 })
			l.stop(waittest.Bound)
		})
	}
}
