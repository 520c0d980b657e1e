package httpapi

import (
	"io"
	"sync/atomic"

	"github.com/belfryio/belfry/schemas"
)

// A client decides how fast it sends its request and takes its answer. So a request has one of the
// maxRequests places only while it is worked on, and not while its body arrives or its answer
// leaves. Its memory meanwhile counts for maxHeldBytes. The time-outs of the HTTP
// server bound how long a client can be slow.

const (
	// maxRequests bounds the requests that are worked on at a time.
	maxRequests = 1024
	// maxHeldBytes bounds the bytes of all bodies, and of all answers above smallAnswer, that are
	// in memory at a time. It must exceed maxBatchBytes, and the largest event, several times.
	maxHeldBytes = 64 << 20
	// smallAnswer is the size, in bytes, up to which an answer does not count: the kernel's
	// buffer of the connection takes it at once.
	smallAnswer = 16 << 10
)

// places are the limits that requests share.
type places struct {
	permits chan struct{}
	held    atomic.Int64 // bytes
}

func newPlaces() *places { return &places{permits: make(chan struct{}, maxRequests)} }

// place is the share of one request in the limits.
type place struct {
	of     *places
	inside bool
	held   int64
}

// enter takes a place. The error is of schemas.CodeUnavailable.
func (p *place) enter() error {
	select {
	case p.of.permits <- struct{}{}:
		p.inside = true
		return nil
	default:
		return schemas.Errorf(schemas.CodeUnavailable, "%d requests are being served, which is the limit; nothing was done: try again", maxRequests)
	}
}

// leave returns the place, if the request has one.
func (p *place) leave() {
	if p.inside {
		p.inside = false
		<-p.of.permits
	}
}

// hold counts n bytes; it reports false, and counts nothing, if they exceed the limit.
func (p *place) hold(n int64) bool {
	if p.of.held.Add(n) > maxHeldBytes {
		p.of.held.Add(-n)
		return false
	}
	p.held += n
	return true
}

// answers returns what the request has, and counts its answer of n bytes. It reports false if there
// is no memory for that.
func (p *place) answers(n int) bool {
	p.end()
	return n <= smallAnswer || p.hold(int64(n))
}

// end returns everything.
func (p *place) end() {
	p.leave()
	p.of.held.Add(-p.held)
	p.held = 0
}

// bodyReader counts the bytes of a body as they arrive.
type bodyReader struct {
	io.Reader
	p *place
}

// Read implements io.Reader. Its own error is of schemas.CodeUnavailable.
func (r *bodyReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if !r.p.hold(int64(n)) {
		return 0, schemas.Errorf(schemas.CodeUnavailable, "requests and answers of slow clients take %d MiB, which is the limit; nothing was done: try again", maxHeldBytes>>20)
	}
	return n, err
}
