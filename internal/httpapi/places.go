package httpapi

import (
	"io"
	"sync"

	"github.com/belfryio/belfry/schemas"
)

// A client decides how fast it sends its request and reads its answer. A request therefore has one of
// the maxRequests places only while it is carried out, not while its body arrives or its answer is
// sent. The memory of its body and answer counts for maxHeldBytes. The time-outs of the HTTP server
// bound how long a client can be slow.

const (
	// maxRequests bounds the requests that are carried out at a time.
	maxRequests = 1024
	// maxHeldBytes bounds the memory of all bodies, and of all answers larger than smallAnswer. It must
	// be several times maxBatchBytes and the size of the largest event.
	maxHeldBytes = 64 << 20
	// maxHeldShare bounds the bytes of one tenant, or of one token of the default tenant, so that no
	// caller takes all. A single request may exceed it: its body has a bound of its own.
	maxHeldShare = maxHeldBytes / 4
	// smallAnswer is the size, in bytes, up to which an answer does not count: the kernel's
	// buffer of the connection takes it at once.
	smallAnswer = 16 << 10
)

// places are the limits that requests share.
type places struct {
	permits chan struct{}

	mu     sync.Mutex
	held   int64            // bytes
	shares map[holder]int64 // bytes by holder
}

func newPlaces() *places {
	return &places{permits: make(chan struct{}, maxRequests), shares: map[holder]int64{}}
}

// holder is a caller with a share of the bytes: a tenant, or a token of the default tenant. The zero
// value is a caller without a token, or a caller that is not known yet. It has no share limit.
type holder struct{ tenant, token string }

func holderOf(id Identity) holder {
	if id.Tenant != "" {
		return holder{tenant: id.Tenant}
	}
	return holder{token: id.Name}
}

// whose returns the holder for an error text.
func (h holder) whose() string {
	if h.tenant != "" {
		return "tenant " + h.tenant
	}
	return "token " + h.token
}

// place is the share of one request in the limits.
type place struct {
	of     *places
	holder holder // set before the first byte is held
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

// leave returns the place of the request, if it has one.
func (p *place) leave() {
	if p.inside {
		p.inside = false
		<-p.of.permits
	}
}

// hold counts n bytes. If they exceed a limit, it counts nothing and returns an error of
// schemas.CodeUnavailable. so is the part of the error text about the effect of the request.
func (p *place) hold(n int64, so string) error {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	share := p.of.shares[p.holder] // including the bytes of this request
	switch {
	case p.of.held+n > maxHeldBytes:
		return schemas.Errorf(schemas.CodeUnavailable, "requests and answers of slow clients take %d MiB, which is the limit; %s: try again", maxHeldBytes>>20, so)
	case p.holder != holder{} && share+n > maxHeldShare && share > p.held:
		return schemas.Errorf(schemas.CodeUnavailable, "requests and answers of slow clients of %s take %d MiB, which is the limit; %s: try again", p.holder.whose(), maxHeldShare>>20, so)
	}
	p.count(n)
	return nil
}

// count adds n bytes to the bytes of the request; the caller has locked p.of.mu.
func (p *place) count(n int64) {
	p.held += n
	p.of.held += n
	if p.of.shares[p.holder] += n; p.of.shares[p.holder] == 0 {
		delete(p.of.shares, p.holder)
	}
}

// answers returns the place and the bytes of the request, and counts its answer of n bytes. Errors are
// those of hold.
func (p *place) answers(n int) error {
	p.end()
	if n <= smallAnswer {
		return nil
	}
	return p.hold(int64(n), "the request may have taken effect")
}

// end returns the place and all bytes of the request.
func (p *place) end() {
	p.leave()
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.count(-p.held)
}

// bodyReader counts the bytes of a body as they arrive.
type bodyReader struct {
	io.Reader
	p *place
}

// Read implements io.Reader. Errors: those of the body, and schemas.CodeUnavailable.
func (r *bodyReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	if full := r.p.hold(int64(n), "nothing was done"); full != nil {
		return 0, full
	}
	return n, err
}
