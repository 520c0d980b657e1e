package jet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Bounds of Snapshot and Restore.
const (
	// snapshotChunkBytes is the size of a message of a snapshot, and snapshotWindowBytes
	// the bytes that the server sends before it waits for an acknowledgement. Both are
	// the server's defaults.
	snapshotChunkBytes  = 128 << 10
	snapshotWindowBytes = 8 << 20
	// snapshotBuffer holds a whole window, the end mark and a reserve.
	snapshotBuffer = 2 * snapshotWindowBytes / snapshotChunkBytes
	// checkBytesPerSecond is the least speed at which the server is expected to check the
	// messages of a stream, which it does before it answers a request for a snapshot.
	checkBytesPerSecond = 10 << 20
	// snapshotSilence is how many of Options.Timeout a snapshot may stand still. With
	// 5 s each it is more than the 5 s after which the server gives up itself and says so.
	snapshotSilence = 3
	// restoreChunkBytes is the size of a message of a restore. The server answers each.
	restoreChunkBytes = 64 << 10
	// restoreWithin bounds how long the server takes to build a stream after the last
	// chunk: it reads every message of it.
	restoreWithin = time.Hour
	// deniedEvery is how often the connection is asked for a permission violation: the
	// server reports one beside the request, which is never answered.
	deniedEvery = 100 * time.Millisecond
)

// Copies copies whole streams and restores them, by the server's own archive format.
//
// Each request is sent once: a copy cannot be continued. Every wait has a bound. Errors name
// the stream and the reason of the server: ErrNoStream, ErrExists, ErrDenied, ErrRefused,
// ErrFull, ErrUnavailable.
type Copies struct {
	conn    *Connection
	streams *StreamAdmin
}

// Copy describes the copy of a stream, beside its data.
type Copy struct {
	// Config and State are the settings and the state of the stream as the server sent
	// them, unchanged: they may have fields that this version does not know.
	Config json.RawMessage `json:"config"`
	State  json.RawMessage `json:"state"`
}

// Totals returns the number of messages in the copied stream and their bytes.
func (c *Copy) Totals() (messages, bytes uint64, err error) {
	var state struct{ Messages, Bytes uint64 }
	if err := json.Unmarshal(c.State, &state); err != nil {
		return 0, 0, fmt.Errorf("read the state of a copied stream: %w", err)
	}
	return state.Messages, state.Bytes, nil
}

// SetReplicas changes the number of replicas that the restored stream will have.
func (c *Copy) SetReplicas(n int) error {
	var config map[string]json.RawMessage
	err := json.Unmarshal(c.Config, &config)
	if err == nil {
		config["num_replicas"] = strconv.AppendInt(nil, int64(n), 10)
		c.Config, err = json.Marshal(config)
	}
	if err != nil {
		return fmt.Errorf("change the settings of a copied stream: %w", err)
	}
	return nil
}

// Snapshot writes a copy of a stream and of its consumers to w, in the server's archive
// format. The server first checks every message, so that a damaged block fails the copy
// instead of being in it. The stream may change meanwhile: the copy has the state of one
// moment. What is in w after an error is of no use.
//
// Errors: ErrNoStream; ErrDenied if the user may not copy streams; ErrRefused with the
// server's reason, such as a damaged block; ErrUnavailable if the connection broke or the
// server fell silent; those of w.
func (c *Copies) Snapshot(ctx context.Context, stream string, w io.Writer) (Copy, error) {
	op := "copy stream " + stream
	info, err := c.streams.Stream(ctx, stream)
	if err != nil {
		return Copy{}, err
	}
	ctx, release, err := c.bindCopy(ctx, op)
	if err != nil {
		return Copy{}, err
	}
	defer release()
	// Subscribe before the request: the server waits only two seconds for a subscription.
	inbox := c.conn.nc.NewInbox()
	arrived := make(chan *nats.Msg, snapshotBuffer)
	sub, err := c.conn.nc.ChanSubscribe(inbox, arrived)
	if err != nil {
		return Copy{}, c.conn.mapErr.wrap(op, err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only with the connection
	check := c.conn.timeout + time.Duration(info.State.Bytes/checkBytesPerSecond)*time.Second
	var r struct {
		Error *jetstream.APIError `json:"error"`
		Copy
	}
	req := fmt.Appendf(nil, `{"deliver_subject":%q,"chunk_size":%d,"window_size":%d,"jsck":true}`, inbox, snapshotChunkBytes, snapshotWindowBytes)
	if err := c.copyRequest(ctx, op, "$JS.API.STREAM.SNAPSHOT."+stream, req, check, &r); err != nil {
		return Copy{}, err
	}
	if r.Error != nil {
		return Copy{}, c.copyRefused(op, r.Error)
	}
	if err := c.receive(ctx, op, arrived, w); err != nil {
		return Copy{}, err
	}
	if n, err := sub.Dropped(); err != nil || n > 0 {
		return Copy{}, c.conn.mapErr.errorf(ErrUnavailable, "%s: the client dropped %d messages of it (%v)", op, n, err)
	}
	return r.Copy, nil
}

// receive writes the chunks of a snapshot to w up to the end mark. It acknowledges a chunk
// once it is written: the server sends at most a window more.
func (c *Copies) receive(ctx context.Context, op string, arrived <-chan *nats.Msg, w io.Writer) error {
	patience := snapshotSilence * c.conn.timeout
	silence := time.NewTimer(patience)
	defer silence.Stop()
	for chunks := uint64(1); ; chunks++ {
		var m *nats.Msg
		select {
		case m = <-arrived:
		case <-ctx.Done():
			return c.copyError(ctx, op, ctx.Err())
		case <-silence.C:
			return c.conn.mapErr.errorf(ErrUnavailable, "%s: the server sent nothing for %s", op, patience)
		}
		silence.Reset(patience)
		if len(m.Data) == 0 {
			if status := m.Header.Get(headerStatus); status != "" && status != "204" {
				return c.conn.mapErr.errorf(ErrRefused, "%s: the server ended it: %s %s", op, status, m.Header.Get(headerDescription))
			}
			return nil
		}
		if err := checkChunk(m, chunks); err != nil {
			return c.conn.mapErr.errorf(ErrUnavailable, "%s: %w", op, err)
		}
		if _, err := w.Write(m.Data); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		if m.Reply == "" {
			continue // the last, shorter chunk
		}
		if err := c.conn.nc.Publish(m.Reply, nil); err != nil {
			return c.copyError(ctx, op, err)
		}
	}
}

// checkChunk checks that a message is the expected chunk of a snapshot. The subject to
// acknowledge it on ends with its size and its number, from 1.
func checkChunk(m *nats.Msg, number uint64) error {
	if m.Reply == "" {
		return nil
	}
	tokens := strings.Split(m.Reply, ".")
	if want := []string{strconv.Itoa(len(m.Data)), strconv.FormatUint(number, 10)}; len(tokens) < 3 || tokens[len(tokens)-2] != want[0] || tokens[len(tokens)-1] != want[1] {
		return fmt.Errorf("chunk %d of %d bytes came as %q: a part of the copy is lost", number, len(m.Data), m.Reply)
	}
	return nil
}

// Restore creates a stream, with its consumers, from what Snapshot wrote. The stream must
// not exist. It exists once Restore has returned nil; after an error it may exist in part.
//
// Errors: ErrExists; ErrDenied if the user may not restore streams; ErrRefused with the
// server's reason, such as a damaged copy; ErrFull; ErrUnavailable if the connection broke
// or the server fell silent; those of data.
func (c *Copies) Restore(ctx context.Context, stream string, from Copy, data io.Reader) error {
	op := "restore stream " + stream
	req, err := json.Marshal(from)
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	ctx, release, err := c.bindCopy(ctx, op)
	if err != nil {
		return err
	}
	defer release()
	var r struct {
		Error   *jetstream.APIError `json:"error"`
		Deliver string              `json:"deliver_subject"`
	}
	switch err := c.copyRequest(ctx, op, "$JS.API.STREAM.RESTORE."+stream, req, c.conn.timeout, &r); {
	case err != nil:
		return err
	case r.Error != nil:
		return c.copyRefused(op, r.Error)
	case r.Deliver == "":
		return c.conn.mapErr.errorf(ErrUnavailable, "%s: the server does not say where to send the copy", op)
	}
	chunk := make([]byte, min(restoreChunkBytes, c.conn.nc.MaxPayload()))
	for {
		n, err := io.ReadFull(data, chunk)
		if n > 0 {
			if err := c.restoreChunk(ctx, op, r.Deliver, chunk[:n], c.conn.timeout); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return c.restoreChunk(ctx, op, r.Deliver, nil, restoreWithin) // the end mark
		case err != nil:
			return fmt.Errorf("%s: %w", op, err)
		}
	}
}

// restoreChunk sends a part of a copy; without data it is the end mark, which the server
// answers when it has built the stream.
func (c *Copies) restoreChunk(ctx context.Context, op, subject string, chunk []byte, within time.Duration) error {
	var r struct {
		Error *jetstream.APIError `json:"error"`
	}
	err := c.copyRequest(ctx, op, subject, chunk, within, &r)
	if errors.Is(err, nats.ErrNoResponders) {
		return c.conn.mapErr.errorf(ErrUnavailable, "%s: the server has ended it; its log says why (%w)", op, nats.ErrNoResponders)
	}
	if err == nil && r.Error != nil {
		return c.copyRefused(op, r.Error)
	}
	return err
}

// copyRequest makes a request once, because it cannot be repeated, and decodes the answer
// unless that is empty.
func (c *Copies) copyRequest(ctx context.Context, op, subject string, body []byte, within time.Duration, into any) error {
	bound, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	m, err := c.conn.nc.RequestWithContext(bound, subject, body)
	if err != nil {
		return c.copyError(ctx, op, err)
	}
	if len(bytes.TrimSpace(m.Data)) == 0 {
		return nil
	}
	if err := json.Unmarshal(m.Data, into); err != nil {
		return c.conn.mapErr.wrap(op, err)
	}
	return nil
}

// bindCopy bounds a copy by the connection, which the server does not continue on another
// one, and by the user's permissions. Errors go through copyError.
func (c *Copies) bindCopy(ctx context.Context, op string) (context.Context, func(), error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, c.conn.mapErr.wrap(op, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	forget, ok := c.conn.OnBreak(func() { cancel(nats.ErrDisconnected) })
	if !ok {
		cancel(nil)
		return nil, nil, c.conn.mapErr.wrap(op, nats.ErrDisconnected)
	}
	before, done := c.conn.nc.LastError(), make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(deniedEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				//nolint:errorlint // a later violation is another value
				if err := c.conn.nc.LastError(); err != before && errors.Is(err, nats.ErrPermissionViolation) {
					cancel(err)
				}
			}
		}
	}()
	return ctx, func() {
		forget()
		cancel(nil)
		<-done
	}, nil
}

// copyError maps an error of a call with a context of bindCopy.
func (c *Copies) copyError(ctx context.Context, op string, err error) error {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, nats.ErrPermissionViolation):
		return c.conn.mapErr.errorf(ErrDenied, "%s: the NATS user lacks a permission: %w", op, cause)
	case errors.Is(cause, nats.ErrDisconnected):
		return c.conn.mapErr.errorf(ErrUnavailable, "%s: the connection to NATS was lost (%w), and the server does not go on with it on another one; run the command again", op, cause)
	}
	return c.conn.mapErr.wrap(op, err)
}

// copyRefused maps the server's refusal of a copy.
func (c *Copies) copyRefused(op string, api *jetstream.APIError) error {
	switch api.ErrorCode {
	case codeStreamNameInUse, codeRestoreNameInUse:
		return c.conn.mapErr.errorf(ErrExists, "%s: %w", op, api)
	case codeRestoreFailed, codeSnapshotFailed:
		return c.conn.mapErr.errorf(ErrRefused, "%s: %w", op, api)
	}
	return c.conn.streamError(op, api)
}
