package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// receiver is what the timers of a run call back.
type receiver struct {
	adder *Adder

	mu       sync.Mutex
	received []int64 // Unix nanoseconds of the first call, 0 for none yet
	seen     int
	repeated int
}

// receiverStop bounds the end of the HTTP receiver.
const receiverStop = 5 * time.Second

// newReceiver starts a receiver of the kind that Config.Callback says and makes
// the adder's timers call it back.
func (e *Env) newReceiver(ctx context.Context, a *Adder, count int) (*receiver, error) {
	rx := &receiver{adder: a, received: make([]int64, count)}
	if e.Callback == CallbackNATS {
		return rx, e.receiveNATS(ctx, rx)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	a.callback = "http://" + l.Addr().String() + "/"
	srv := &http.Server{Handler: rx, ReadHeaderTimeout: addTimeout}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(l) }()
	e.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), receiverStop)
		defer cancel()
		err := srv.Shutdown(ctx)
		if serr := <-ended; !errors.Is(serr, http.ErrServerClosed) {
			err = errors.Join(err, fmt.Errorf("the receiver of callbacks: %w", serr))
		}
		return err
	})
	return rx, nil
}

func (e *Env) receiveNATS(ctx context.Context, rx *receiver) error {
	nc, err := e.Connect("belfry bench receiver")
	if err != nil {
		return err
	}
	subject := "bench.callback." + rx.adder.prefix + "call"
	rx.adder.callback = "nats:" + subject
	sub, err := nc.Subscribe(subject, func(m *nats.Msg) {
		rx.receive(m.Header.Get("ce-id"))
		// An answer that is lost is called again, and counted.
		_ = m.Respond(nil)
	})
	if err != nil {
		return err
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, addTimeout)
	defer cancel()
	return nc.FlushWithContext(ctx)
}

func (rx *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rx.receive(r.Header.Get("ce-id"))
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (rx *receiver) receive(id string) {
	now := time.Now().UnixNano()
	n, ours := rx.adder.number([]byte(id))
	if !ours || n >= len(rx.received) {
		return
	}
	rx.mu.Lock()
	defer rx.mu.Unlock()
	if rx.received[n] != 0 {
		rx.repeated++
		return
	}
	rx.received[n] = now
	rx.seen++
}

// verify counts the timers that were not called back, and the calls that were
// early or repeated.
func (rx *receiver) verify(v *Verified, dueMs []int64) []int64 {
	rx.mu.Lock()
	defer rx.mu.Unlock()
	for n, at := range rx.received {
		switch {
		case at == 0:
			v.Missing++
			v.because("not called back")
		case at < dueMs[n]*int64(time.Millisecond):
			v.Early++
		}
	}
	v.Repeated = max(v.Repeated, rx.repeated)
	return append([]int64(nil), rx.received...)
}
