package httpapi_test

import (
	"context"
	"encoding/json"
	"flag"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/belfryio/belfry/internal/app"
	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/internal/waittest"
)

func TestMain(m *testing.M) {
	waittest.Parallel(8)
	goleak.VerifyTestMain(m, natstest.ServerLeaks()...)
}

// node is a node that the subtests of a test share.
type node struct {
	*client
	app *app.App
}

func startNode(t *testing.T) *node {
	t.Helper()
	return startNodeWith(t, func(*app.Options) {})
}

// startNodeWith starts a node; change may set further options.
func startNodeWith(t *testing.T, change func(*app.Options)) *node {
	t.Helper()
	o := app.Options{
		Data: t.TempDir(), NATSListen: "127.0.0.1:0", HTTP: "127.0.0.1:0", Profile: app.ProfileFast, Shards: 2,
		AllowLoopback: true, Log: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.WarnLevel),
	}
	change(&o)
	a, err := app.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := a.Stop(ctx); err != nil {
			t.Errorf("Stop: got error %v, want none", err)
		}
	})
	if err := a.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &node{newClient(t, "http://"+a.HTTPAddr()), a}
}

// TestAPI runs the tests that need a real node. Their requests together reach every operation of
// the document.
func TestAPI(t *testing.T) {
	t.Parallel()
	n := startNode(t)
	t.Run("on one node", func(t *testing.T) {
		for name, test := range map[string]func(*testing.T, *node){
			"add": testAdd, "key": testIdempotencyKey, "fields": testFields, "query": testQuery, "refusals": testRefusals, "one timer": testOneTimer,
			"revision": testRevision, "list": testList, "search": testSearch, "events": testEvents, "batch": testBatch, "sdk": testSDK, "guard": testGuard, "guide": testGuide,
			"schedule": testSchedule, "update": testUpdate, "group": testGroup, "not modified": testNotModified, "dead": testDead, "rejected": testRejected, "order": testOrderKeys,
			"flows": testFlows, "flow reset": testFlowReset, "calendars": testCalendars, "stream": testStream, "overview": testOverview,
			"clock": testClock, "bulk": testBulk, "bulk dead": testBulkDead,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, n)
			})
		}
	})
	if t.Failed() || testing.Short() || strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		return // not all have run
	}
	d, err := the()
	if err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, op := range d.operations() {
		if !d.used[op] {
			t.Errorf("no test of a real node has a request of %s that succeeds", op)
		}
	}
}

// send sends a request, and repeats it while the answer is unavailable.
func (n *node) send(t *testing.T, method, path, body string, header ...string) (r reply) {
	t.Helper()
	waittest.Available(t, method+" "+path, func() bool {
		r = n.client.send(t, method, path, body, header...)
		return r.status == http.StatusServiceUnavailable
	}, func() string { return string(r.body) })
	return r
}

// want ends the test unless an answer has a status, and fails it unless all texts are in its body.
func (r reply) want(t *testing.T, status int, texts ...string) reply {
	t.Helper()
	if r.status != status {
		t.Fatalf("got status %d, want %d: %s", r.status, status, r.body)
	}
	for _, text := range texts {
		if !strings.Contains(string(r.body), text) {
			t.Errorf("got %s, want %s in it", r.body, text)
		}
	}
	return r
}

// into decodes the body of an answer.
func into[T any](t *testing.T, r reply) (v T) {
	t.Helper()
	if err := json.Unmarshal(r.body, &v); err != nil {
		t.Fatalf("%v: %s", err, r.body)
	}
	return v
}

// added is the answer to an add.
type added struct {
	Status                        int
	Timer, ID, Source, State, Due string
	Duplicate                     bool
	Code, Detail, Pointer, Type   string
	Results                       []added
}

// add adds a timer by its fields.
func (n *node) add(t *testing.T, fields string) added {
	t.Helper()
	return into[added](t, n.send(t, "POST", "/v1/timers", fields, "Content-Type", "application/json").want(t, 201))
}

// TestFields: POST /v1/timers has a field for each attribute of timers.
func TestFields(t *testing.T) {
	t.Parallel()
	for _, attribute := range timerAttributes(t) {
		if !slices.Contains(httpapi.Fields(), attribute) {
			t.Errorf("no field sets %s", attribute)
		}
	}
}
