package jet

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Requests that manage streams are hedged as reads are. All of them may be repeated:
// creating a stream that exists with the same settings succeeds.

// StreamConfig holds the settings of a stream.
type StreamConfig = jetstream.StreamConfig

// StreamInfo is the state of a stream as its leader reports it.
type StreamInfo = jetstream.StreamInfo

// Values of StreamConfig.
const (
	FileStorage     = jetstream.FileStorage
	WorkQueuePolicy = jetstream.WorkQueuePolicy
	DiscardNew      = jetstream.DiscardNew
	DiscardOld      = jetstream.DiscardOld
)

// Server describes the connected server.
type Server struct {
	// Major and Minor are its version; 0 if it does not say.
	Major, Minor int
	Version      string
	// URL may hold credentials.
	URL string
	// LimitedConsumers says that the account limits the number of consumers.
	LimitedConsumers bool
}

// AtomicBatches reports whether the server has atomic batches, which came with 2.12.
func (s *Server) AtomicBatches() bool { return s.Major > 2 || s.Minor >= 12 }

// Older reports whether the server is older than a version.
func (s *Server) Older(major, minor int) bool {
	return s.Major > 0 && (s.Major < major || s.Major == major && s.Minor < minor)
}

// Server asks the server for the account. Errors: ErrDisabled without JetStream;
// ErrUnavailable.
func (c *Client) Server(ctx context.Context) (Server, error) {
	s := Server{Version: c.nc.ConnectedServerVersion(), URL: c.nc.ConnectedUrl()}
	if n, err := fmt.Sscanf(s.Version, "%d.%d", &s.Major, &s.Minor); n != 2 || err != nil {
		s.Major, s.Minor = 0, 0
	}
	info, err := hedge(ctx, func(ctx context.Context, _ func()) (*jetstream.AccountInfo, error) { return c.js.AccountInfo(ctx) })
	switch {
	case err == nil:
		s.LimitedConsumers = info.Limits.MaxConsumers > 0 || len(info.Tiers) > 0
		return s, nil
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, nats.ErrNoResponders):
		return s, c.mapErr.errorf(ErrDisabled, "nats-server runs without JetStream; start it with -js, or with a jetstream block in its config")
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return s, c.mapErr.errorf(ErrDisabled, "JetStream is not enabled for this account")
	}
	return s, c.mapErr.wrap("read the account's JetStream information", err)
}

// MaxPayload returns the server's max_payload in bytes; 0 if it is unknown.
func (c *Client) MaxPayload() int64 { return c.nc.MaxPayload() }

// Stream describes a stream. Errors: ErrNoStream.
func (c *Client) Stream(ctx context.Context, name string) (StreamInfo, error) {
	return c.streamInfo(ctx, name, nil)
}

// Subjects returns the number of messages of each subject of a stream, with its state.
// Errors: ErrNoStream.
func (c *Client) Subjects(ctx context.Context, name string) (StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	op := "count the messages of " + name
	stream, err := c.findStream(ctx, name)
	if err != nil {
		return StreamInfo{}, c.mapErr.wrap(op, err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return StreamInfo{}, c.mapErr.wrap(op, err)
	}
	return *info, nil
}

func (c *Client) streamInfo(ctx context.Context, name string, body []byte) (StreamInfo, error) {
	var r struct {
		Error *jetstream.APIError `json:"error"`
		StreamInfo
	}
	op := "look up stream " + name
	if err := c.call(ctx, op, "$JS.API.STREAM.INFO."+name, body, &r); err != nil {
		return r.StreamInfo, err
	}
	if r.Error != nil {
		return r.StreamInfo, c.mapErr.wrap(op, r.Error)
	}
	return r.StreamInfo, nil
}

func (c *Client) findStream(ctx context.Context, name string) (jetstream.Stream, error) {
	return hedge(ctx, func(ctx context.Context, _ func()) (jetstream.Stream, error) {
		return c.js.Stream(ctx, name)
	})
}

// Streams describes the streams of the account, in no order.
func (c *Client) Streams(ctx context.Context, fn func(*StreamInfo)) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	list := c.js.ListStreams(ctx)
	for info := range list.Info() {
		fn(info)
	}
	return c.mapErr.wrap("list streams", list.Err())
}

// CreateStream creates a stream. Errors: ErrExists if one of that name has other
// settings; ErrFull if there is no room for its byte limit; ErrRefused; ErrUnavailable,
// also while the cluster is not whole or has no leader.
func (c *Client) CreateStream(ctx context.Context, cfg StreamConfig) error {
	_, err := hedge(ctx, func(ctx context.Context, _ func()) (jetstream.Stream, error) {
		return c.js.CreateStream(ctx, cfg)
	})
	return c.streamError("create stream "+cfg.Name, err)
}

// UpdateStream changes the settings of a stream. Errors: as CreateStream.
func (c *Client) UpdateStream(ctx context.Context, cfg StreamConfig) error {
	_, err := hedge(ctx, func(ctx context.Context, _ func()) (jetstream.Stream, error) {
		return c.js.UpdateStream(ctx, cfg)
	})
	return c.streamError("change stream "+cfg.Name, err)
}

func (c *Client) streamError(op string, err error) error {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return c.mapErr.wrap(op, err)
	}
	switch {
	case api.ErrorCode == codeStreamNameInUse:
		return c.mapErr.errorf(ErrExists, "%s: %w", op, err)
	case api.ErrorCode == codeResources, api.ErrorCode == codeStorageExceeded,
		api.ErrorCode == codeNoPeers && strings.Contains(api.Description, "insufficient storage"):
		return c.mapErr.errorf(ErrFull, "%s: %w", op, err)
	case api.Code != 503 && api.ErrorCode != codeNoPeers:
		// The answer will be the same the next time, unlike that of a cluster which is not
		// whole.
		return c.mapErr.errorf(ErrRefused, "%s: %w", op, err)
	}
	return c.mapErr.wrap(op, err)
}

// DeleteMsg deletes a message. Errors: ErrNotFound.
func (c *Client) DeleteMsg(ctx context.Context, op, stream string, seq uint64) error {
	return c.change(ctx, op, deleteSubject(stream), deleteRequest(seq))
}

// DeleteMsgAsync is DeleteMsg without waiting.
func (c *Client) DeleteMsgAsync(op, stream string, seq uint64, done func(error)) {
	c.pub.send(op, deleteSubject(stream), nil, deleteRequest(seq), func(_ Ack, err error) { done(err) })
}

func deleteSubject(stream string) string { return "$JS.API.STREAM.MSG.DELETE." + stream }

// deleteRequest deletes a message without overwriting it on disk, which would cost a
// hundred times as much.
func deleteRequest(seq uint64) []byte {
	req := append(make([]byte, 0, 48), `{"no_erase":true,"seq":`...)
	return append(strconv.AppendUint(req, seq, 10), '}')
}

// RemoveBelow removes the messages of a stream below a sequence that match a filter; all
// of them if it is empty.
func (c *Client) RemoveBelow(ctx context.Context, op, stream, filter string, seq uint64) error {
	req := fmt.Appendf(nil, `{"seq":%d}`, seq)
	if filter != "" {
		req = fmt.Appendf(nil, `{"filter":%q,"seq":%d}`, filter, seq)
	}
	return c.change(ctx, op, "$JS.API.STREAM.PURGE."+stream, req)
}
