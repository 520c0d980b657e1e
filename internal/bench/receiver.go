package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"
)

// receiver serves the callbacks of a run's timers.
type receiver struct{ arrivals }

// receiverStop bounds the shutdown of the HTTP receiver.
const receiverStop = 5 * time.Second

// newReceiver starts a receiver of the kind in Config.Callback, and sets it as the callback of
// the adder's timers.
func (e *Env) newReceiver(ctx context.Context, a *Adder, count int) (*receiver, error) {
	rx := &receiver{newArrivals(a, count)}
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
	subject := "bench.callback." + rx.adder.prefix + "call"
	rx.adder.callback = "nats:" + subject
	_, err := e.subscribe(ctx, "belfry bench receiver", subject, func(m *nats.Msg) {
		rx.note([]byte(m.Header.Get("ce-id")))
		// If the answer is lost, Belfry repeats the call, and Repeated counts it.
		_ = m.Respond(nil)
	})
	return err
}

func (rx *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rx.note([]byte(r.Header.Get("ce-id")))
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// verify counts the timers that were not called back, and the calls that were early or repeated.
// It returns the time of each timer's first call, in Unix nanoseconds; 0 for none.
func (rx *receiver) verify(v *Verified, dueMs []int64) []int64 {
	called, repeated := rx.result()
	for n, at := range called {
		switch {
		case at == 0:
			v.Missing++
			v.because("not called back")
		case at < dueMs[n]*int64(time.Millisecond):
			v.Early++
		}
	}
	v.Repeated = max(v.Repeated, repeated)
	return called
}
