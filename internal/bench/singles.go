package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"

	"github.com/belfryio/belfry"
	"github.com/belfryio/belfry/schemas"
)

// singles adds one timer at a time.
func (a *Adder) singles(ctx context.Context, nc *nats.Conn, take func() (int, bool), due func(int) int64, pace func(int) time.Time, answered func(time.Duration)) error {
	add, err := a.single(nc, due)
	if err != nil {
		return err
	}
	return a.oneByOne(ctx, add, take, pace, answered)
}

// oneByOne calls add for one timer after the other.
func (a *Adder) oneByOne(ctx context.Context, add func(ctx context.Context, n int) error, take func() (int, bool), pace func(int) time.Time, answered func(time.Duration)) error {
	for {
		n, ok := take()
		if !ok {
			return nil
		}
		begun := time.Now()
		if pace != nil {
			begun = pace(n)
		}
		actx, cancel := context.WithTimeout(ctx, addTimeout)
		err := add(actx, n)
		cancel()
		if err != nil {
			return fmt.Errorf("an add was not answered: %w", err)
		}
		a.done.Add(1)
		if answered != nil {
			answered(time.Since(begun))
		}
	}
}

// single returns a function that adds timer n in the way of Config.Via.
func (a *Adder) single(nc *nats.Conn, due func(int) int64) (func(ctx context.Context, n int) error, error) {
	switch a.env.Via {
	case ViaClient:
		c, err := belfry.New(nc)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, n int) error { return a.call(ctx, c, n, due(n)) }, nil
	case ViaAPI:
		return func(ctx context.Context, n int) error {
			return a.request(ctx, nc, a.message(schemas.SubjectAPIPrefix+"add", n, due(n)))
		}, nil
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, n int) error {
		_, err := js.PublishMsg(ctx, a.env.sut().add(a, n, due(n)))
		return err
	}, nil
}

// request sends a request to the API. It returns an error that the answer contains.
func (a *Adder) request(ctx context.Context, nc *nats.Conn, m *nats.Msg) error {
	m, err := nc.RequestMsgWithContext(ctx, m)
	if err != nil {
		return err
	}
	if code := m.Header.Get(micro.ErrorCodeHeader); code != "" {
		return fmt.Errorf("refused: %s: %s", code, m.Header.Get(micro.ErrorHeader))
	}
	return nil
}
