package store

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// RegisterService records that a service has callbacks, so that every node's
// functions serve it. Known ones cost nothing.
func (s *Store) RegisterService(ctx context.Context, svc string) error {
	s.mu.Lock()
	_, known := s.services[svc]
	s.mu.Unlock()
	if known {
		return nil
	}
	if !schemas.ValidService(svc) {
		return schemas.Errorf(schemas.CodeBadRequest, "service %.80q must be 1 to %d letters, digits, '-' or '_'", svc, schemas.MaxServiceLength)
	}
	if err := s.createOnce(ctx, servicesPrefix+svc, []byte("callbacks")); err != nil {
		return err
	}
	s.mu.Lock()
	s.services[svc] = struct{}{}
	s.mu.Unlock()
	return nil
}

// WatchServices sends the registered services, those there are and those to
// come, until ctx ends; then the channel is closed. A service may come twice.
func (s *Store) WatchServices(ctx context.Context) (<-chan string, error) {
	kv, err := s.js.KeyValue(ctx, schemas.BucketServices)
	if err != nil {
		return nil, mapError("watch services", err)
	}
	ch := make(chan string)
	go func() {
		defer close(ch)
		for ctx.Err() == nil {
			s.watchServices(ctx, kv, ch)
			timer := time.NewTimer(tailRetry)
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
			timer.Stop()
		}
	}()
	return ch, nil
}

func (s *Store) watchServices(ctx context.Context, kv jetstream.KeyValue, ch chan<- string) {
	// A watch finds out after seconds that its server has restarted; it is made
	// anew as soon as the connection is back.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	forget, ok := s.pub.onBreak(cancel)
	if !ok {
		return
	}
	defer forget()
	w, err := kv.WatchAll(ctx, jetstream.IgnoreDeletes(), jetstream.MetaOnly())
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			s.log.Warn().Err(err).Msg("services cannot be watched; trying again")
		}
		return
	}
	defer func() { _ = w.Stop() }() // fails only with the connection
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-w.Updates():
			if !ok {
				return
			}
			if e == nil {
				continue // the end of what was there
			}
			select {
			case ch <- e.Key():
			case <-ctx.Done():
				return
			}
		}
	}
}
