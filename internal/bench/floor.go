package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// This file measures the floor: a reference program that does the JetStream operations of Belfry's data model and nothing
// else (floornode.go):
//
//	add     The server stores the event in a stream and delivers it to the process. The process writes index entries, and
//	        creates the message of the timer's key in one of four streams, by compare-and-set. Later a purge, or an
//	        acknowledgement, removes the event from the first stream.
//	fire    Replace the key's message (claimed; it keeps the event), publish the event to a stream with a message id, replace
//	        the key's message (concluded; it expires).
//	cancel  Receive a request, replace the key's message (it expires), reply.
//
// To replace a key's message is a compare-and-set with a roll-up, which removes the old message, because nats-server brings
// old messages back after a crash that only the history limit dropped (work-around 1). In the safe profile a batch with
// roll-ups has a journal (work-around 18).
//
// Where the order of operations, a pause or a bound decides a figure, the floor does what Belfry does: it reads adds in
// groups, and in the safe profile lets them wait for others, removes many at once, claims few timers first, and concludes when
// no claim waits.
//
// It has no validation, records, tail of the shards, search index, leases, metrics or retries. It keeps pending timers only in
// memory, so a restart loses them. A failed write ends the process and the run.
//
// The distance between Belfry and the floor is the cost of what the floor leaves out. The floor is no lower bound: another
// order, other pauses or another size of batches may be faster.
const (
	floorAddStream, floorAddSubject = "BENCH_FLOOR_ADD", "bench.floor.add"
	floorFiredStream                = "BENCH_FLOOR_FIRED"
	// floorFired is the subject prefix of fired events. The last token is the service.
	floorFired = "bench.floor.fired."
	// floorCancel is the subject of cancel requests. The data of a request is the id of the timer.
	floorCancel = "bench.floor.cancel"
	floorShards = schemas.DefaultShards
)

// Data of a key's message after the timer has left the state pending. A pending timer has the event itself, and a claimed one
// floorClaimed and the event.
const (
	floorClaimed   = `{"state":"claimed"}`
	floorConcluded = `{"state":"success"}`
	floorCancelled = `{"state":"cancelled"}`
)

func floorStream(shard int) string { return "BENCH_FLOOR_" + strconv.Itoa(shard) }

// floorKeys returns the subject prefix of a shard's keys. Two tokens follow: the id of the run and the number of the timer.
func floorKeys(shard int) string { return "bench.floor.key." + strconv.Itoa(shard) + "." }

// floorIndex returns the subject prefix of a shard's index entries. Two tokens follow, the second and a number, or for far
// timers three: far, the hour and a number.
func floorIndex(shard int) string { return "bench.floor.index." + strconv.Itoa(shard) + "." }

// floorJournal returns the subject of the journals of a shard's stream, "" for other streams.
func floorJournal(stream string) string {
	for shard := range floorShards {
		if stream == floorStream(shard) {
			return floorKeys(shard) + "journal"
		}
	}
	return ""
}

// floorShard returns the shard of a timer.
func floorShard(id string) int {
	h := fnv.New32a()
	_, _ = io.WriteString(h, id) // a hash returns no error
	return int(h.Sum32() % floorShards)
}

// floorKey returns the subject of a timer's key.
func floorKey(shard int, id string) string {
	return floorKeys(shard) + strings.Replace(id, "-", ".", 1)
}

// floorSystem is the floor as the system under test.
type floorSystem struct{ *Env }

// attach does nothing: the process creates its streams before it counts as ready.
func (f floorSystem) attach(context.Context) error { return nil }

func (f floorSystem) add(a *Adder, n int, dueMs int64) *nats.Msg {
	return a.message(floorAddSubject, n, dueMs)
}

func (f floorSystem) unstored(ctx context.Context) (uint64, error) {
	s, err := f.js.Stream(ctx, floorAddStream)
	if err != nil {
		return 0, fmt.Errorf("read the state of %s: %w", floorAddStream, err)
	}
	return s.CachedInfo().State.Msgs, nil
}

func (f floorSystem) fired(service string) (stream, subject string) {
	return floorFiredStream, floorFired + service
}

// receive subscribes to the subject, on which the process publishes to the stream.
func (f floorSystem) receive(ctx context.Context, name, subject string, _ uint64, handle nats.MsgHandler) error {
	_, err := f.subscribe(ctx, name, subject, handle)
	return err
}

func (f floorSystem) cancel(ctx context.Context, nc *nats.Conn, a *Adder, n int) error {
	ctx, stop := context.WithTimeout(ctx, addTimeout)
	defer stop()
	m, err := nc.RequestWithContext(ctx, floorCancel, []byte(a.ID(n)))
	if err != nil {
		return err
	}
	var answer struct {
		State schemas.State `json:"state"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return err
	}
	if answer.State != schemas.StateCancelled {
		return fmt.Errorf("the answer is %.200s", m.Data)
	}
	return nil
}

func (f floorSystem) follow(_ context.Context, a *Adder, count int, want schemas.State) (ledger, error) {
	return &floorLedger{floor: f, adder: a, count: count, want: want}, nil
}

func (f floorSystem) known(ctx context.Context) (int, error) {
	n := 0
	for shard := range floorShards {
		here, err := f.countMessages(ctx, floorStream(shard), floorKeys(shard)+"*.*")
		if err != nil {
			return 0, err
		}
		n += here
	}
	return n, nil
}

func (f floorSystem) explain(ctx context.Context, a *Adder, n int) (string, error) {
	id := a.ID(n)
	shard := floorShard(id)
	s, err := f.js.Stream(ctx, floorStream(shard))
	if err != nil {
		return "", err
	}
	m, err := s.GetLastMsgForSubject(ctx, floorKey(shard, id))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return "never stored", nil
	case err != nil:
		return "", err
	case bytes.HasPrefix(m.Data, []byte(floorClaimed)):
		return floorClaimed, nil
	case bytes.HasPrefix(m.Data, []byte(`{"state":`)):
		return string(m.Data), nil
	}
	return "pending still", nil
}

// concluded waits until no timer is claimed, and as many are concluded as events are in the stream. It fails if their number
// does not fall for storePatience.
func (f floorSystem) concluded(ctx context.Context) error {
	least, fell := -1, time.Now()
	for {
		fired, err := f.countMessages(ctx, floorFiredStream, floorFired+">")
		if err != nil {
			return err
		}
		claimed, concluded := 0, 0
		complete, err := f.read(ctx, "*.*", func(_ string, data []byte) {
			switch {
			case bytes.HasPrefix(data, []byte(floorClaimed)):
				claimed++
			case string(data) == floorConcluded:
				concluded++
			}
		})
		if err != nil {
			return err
		}
		open := max(claimed, fired-concluded)
		switch {
		case complete && concluded > fired:
			return fmt.Errorf("%w: %d events were published, and %d timers were concluded", ErrUnsound, fired, concluded)
		case complete && open == 0:
			return nil
		case least < 0 || open < least:
			least, fell = open, time.Now()
		case time.Since(fell) > storePatience:
			return fmt.Errorf("%w: %d events were published; %d timers were concluded, %d claimed and not concluded", ErrUnsound, fired, concluded, claimed)
		}
		if !waitUntil(ctx, time.Now().Add(againPause)) {
			return context.Cause(ctx)
		}
	}
}

// floorLedger counts a run's timers by their keys' messages. It reads all of them at the end.
type floorLedger struct {
	floor floorSystem
	adder *Adder
	count int
	want  schemas.State
}

func (l *floorLedger) beside(context.Context) {}
func (l *floorLedger) end()                   {}

func (l *floorLedger) account(ctx context.Context, _ *progress, v *Verified) error {
	is, known := map[schemas.State]func([]byte) bool{
		schemas.StateCancelled: func(data []byte) bool { return string(data) == floorCancelled },
		schemas.StatePending:   func(data []byte) bool { return !bytes.HasPrefix(data, []byte(`{"state":`)) },
	}[l.want]
	if !known {
		return fmt.Errorf("the floor does not account for timers in state %s", l.want)
	}
	stored, others := make([]bool, l.count), 0
	complete, err := l.floor.read(ctx, strings.TrimSuffix(l.adder.prefix, "-")+".*", func(subject string, data []byte) {
		n, err := strconv.Atoi(subject[strings.LastIndexByte(subject, '.')+1:])
		if err != nil || n < 0 || n >= l.count {
			others++
			return
		}
		stored[n] = true
		if !is(data) {
			v.Wrong++
		}
	})
	if err != nil {
		return err
	}
	if !complete {
		return fmt.Errorf("%w: keys changed while they were counted, or have several messages", ErrUnsound)
	}
	v.Expected, v.Duplicates = l.count, others
	for _, found := range stored {
		if found {
			v.Found++
		} else {
			v.Missing++
		}
	}
	if v.Wrong > 0 {
		v.Why = map[string]int{"not " + l.want.String(): v.Wrong}
	}
	return nil
}

// read passes the keys that match a filter to each, in all shards. complete is false if some were replaced meanwhile.
func (f floorSystem) read(ctx context.Context, filter string, each func(subject string, data []byte)) (complete bool, err error) {
	complete = true
	for shard := range floorShards {
		all, err := f.readShard(ctx, shard, floorKeys(shard)+filter, each)
		if err != nil {
			return false, err
		}
		complete = complete && all
	}
	return complete, nil
}

// readShard passes the keys of a shard that match a filter to each. all is false if some of them did not come.
func (f floorSystem) readShard(ctx context.Context, shard int, filter string, each func(subject string, data []byte)) (all bool, err error) {
	c, err := f.js.OrderedConsumer(ctx, floorStream(shard), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{filter}, InactiveThreshold: readerGone,
	})
	if err != nil {
		return false, err
	}
	info, err := c.Info(ctx)
	if err != nil {
		return false, err
	}
	seen := make(map[string]struct{}, info.NumPending)
	for left := int(info.NumPending); left > 0; {
		batch, err := c.Fetch(min(left, window), jetstream.FetchMaxWait(accountQuiet))
		if err != nil {
			return false, err
		}
		got := 0
		for m := range batch.Messages() {
			got++
			seen[m.Subject()] = struct{}{}
			each(m.Subject(), m.Data())
		}
		if err := batch.Error(); err != nil {
			return false, err
		}
		if got == 0 {
			return false, nil // replaced while they were read, or the machine is busy
		}
		left -= got
	}
	return len(seen) == int(info.NumPending), nil // otherwise a key came twice, and another one did not
}
