package jet

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Requests that manage streams are hedged as reads are. All of them may be repeated:
// creating a stream that exists with the same settings succeeds.

// StreamConfig holds the settings of a stream.
type StreamConfig = jetstream.StreamConfig

// StreamInfo describes a stream as its leader reports it.
type StreamInfo = jetstream.StreamInfo

// Values of StreamConfig.
const (
	FileStorage     = jetstream.FileStorage
	WorkQueuePolicy = jetstream.WorkQueuePolicy
	DiscardNew      = jetstream.DiscardNew
	DiscardOld      = jetstream.DiscardOld
)

// StreamAdmin manages streams and their messages.
//
// A change that returns nil was acknowledged by the leader of the cluster's metadata, or
// for messages by the stream's leader. Calls that may be repeated are hedged, so that an
// election delays them by its own duration only. DeleteMsg and RemoveBelow are sent once.
// Errors: ErrNoStream, ErrExists, ErrFull, ErrRefused, ErrUnavailable; after the last one the
// change may have taken effect.
type StreamAdmin struct{ conn *Connection }

// Stream describes a stream. Errors: ErrNoStream.
func (c *StreamAdmin) Stream(ctx context.Context, name string) (StreamInfo, error) {
	return c.streamInfo(ctx, name, nil)
}

// leaderSilence is how long ago a leader must have heard from a majority to be believed. A follower waits for at least four
// seconds before it stands for election (minElectionTimeout in nats-server's raft.go), so a server that is cut off from a
// majority is not believed any more when another one can lead.
const leaderSilence = 3 * time.Second

// LeaderInfo is Stream, by a server that leads the stream. A server that has led it and was cut off or paused
// answers Stream for up to 20 seconds (work-around 21). LeaderInfo fails as soon as that server has not heard from a majority
// for three seconds. For up to two seconds it may believe a former leader that still hears from a follower which has elected another
// server. Errors: ErrNoStream, ErrUnavailable.
func (c *StreamAdmin) LeaderInfo(ctx context.Context, name string) (StreamInfo, error) {
	info, err := c.Stream(ctx, name)
	if err != nil || info.Cluster == nil || len(info.Cluster.Replicas) == 0 {
		return info, err
	}
	heard := 1 // the server itself
	for _, r := range info.Cluster.Replicas {
		if r.Active > 0 && r.Active <= leaderSilence { // 0: never
			heard++
		}
	}
	if servers := len(info.Cluster.Replicas) + 1; heard <= servers/2 {
		return info, c.conn.mapErr.errorf(ErrUnavailable, "look up stream %s: server %s answered as its leader, and has heard from %d of %d servers in the last %s, itself included", name, info.Cluster.Leader, heard, servers, leaderSilence)
	}
	return info, nil
}

// Subjects returns the number of messages of each subject of a stream, with its state.
// Errors: ErrNoStream.
func (c *StreamAdmin) Subjects(ctx context.Context, name string) (StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, c.conn.timeout)
	defer cancel()
	op := "count the messages of " + name
	stream, err := c.conn.findStream(ctx, name)
	if err != nil {
		return StreamInfo{}, c.conn.mapErr.wrap(op, err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return StreamInfo{}, c.conn.mapErr.wrap(op, err)
	}
	return *info, nil
}

func (c *StreamAdmin) streamInfo(ctx context.Context, name string, body []byte) (StreamInfo, error) {
	var r struct {
		Error *jetstream.APIError `json:"error"`
		StreamInfo
	}
	op := "look up stream " + name
	if err := c.conn.call(ctx, op, "$JS.API.STREAM.INFO."+name, body, &r); err != nil {
		return r.StreamInfo, err
	}
	if r.Error != nil {
		return r.StreamInfo, c.conn.mapErr.wrap(op, r.Error)
	}
	return r.StreamInfo, nil
}

// Streams describes the streams of the account, in no order.
func (c *StreamAdmin) Streams(ctx context.Context, fn func(*StreamInfo)) error {
	ctx, cancel := context.WithTimeout(ctx, c.conn.timeout)
	defer cancel()
	list := c.conn.js.ListStreams(ctx)
	for info := range list.Info() {
		fn(info)
	}
	return c.conn.mapErr.wrap("list streams", list.Err())
}

// CreateStream creates a stream. Errors: ErrExists if one of that name has other
// settings; ErrFull if there is no room for its byte limit; ErrRefused; ErrUnavailable,
// also while the cluster is not whole or has no leader.
func (c *StreamAdmin) CreateStream(ctx context.Context, cfg StreamConfig) error {
	_, err := hedge(ctx, func(ctx context.Context, _ func()) (jetstream.Stream, error) {
		return c.conn.js.CreateStream(ctx, cfg)
	})
	return c.conn.streamError("create stream "+cfg.Name, err)
}

// UpdateStream changes the settings of a stream. Errors: as CreateStream.
func (c *StreamAdmin) UpdateStream(ctx context.Context, cfg StreamConfig) error {
	_, err := hedge(ctx, func(ctx context.Context, _ func()) (jetstream.Stream, error) {
		return c.conn.js.UpdateStream(ctx, cfg)
	})
	return c.conn.streamError("change stream "+cfg.Name, err)
}

// DeleteMsg deletes a message. Errors: ErrNotFound.
func (c *StreamAdmin) DeleteMsg(ctx context.Context, op, stream string, seq uint64) error {
	return c.conn.change(ctx, op, deleteSubject(stream), deleteRequest(seq))
}

// DeleteMsgAsync is DeleteMsg without waiting.
func (c *StreamAdmin) DeleteMsgAsync(op, stream string, seq uint64, done func(error)) {
	c.conn.pub.send(op, deleteSubject(stream), nil, deleteRequest(seq), func(_ Ack, err error) { done(err) })
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
func (c *StreamAdmin) RemoveBelow(ctx context.Context, op, stream, filter string, seq uint64) error {
	req := fmt.Appendf(nil, `{"seq":%d}`, seq)
	if filter != "" {
		req = fmt.Appendf(nil, `{"filter":%q,"seq":%d}`, filter, seq)
	}
	return c.conn.change(ctx, op, "$JS.API.STREAM.PURGE."+stream, req)
}
