// Package labels bounds the labels of time series.
package labels

import (
	"sync"
	"sync/atomic"
)

const (
	// MaxServices is the number of services of a process that have time series of their
	// own. A histogram has about 20 series for each of them.
	MaxServices = 100
	// OtherServices is the label of all further services.
	OtherServices = "_other"
)

// Services maps services to values of the label `service`. The first MaxServices
// services keep their names, and the others share OtherServices. Services are named by
// users, so their number has no other bound. The zero value is ready to use. Safe for
// concurrent use.
type Services struct {
	n     atomic.Int64
	known sync.Map // service -> nil
}

// Label returns the label of a service. It does not allocate for a known service.
func (l *Services) Label(svc string) string {
	if _, ok := l.known.Load(svc); ok {
		return svc
	}
	if l.n.Add(1) > MaxServices {
		l.n.Add(-1)
		return OtherServices
	}
	if _, raced := l.known.LoadOrStore(svc, nil); raced {
		l.n.Add(-1)
	}
	return svc
}
