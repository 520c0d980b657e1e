package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// This file measures the floor: a process that does nothing with a timer but the JetStream operations that the data
// model of Belfry prescribes. floornode.go is that process. On the same machine, no program with this data model, this
// server and this client can be faster, so the floor tells how much of a figure is left to improve:
//
//	add     the event is stored in a stream, delivered to the process, and created as a message of a key in one of four
//	        streams, by compare-and-set; then it is purged from the first stream, together with others
//	fire    the message of the key is replaced (claimed), the event is published to a stream, and the message is
//	        replaced again (concluded)
//	cancel  a request; the message of the key is replaced; a reply
//
// What it leaves out, and Belfry has: the check of the event, the record, the index of the ticks, the reading of what
// was written, the search index, leases, metrics, repetitions. Pending timers are in memory only, so a restart loses
// them. A write that fails ends the process and the run.
const (
	floorAddStream, floorAddSubject = "BENCH_FLOOR_ADD", "bench.floor.add"
	floorFiredStream                = "BENCH_FLOOR_FIRED"
	// floorFired is the prefix of the subjects of fired events; the service follows.
	floorFired = "bench.floor.fired."
	// floorCancel is the subject of requests to cancel. The request is the id of the timer.
	floorCancel = "bench.floor.cancel"
	floorShards = schemas.DefaultShards
)

// The data of the message of a key, after that of the add.
const (
	floorClaimed   = `{"state":"claimed"}`
	floorConcluded = `{"state":"success"}`
	floorCancelled = `{"state":"cancelled"}`
)

func floorStream(shard int) string { return "BENCH_FLOOR_" + strconv.Itoa(shard) }

// floorKeys is the prefix of the keys of a shard; the id of the run and the number of the timer follow.
func floorKeys(shard int) string { return "bench.floor.key." + strconv.Itoa(shard) + "." }

// floorShard returns the shard of a timer.
func floorShard(id string) int {
	h := uint32(2166136261) // FNV-1a
	for i := range len(id) {
		h = (h ^ uint32(id[i])) * 16777619
	}
	return int(h % floorShards)
}

// floorKey returns the key of a timer.
func floorKey(id string) string {
	return floorKeys(floorShard(id)) + strings.Replace(id, "-", ".", 1)
}

// floorSystem is the floor as the system under test.
type floorSystem struct{ *Env }

// attach does nothing: the process has made the streams when it is ready.
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

func (f floorSystem) known(ctx context.Context) (int, error) { return f.count(ctx, ">") }

// count counts the keys that match a filter, in all shards.
func (f floorSystem) count(ctx context.Context, filter string) (int, error) {
	n := 0
	for shard := range floorShards {
		here, err := f.countMessages(ctx, floorStream(shard), floorKeys(shard)+filter)
		if err != nil {
			return 0, err
		}
		n += here
	}
	return n, nil
}

func (f floorSystem) explain(ctx context.Context, a *Adder, n int) (string, error) {
	id := a.ID(n)
	s, err := f.js.Stream(ctx, floorStream(floorShard(id)))
	if err != nil {
		return "", err
	}
	m, err := s.GetLastMsgForSubject(ctx, floorKey(id))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return "never stored", nil
	case err != nil:
		return "", err
	case bytes.HasPrefix(m.Data, []byte(`{"state":`)):
		return string(m.Data), nil
	}
	return "pending still", nil
}

// floorLedger accounts for timers by the messages of their keys.
type floorLedger struct {
	floor floorSystem
	adder *Adder
	count int
	want  schemas.State
}

func (l *floorLedger) beside(context.Context) {}
func (l *floorLedger) end()                   {}

func (l *floorLedger) account(ctx context.Context, _ *progress, v *Verified) error {
	run := strings.TrimSuffix(l.adder.prefix, "-")
	found, err := l.floor.count(ctx, run+".*")
	if err != nil {
		return err
	}
	*v = stored(l.count, found)
	for shard := range floorShards {
		others, err := l.others(ctx, shard, run)
		if err != nil {
			return err
		}
		v.Wrong += others
	}
	if v.Wrong > 0 {
		v.Why = map[string]int{"not " + l.want.String(): v.Wrong}
	}
	return nil
}

// others counts the timers of a shard that are not in the wanted state.
func (l *floorLedger) others(ctx context.Context, shard int, run string) (others int, err error) {
	c, err := l.floor.js.OrderedConsumer(ctx, floorStream(shard), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{floorKeys(shard) + run + ".*"}, InactiveThreshold: readerGone,
	})
	if err != nil {
		return 0, err
	}
	info, err := c.Info(ctx)
	if err != nil {
		return 0, err
	}
	for left := int(info.NumPending); left > 0; {
		batch, err := c.Fetch(min(left, window), jetstream.FetchMaxWait(addTimeout))
		if err != nil {
			return 0, err
		}
		got := 0
		for m := range batch.Messages() {
			got++
			cancelled := string(m.Data()) == floorCancelled
			pending := !bytes.HasPrefix(m.Data(), []byte(`{"state":`))
			if l.want == schemas.StateCancelled && !cancelled || l.want == schemas.StatePending && !pending {
				others++
			}
		}
		if err := batch.Error(); err != nil {
			return 0, err
		}
		if got == 0 {
			return 0, fmt.Errorf("%s has %d messages that were not delivered within %s", floorStream(shard), left, time.Duration(addTimeout))
		}
		left -= got
	}
	return others, nil
}
