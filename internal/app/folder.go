package app

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
)

// OpenFolder starts the embedded server of a data folder without a node, and connects to
// it. It is for tools that work on a store while no node runs. The server opens no port.
// end closes the connection and stops the server. Errors: ErrInUse while a node uses the
// folder, and errors of schemas.CodeConfig.
func OpenFolder(ctx context.Context, o Options) (nc *nats.Conn, end func() error, err error) {
	o.NATSListen, o.NATSURL, o.dontListen = "127.0.0.1:0", "", true
	if err := o.setDefaults(); err != nil {
		return nil, nil, err
	}
	unlock, err := lockFolder(o.Data)
	if err != nil {
		return nil, nil, err
	}
	own, err := startEmbedded(ctx, &o, func(string) {}, func(error) {})
	if err != nil {
		return nil, nil, errors.Join(err, unlock(ctx))
	}
	stop := func() error { return errors.Join(own.Stop(ctx), unlock(ctx)) }
	if nc, err = connect(&o, own, "belfry tool"); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return nc, func() error {
		nc.Close()
		return stop()
	}, nil
}
