package app

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/belfryio/belfry/functions"
	"github.com/belfryio/belfry/internal/token"
)

// errNotRunning is returned by Reconfigure before Start and after Stop.
var errNotRunning = errors.New("app: the node is not running")

// reloads holds the metrics of configuration reloads.
type reloads struct {
	successful prometheus.Gauge
	last       prometheus.Gauge
	total      *prometheus.CounterVec
}

// Values of the label result.
const (
	reloadSuccess = "success"
	reloadError   = "error"
)

func newReloads(reg prometheus.Registerer) (*reloads, error) {
	r := &reloads{
		successful: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "belfry", Name: "config_reload_successful", Help: "1 if the configuration in use is the latest one; 0 if the last reload failed and the previous one is in use."}),
		last:       prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "belfry", Name: "config_reload_success_timestamp_seconds", Help: "When the configuration in use was loaded, Unix time."}),
		total:      prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "belfry", Name: "config_reloads_total", Help: "Reloads of the configuration, by result."}, []string{"result"}),
	}
	for _, c := range []prometheus.Collector{r.successful, r.last, r.total} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	for _, result := range []string{reloadSuccess, reloadError} {
		r.total.WithLabelValues(result)
	}
	r.successful.Set(1)
	r.last.SetToCurrentTime()
	return r, nil
}

// Reconfigure replaces the settings of callbacks and the tokens of HTTP while the node runs, by
// Callbacks, HTTPTokens and HTTPToken of next. The router applies the settings to further adds,
// functions to callbacks that start afterwards, HTTP to further requests. On an error nothing has
// changed; wrong settings are an error of schemas.CodeConfig.
func (a *App) Reconfigure(next Options) error {
	err := a.reconfigure(next.Callbacks, next.tokens())
	a.NoteReload(err)
	return err
}

func (a *App) reconfigure(s functions.Settings, tokens *token.Set) error {
	if !a.running.Load() {
		return errNotRunning
	}
	if err := s.Check(); err != nil {
		return err
	}
	if err := a.checkReload(tokens); err != nil {
		return err
	}
	if f := a.roles.functions; f != nil {
		if err := f.Reconfigure(s); err != nil {
			return err
		}
	}
	if r := a.roles.router; r != nil {
		r.SetCallbacks(s.Policy())
	}
	a.tokens.Store(tokens.WithVerify(a.verify))
	return nil
}

// NoteReload counts a reload with its result. Reconfigure calls it; a caller calls it for a
// reload that failed before Reconfigure.
func (a *App) NoteReload(err error) {
	result, ok := reloadSuccess, 1.0
	if err != nil {
		result, ok = reloadError, 0
	} else {
		a.reloads.last.Set(float64(time.Now().UnixMilli()) / 1000)
	}
	a.reloads.total.WithLabelValues(result).Inc()
	a.reloads.successful.Set(ok)
}
