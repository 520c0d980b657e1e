package jet

import (
	"context"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Headers of messages that are written.
const (
	// HeaderMsgID holds the message id; see MsgID.
	HeaderMsgID    = jetstream.MsgIDHeader
	headerExpected = jetstream.ExpectedLastSubjSeqHeader
	headerTTL      = jetstream.MsgTTLHeader
	headerRollup   = jetstream.MsgRollup
	rollupSubject  = jetstream.MsgRollupSubject
	// headerOperation holds the operation of a key-value client: DEL or PURGE.
	headerOperation = "KV-Operation"
	operationPurge  = "PURGE"

	// HeaderSize holds the size of the data in a message of a Scan with HeadersOnly.
	HeaderSize = nats.MsgSize
)

// Writes publishes messages and changes keys, by themselves or in atomic batches.
//
// A write that returns nil was acknowledged. Writes of one stream keep their order as long
// as none of them fails. The calls in flight are bounded by Options.Window; further calls
// wait. A write is sent once, except by CreateOnce. Errors: ErrWrongRevision, ErrFull,
// ErrTooLarge, ErrBadHeader, and ErrUnavailable, after which the write may have taken effect.
type Writes struct {
	conn    *Connection
	window  int
	batches *committer // nil: every write goes by itself
	reads   *Reads
}

// Journals says where the journals of batches go; see Journal.
type Journals struct {
	// Subject returns the subject of a stream's journals, which that stream must capture; "" for a stream whose
	// batches do not roll up.
	Subject func(stream string) string
	// MaxBytes bounds a journal. A batch has no more writes than fit into its journal.
	MaxBytes int
}

// KeepWrites makes Follow take messages that this client writes with WriteAsync to the stream from memory, while there
// are many of them; see ownFollower. prefix is what precedes the last token in the subjects that Follow passes on. Call
// KeepWrites before the first write and before CommitInBatches.
func (c *Writes) KeepWrites(stream, prefix string) {
	c.conn.own[stream] = newOwnWrites(prefix)
}

// CommitInBatches makes WriteAsync gather writes from now on; see committer. The server
// must have atomic batches; see ServerInfo. It must be called before the first write.
func (c *Writes) CommitInBatches(j Journals) {
	c.batches = newCommitter(c.conn.pub, c.window, j, c.conn.own)
}

// Reconnects returns how often the connection was established again.
func (c *Writes) Reconnects() uint64 { return c.conn.pub.reconnects() }

// SetRestored says that the records that a power loss may have taken from a stream with journals are restored, as of a
// number of reconnects. WriteAsync sends no write to such a stream after the next reconnect until it is called again:
// the writes fail with ErrUnavailable.
func (c *Writes) SetRestored(stream string, reconnects uint64) {
	if c.batches != nil {
		c.batches.setRestored(stream, reconnects)
	}
}

// InBatches reports whether WriteAsync gathers writes.
func (c *Writes) InBatches() bool { return c.batches != nil }

// close fails the writes that wait for a batch.
func (c *Writes) close() {
	if c.batches != nil {
		c.batches.close()
	}
}

// PublishAsync publishes a message to the stream that captures its subject; op says what
// that is, for errors. done is called exactly once, on another goroutine or on this one,
// never under a lock; it must neither block nor publish. PublishAsync blocks only while
// the window is full.
func (c *Writes) PublishAsync(op, subject string, hdr Header, data []byte, done func(Ack, error)) {
	c.conn.pub.send(op, subject, hdr, data, done)
}

// CreateAsync is PublishAsync for a key that must not exist: done gets ErrWrongRevision if it does. A ttl of 0 means no
// expiry.
func (c *Writes) CreateAsync(op, subject string, data []byte, ttl time.Duration, done func(Ack, error)) {
	c.conn.pub.send(op, subject, casHeader(0, ttl), data, done)
}

// WriteAsync is PublishAsync for a stream whose writes may be committed in batches. The caller may use hdr and data again
// when it returns, unless InBatches.
func (c *Writes) WriteAsync(stream, op, subject string, hdr Header, data []byte, done func(Ack, error)) {
	done = c.conn.own[stream].keep(subject, data, c.batches == nil, done)
	if c.batches == nil {
		c.conn.pub.send(op, subject, hdr, data, done)
		return
	}
	c.batches.send(stream, write{op: op, subject: subject, hdr: hdr, data: data, done: done})
}

// Await makes an asynchronous call and waits for its answer.
func (c *Writes) Await(ctx context.Context, op string, start func(done func(Ack, error))) (Ack, error) {
	if err := ctx.Err(); err != nil {
		return Ack{}, c.conn.mapErr.wrap(op, err)
	}
	type answer struct {
		a   Ack
		err error
	}
	ch := make(chan answer, 1)
	start(func(a Ack, err error) { ch <- answer{a, err} })
	select {
	case r := <-ch:
		return r.a, r.err
	case <-ctx.Done():
		return Ack{}, c.conn.mapErr.errorf(ErrUnavailable, "%s: %w; the call may have taken effect", op, context.Cause(ctx))
	}
}

// Publish publishes a message and waits for its acknowledgement.
func (c *Writes) Publish(ctx context.Context, op, subject string, hdr Header, data []byte) (Ack, error) {
	return c.Await(ctx, op, func(done func(Ack, error)) { c.conn.pub.send(op, subject, hdr, data, done) })
}

// Put replaces the value of a key by compare-and-set and waits: rev is the sequence of
// the last message on the subject, 0 for none. A ttl of 0 means no expiry. It returns the
// new revision. Errors: ErrWrongRevision.
func (c *Writes) Put(ctx context.Context, subject string, data []byte, rev uint64, ttl time.Duration) (uint64, error) {
	a, err := c.Publish(ctx, "write "+subject, subject, casHeader(rev, ttl), data)
	return a.Seq, err
}

// Replace is Put with a roll-up: the server removes all earlier revisions of the key.
func (c *Writes) Replace(ctx context.Context, op, subject string, data []byte, rev uint64, ttl time.Duration) (uint64, error) {
	h := casHeader(rev, ttl)
	h[headerRollup] = []string{rollupSubject}
	a, err := c.Publish(ctx, op, subject, h, data)
	return a.Seq, err
}

// Purge replaces a key by a purge marker with a value, by compare-and-set: key-value
// clients see the key as deleted.
func (c *Writes) Purge(ctx context.Context, op, subject string, data []byte, rev uint64, ttl time.Duration) (uint64, error) {
	h := casHeader(rev, ttl)
	h[headerOperation] = []string{operationPurge}
	h[headerRollup] = []string{rollupSubject}
	a, err := c.Publish(ctx, op, subject, h, data)
	return a.Seq, err
}

// casHeader returns the header of a compare-and-set; see Put.
func casHeader(rev uint64, ttl time.Duration) Header {
	var w WriteHeader
	w.Header = Header{}
	w.CAS(rev, ttl)
	return w.Header
}

// TTLHeader returns the header of a message that expires.
func TTLHeader(ttl time.Duration) Header { return Header{headerTTL: {ttlString(ttl)}} }

// SetMsgID sets the message id by which a stream recognises duplicates.
func SetMsgID(h Header, id string) { h[HeaderMsgID] = []string{id} }

// MsgID returns the message id of a message, or "".
func MsgID(h Header) string { return h.Get(HeaderMsgID) }

// ttlString rounds up to the second, the server's resolution.
func ttlString(ttl time.Duration) string {
	var b [21]byte
	return string(append(strconv.AppendInt(b[:0], int64((max(ttl, time.Second)+time.Second-1)/time.Second), 10), 's'))
}

// WriteHeader builds the header of a write without allocating more than its strings, so
// that it can be used again. Header must not be nil.
type WriteHeader struct {
	Header nats.Header
	values [3][1]string // revision, TTL, roll-up
}

// CAS sets the revision that the write replaces (0: none), and its TTL (0: no expiry).
// It clears the header first.
func (w *WriteHeader) CAS(rev uint64, ttl time.Duration) {
	clear(w.Header)
	w.set(0, headerExpected, strconv.FormatUint(rev, 10))
	if ttl > 0 {
		w.set(1, headerTTL, ttlString(ttl))
	}
}

// RollUp makes the server remove all earlier revisions of the key with the write itself.
func (w *WriteHeader) RollUp() { w.set(2, headerRollup, rollupSubject) }

func (w *WriteHeader) set(i int, name, value string) {
	w.values[i][0] = value
	w.Header[name] = w.values[i][:]
}

// TTL returns the life that a message was written with; 0 if it does not expire.
func TTL(m *Msg) time.Duration {
	ttl, _ := time.ParseDuration(m.Header.Get(headerTTL)) // none: 0
	return ttl
}

// IsMarker reports whether a message marks a key that a key-value client deleted or
// purged, or that expired.
func IsMarker(m *Msg) bool { return len(m.Data) == 0 && HasOperation(m) }

// HasOperation reports whether a message is a marker, which may have a value; see Purge.
func HasOperation(m *Msg) bool {
	return m.Header.Get(headerOperation) != "" || m.Header.Get(jetstream.MarkerReasonHeader) != ""
}

// Replaced returns the revision that a compare-and-set replaced, and whether it rolled
// up; ok is false for a message that is no compare-and-set.
func Replaced(m *Msg) (rev uint64, rolledUp, ok bool) {
	if m.Header.Get(headerExpected) == "" {
		return 0, false, false
	}
	return revisionIn(m.Header), m.Header.Get(headerRollup) != "", true
}

// revisionIn returns the revision that a compare-and-set with this header replaces: 0 for none, also if it is not a number.
func revisionIn(h Header) uint64 {
	rev, _ := strconv.ParseUint(h.Get(headerExpected), 10, 64)
	return rev
}
