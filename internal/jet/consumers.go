package jet

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// ConsumerInfo is the state of a consumer as its leader reports it.
type ConsumerInfo = jetstream.ConsumerInfo

// Durable describes a durable consumer that acknowledges each message, shared by all
// processes.
type Durable struct {
	Stream, Name, Filter string
	// AckWait is when a message that was not acknowledged is delivered again.
	AckWait time.Duration
	// MaxAckPending bounds the messages that are delivered and not acknowledged.
	MaxAckPending int
	// AfterSeq is the sequence after which a new consumer starts.
	AfterSeq uint64
}

func (d *Durable) config() jetstream.ConsumerConfig {
	cfg := jetstream.ConsumerConfig{
		Durable: d.Name, FilterSubject: d.Filter, AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: d.AckWait, MaxAckPending: d.MaxAckPending, MaxDeliver: -1,
	}
	if d.AfterSeq > 0 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, d.AfterSeq+1
	}
	return cfg
}

// ConsumerAdmin manages the consumers of streams.
//
// Creating and describing are hedged; a deletion is sent once. Errors: ErrNoStream,
// ErrNoConsumer, ErrUnavailable; after the last one the change may have taken effect.
type ConsumerAdmin struct{ conn *Connection }

// EnsureDurable creates or updates a durable consumer.
func (c *ConsumerAdmin) EnsureDurable(ctx context.Context, d Durable) error {
	op := "consumer " + d.Name + " of " + d.Stream
	bound, release, err := c.conn.bind(ctx, op)
	if err != nil {
		return err
	}
	defer release()
	_, err = hedge(bound, func(ctx context.Context, _ func()) (jetstream.Consumer, error) {
		return c.conn.js.CreateOrUpdateConsumer(ctx, d.Stream, d.config())
	})
	return c.conn.ctxError(bound, op, err)
}

// FindDurable creates a durable consumer, or finds one of the same name and changes its
// bounds to those of d if they differ. It returns when the consumer was created, by the
// server's clock.
func (c *ConsumerAdmin) FindDurable(ctx context.Context, d Durable) (created time.Time, err error) {
	op := "consumer " + d.Name + " of " + d.Stream
	bound, release, err := c.conn.bind(ctx, op)
	if err != nil {
		return created, err
	}
	defer release()
	cons, err := hedge(bound, func(ctx context.Context, _ func()) (jetstream.Consumer, error) {
		cons, err := c.conn.js.CreateConsumer(ctx, d.Stream, d.config())
		if !errors.Is(err, jetstream.ErrConsumerExists) {
			return cons, err
		}
		// Another node was faster, or has other settings.
		if cons, err = c.conn.js.Consumer(ctx, d.Stream, d.Name); err != nil {
			return nil, err
		}
		have := cons.CachedInfo().Config
		if have.AckWait == d.AckWait && have.MaxAckPending == d.MaxAckPending {
			return cons, nil
		}
		have.AckWait, have.MaxAckPending = d.AckWait, d.MaxAckPending
		return c.conn.js.UpdateConsumer(ctx, d.Stream, have)
	})
	if err != nil {
		return created, c.conn.ctxError(bound, op, err)
	}
	return cons.CachedInfo().Created, nil
}

// DeleteConsumer deletes a consumer. Errors: ErrNoConsumer.
func (c *ConsumerAdmin) DeleteConsumer(ctx context.Context, op, stream, name string) error {
	return c.conn.change(ctx, op, "$JS.API.CONSUMER.DELETE."+stream+"."+name, nil)
}

// Consumer describes a consumer. Errors: ErrNoConsumer.
func (c *ConsumerAdmin) Consumer(ctx context.Context, op, stream, name string) (ConsumerInfo, error) {
	var r struct {
		Error *jetstream.APIError `json:"error"`
		ConsumerInfo
	}
	if err := c.conn.call(ctx, op, "$JS.API.CONSUMER.INFO."+stream+"."+name, nil, &r); err != nil {
		return r.ConsumerInfo, err
	}
	if r.Error != nil {
		return r.ConsumerInfo, c.conn.mapErr.wrap(op, r.Error)
	}
	return r.ConsumerInfo, nil
}

// Consumers describes the consumers of a stream. Errors: ErrNoStream.
func (c *ConsumerAdmin) Consumers(ctx context.Context, stream string, fn func(*ConsumerInfo)) error {
	return c.consumers(ctx, stream, func(ctx context.Context, st jetstream.Stream) error {
		list := st.ListConsumers(ctx)
		for info := range list.Info() {
			fn(info)
		}
		return list.Err()
	})
}

// ConsumerNames lists the names of the consumers of a stream. Errors: ErrNoStream.
func (c *ConsumerAdmin) ConsumerNames(ctx context.Context, stream string, fn func(name string)) error {
	return c.consumers(ctx, stream, func(ctx context.Context, st jetstream.Stream) error {
		list := st.ConsumerNames(ctx)
		for name := range list.Name() {
			fn(name)
		}
		return list.Err()
	})
}

func (c *ConsumerAdmin) consumers(ctx context.Context, stream string, list func(context.Context, jetstream.Stream) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.conn.timeout)
	defer cancel()
	st, err := c.conn.findStream(ctx, stream)
	if err != nil {
		return c.conn.mapErr.wrap("look up stream "+stream, err)
	}
	return c.conn.mapErr.wrap("list consumers of "+stream, list(ctx, st))
}
