package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/doctor"
	"github.com/belfryio/belfry/internal/status"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Prefix begins the paths of all routes.
const Prefix = "/v1/"

// Identity is the caller of a request.
type Identity struct {
	// Name is the name of the caller's token, "" for a caller that needs none.
	Name string
	// Tenant is the tenant whose timers the caller reaches; "" for the default tenant.
	Tenant string
	// AllTenants lets the caller see the timers of all tenants.
	AllTenants bool
	// Payload lets the caller see the data of events, the URLs of callbacks and the answers of callees.
	Payload bool
}

// Config configures an API. All fields but Loopback, Clock, Heartbeat, StreamWrite, Streams, Log and
// Registerer are required.
type Config struct {
	// Service returns the operations for a caller. They change a timer only at revision, if it is
	// not 0, and otherwise return an error of schemas.CodeConflict. An error, with a
	// schemas.Code, says why there are none.
	Service func(id Identity, revision uint64) (Operations, error)
	// Authorize returns the caller of a request that needs a scope. Its error is an *Error.
	Authorize func(r *http.Request, scope string) (Identity, error)
	// Loopback is true if the listener is reachable only from this host. The header Host of callers
	// without a name must then be a loopback address, see guard.go.
	Loopback bool
	// Fired passes the fired events of a service to fn, one at a time and in order, until ctx ends. It
	// begins after a sequence of TIMERS_FIRED, or after the newest event if the stream has not reached
	// that sequence. It first calls begun with the sequence after which it begins. If it returns an
	// error, which has a schemas.Code, it has not called begun.
	Fired func(ctx context.Context, id Identity, service string, after uint64, begun func(after uint64), fn func(*store.Letter)) error
	// FiredAfter passes the stored events of a service in TIMERS_FIRED after a sequence to fn, in order,
	// until fn returns false. It does not wait for new events. FiredNewest returns the sequence of the
	// newest event, 0 for none.
	FiredAfter  func(ctx context.Context, id Identity, service string, after uint64, fn func(*store.Letter) bool) error
	FiredNewest func(context.Context) (uint64, error)
	// Status reads the state of the cluster. Doctor examines the cluster from this node.
	Status func(context.Context) (*status.Status, error)
	Doctor func(context.Context) ([]doctor.Finding, error)
	// Clock is the movable clock of a development node; nil on other nodes.
	Clock Clock
	// Heartbeat is the interval of comments in a stream, and StreamWrite the time in which a client
	// must take an event; 0 for the defaults.
	Heartbeat, StreamWrite time.Duration
	// Streams is the number of streams that may be open at a time, a quarter of them of one tenant; 0 for
	// 4,096.
	Streams int
	// MaxEvent returns the size of the largest event that the store accepts, in bytes. It may change.
	MaxEvent   func() int
	Log        zerolog.Logger
	Registerer prometheus.Registerer
}

// API is the handler of all paths that begin with Prefix. It ends with its server, which calls
// EndStreams.
type API struct {
	o       Config
	mux     *http.ServeMux
	places  *places
	streams *streams
	// overviews has an entry for each request for the status or the doctor, at most maxOverviews.
	overviews chan struct{}
	served    *prometheus.CounterVec
	origin    http.CrossOriginProtection
}

// New returns an API. It fails if the metrics are registered already.
func New(o Config) (*API, error) {
	o.Heartbeat, o.StreamWrite = cmp.Or(o.Heartbeat, DefaultHeartbeat), cmp.Or(o.StreamWrite, DefaultStreamWrite)
	a := &API{
		o: o, mux: http.NewServeMux(), places: newPlaces(), streams: newStreams(&o), overviews: make(chan struct{}, maxOverviews),
		served: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "belfry", Name: "http_requests_total", Help: "Requests of the HTTP API by route and error code (ok for none)."}, []string{"route", "code"}),
	}
	if o.Registerer != nil {
		if err := o.Registerer.Register(a.served); err != nil {
			return nil, fmt.Errorf("httpapi: register metrics: %w", err)
		}
	}
	for _, rt := range routes {
		a.mux.HandleFunc(rt.String(), func(w http.ResponseWriter, r *http.Request) { a.serve(&rt, w, r) })
	}
	a.mux.HandleFunc("GET "+documentPath, serveDocument)
	a.mux.HandleFunc(Prefix, a.serveNone)
	return a, nil
}

// ServeHTTP implements http.Handler.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.mux.ServeHTTP(w, r) }

// request is a request that may be carried out.
type request struct {
	*http.Request
	w       http.ResponseWriter
	api     *API
	place   place
	id      Identity
	ops     Operations
	query   url.Values
	ifMatch bool // there is a header If-Match
	// revision is the revision in If-Match; 0 for any. ops changes timers only at that revision.
	revision uint64
}

// serve carries out a request.
func (a *API) serve(rt *route, w http.ResponseWriter, r *http.Request) {
	q := &request{Request: r, w: w, api: a, place: place{of: a.places}}
	defer q.place.end()
	ans, err := q.carryOut(rt)
	if err != nil {
		ans = problemAnswer(q.precondition(err))
	}
	a.finish(rt.String(), &q.place, w, ans)
}

// carryOut carries out a request, unless maxRequests requests are being carried out.
func (q *request) carryOut(rt *route) (answer, error) {
	if err := q.place.enter(); err != nil {
		return answer{}, err
	}
	if err := q.admit(rt); err != nil {
		return answer{}, err
	}
	return rt.handle(q)
}

// admit checks the caller, and the parameters and headers that all requests have.
func (q *request) admit(rt *route) (err error) {
	if err = q.api.checkOrigin(q.Request); err != nil {
		return err
	}
	if q.id, err = q.api.o.Authorize(q.Request, rt.scope); err != nil {
		return err
	}
	q.place.holder = holderOf(q.id)
	if err = q.api.checkHost(q.id, q.Request); err != nil {
		return err
	}
	if q.query, err = parameters(q.URL.RawQuery, rt.params); err != nil {
		return err
	}
	if q.revision, q.ifMatch, err = revisionOf(q.Header, rt); err != nil {
		return err
	}
	q.ops, err = q.api.o.Service(q.id, q.revision)
	return err
}

// parameters decodes the query of a request.
func parameters(raw string, names []string) (url.Values, error) {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return nil, badRequest("the query is malformed: %w", err)
	}
	for name, values := range query {
		switch {
		case !slices.Contains(names, name) && len(names) == 0:
			return nil, badRequest("unknown parameter %.80q; this request takes no parameters", name)
		case !slices.Contains(names, name):
			return nil, badRequest("unknown parameter %.80q; use %s", name, strings.Join(names, ", "))
		case len(values) > 1 && name != "state":
			return nil, badRequest("parameter %s occurs %d times; give it once", name, len(values))
		}
	}
	return query, nil
}

// caller returns the caller for the history of a timer.
func (q *request) caller() schemas.Caller { return schemas.Caller{User: q.id.Name} }

// ref returns the timer that a request names, by its path or by the parameters id and source.
func (q *request) ref() schemas.TimerRef {
	return schemas.TimerRef{Timer: q.PathValue("timer"), ID: q.query.Get("id"), Source: q.query.Get("source")}
}

// fail answers a request with an error.
func (a *API) fail(w http.ResponseWriter, err error) {
	pl := place{of: a.places}
	defer pl.end()
	a.finish("none", &pl, w, problemAnswer(err))
}

// serveNone answers a request that matches no route.
func (a *API) serveNone(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		probe := &http.Request{Method: method, URL: r.URL, Host: r.Host}
		if _, pattern := a.mux.Handler(probe); pattern != Prefix && pattern != "" {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		a.fail(w, &Error{Status: http.StatusNotFound, Code: codeNoRoute, Detail: "no such path; " + documentPath + " lists all paths"})
		return
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	a.fail(w, &Error{Status: http.StatusMethodNotAllowed, Code: codeNoMethod, Detail: "this path takes " + strings.Join(allowed, ", ")})
}
