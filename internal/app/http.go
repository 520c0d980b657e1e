package app

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/belfryio/belfry/internal/httpapi"
	"github.com/belfryio/belfry/scheduler"
)

// Bounds of the HTTP server.
const (
	httpHeaderTimeout = 5 * time.Second
	httpTimeout       = 30 * time.Second
	httpHeaderBytes   = 16 << 10
	httpStopBound     = time.Second
)

// newRegistry returns a registry for this node, so that several nodes can run in one
// process.
func newRegistry(a *App) (*prometheus.Registry, error) {
	reg := prometheus.NewRegistry()
	ready := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "belfry", Name: "ready", Help: "1 when /readyz answers 200."}, func() float64 {
		if a.Ready().Ready {
			return 1
		}
		return 0
	})
	build := prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "belfry", Name: "build_info", Help: "Always 1. The labels show the version, the commit, the Go version and the node's name.",
		ConstLabels: prometheus.Labels{"version": a.o.Version, "commit": cmp.Or(a.o.Commit, "unknown"), "goversion": runtime.Version(), "node": a.node}})
	build.Set(1)
	age := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "belfry", Name: "time_reading_age_seconds", Help: "Age of the last reading of the JetStream leader's clock; -1 before the first."}, func() float64 {
		if !a.running.Load() {
			return -1
		}
		return a.time.Age().Seconds()
	})
	trimmed := prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "belfry", Name: "fired_trimmed_total", Help: "Events that this node removed from TIMERS_FIRED when the stream was nearly full, because their service exceeded its share."}, func() float64 {
		if !a.running.Load() {
			return 0
		}
		return float64(a.store.FiredTrimmed())
	})
	level := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "belfry", Name: "format_level", Help: "Format level that this node writes now; -1 until it runs. It is below the newest level while a live node reads only an older one."}, func() float64 {
		if !a.running.Load() {
			return -1
		}
		return float64(a.store.Writes())
	})
	for _, c := range []prometheus.Collector{ready, build, age, trimmed, level, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return reg, nil
}

// Check is one condition of readiness.
type Check struct {
	OK bool `json:"ok"`
	// Reason explains a condition that is not met.
	Reason string `json:"reason,omitempty"`
}

// Readiness is the body of /readyz.
type Readiness struct {
	Ready  bool                    `json:"ready"`
	Node   string                  `json:"node"`
	Phase  string                  `json:"phase"`
	Checks map[string]Check        `json:"checks"`
	Shards []scheduler.ShardStatus `json:"shards,omitempty"`
}

// Ready reports whether the node serves timers, with every condition that it checks.
func (a *App) Ready() Readiness {
	r := Readiness{Node: a.node, Phase: *a.phase.Load(), Checks: map[string]Check{}}
	check := func(name string, ok bool, format string, args ...any) bool {
		c := Check{OK: ok}
		if !ok {
			c.Reason = fmt.Sprintf(format, args...)
		}
		r.Checks[name] = c
		return ok
	}
	running := a.running.Load()
	r.Ready = check("roles", running, "%s", r.Phase)
	if !running {
		return r
	}
	if a.own != nil {
		trouble := a.own.Trouble()
		if !check("server", trouble == "", "%s", trouble) {
			r.Ready = false
			return r // nats.Conn.Status may block while the server hangs
		}
	}
	connected := a.nc.Status() == nats.CONNECTED
	// Each reading of the time is a JetStream write and read, so its age also shows
	// whether the store answers.
	age := a.time.Age()
	r.Ready = check("store", connected && age <= timeTooOld, "connection is %s, last answer of JetStream %s ago", a.nc.Status(), age.Round(time.Millisecond)) && r.Ready
	r.Ready = check("time", age <= timeTooOld, "last reading of the leader's clock is %s old", age.Round(time.Millisecond)) && r.Ready
	if a.roles.scheduler != nil {
		r.Shards = a.roles.scheduler.Status()
		var suspended []string
		for _, sh := range r.Shards {
			if sh.State == scheduler.StateSuspended {
				suspended = append(suspended, strconv.Itoa(sh.Shard))
			}
		}
		r.Ready = check("shards", len(suspended) == 0, "shards %s are suspended: their lease has expired, because their clock cannot be written; their timers do not fire", strings.Join(suspended, ", ")) && r.Ready
	}
	return r
}

// serveHTTP serves the listener that New opened.
func (a *App) serveHTTP() {
	if a.listener == nil {
		return
	}
	srv := &http.Server{Handler: a.handler(), ReadHeaderTimeout: httpHeaderTimeout, ReadTimeout: httpTimeout, WriteTimeout: httpTimeout, MaxHeaderBytes: httpHeaderBytes}
	if a.api != nil {
		srv.RegisterOnShutdown(a.api.EndStreams)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		l := a.listener
		if a.httpTLS != nil {
			l = tls.NewListener(l, a.httpTLS)
		}
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			a.fail(fmt.Errorf("the HTTP server ended: %w", err))
		}
	}()
	a.onStop("http", httpStopBound, func(ctx context.Context) error {
		defer func() { <-done }()
		if err := srv.Shutdown(ctx); err != nil {
			return srv.Close() // closes connections whose clients do not finish
		}
		return nil
	})
}

func (a *App) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { a.answer(w, http.StatusOK, map[string]bool{"ok": true}) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, req *http.Request) {
		r := a.Ready()
		status := http.StatusOK
		if !r.Ready {
			status = http.StatusServiceUnavailable
		}
		if a.mayObserve(req) != nil { // a probe without a token gets only the status
			a.answer(w, status, map[string]bool{"ready": r.Ready})
			return
		}
		a.answer(w, status, r)
	})
	metrics := promhttp.HandlerFor(a.reg, promhttp.HandlerOpts{})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		if err := a.mayObserve(r); err != nil {
			a.refuse(w, err)
			return
		}
		metrics.ServeHTTP(w, r)
	})
	if a.api != nil {
		mux.Handle(httpapi.Prefix, a.api)
		mux.Handle("/", a.newConsole())
	}
	return mux
}

func (a *App) answer(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if _, err := w.Write(append(b, '\n')); err != nil {
		a.o.Log.Debug().Err(err).Msg("an HTTP client closed its connection before its answer was sent")
	}
}
