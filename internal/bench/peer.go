package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/schemas"
)

// This file measures the message schedules of nats-server (ADR-51 of the NATS project), which
// are in every server since 2.12. Of a stream with AllowMsgSchedules, a message with the header
//
//	Nats-Schedule: @at 2026-11-25T12:00:00.000Z
//	Nats-Schedule-Target: bench.peer.fired.orders
//
// is published to the target at that time, with its body and without these headers, and is then
// purged. Schedule and target belong to the same stream. A subject has one schedule, the latest.
// So each timer has a subject of its own here, and a second add of a timer replaces the first, as
// in Belfry. To cancel a timer is to purge its subject.
//
// The server collects what is due at most four times a second (MsgScheduling.resetTimer in
// server/scheduler.go of 2.15.2), which explains most of its lateness.

const (
	peerStream = "BENCH_PEER"
	// peerWait is the prefix of the subjects of pending timers; the id of the run and the number
	// of the timer follow. peerFired is the prefix of the subjects on which they fire; the service
	// follows.
	peerWait, peerFired = "bench.peer.wait.", "bench.peer.fired."
	// headerSchedule and headerTarget are the headers of a message schedule. The client library
	// sets them with options, which cost an allocation for each message.
	headerSchedule, headerTarget = "Nats-Schedule", "Nats-Schedule-Target"
	scheduleAt                   = "@at "
)

// schedulesPeer is a nats-server with message schedules as the system under test.
type schedulesPeer struct{ *Env }

// attach creates the stream, unless it exists. Like the streams of Belfry it is in files and has
// no limits that the run reaches.
func (s schedulesPeer) attach(ctx context.Context) error {
	cfg := jetstream.StreamConfig{
		Name: peerStream, Subjects: []string{peerWait + ">", peerFired + ">"}, Storage: jetstream.FileStorage,
		AllowMsgSchedules: true, AllowRollup: true, AllowAtomicPublish: s.Via == ViaBatch, Replicas: 1,
	}
	if s.On == OnCluster {
		cfg.Replicas = replicas
	}
	if _, err := s.js.CreateOrUpdateStream(ctx, cfg); err != nil {
		return fmt.Errorf("make the stream of message schedules: %w", err)
	}
	return nil
}

// waiting returns the subject of a timer, or with * that of all timers of an adder.
func (s schedulesPeer) waiting(a *Adder, n string) string {
	return peerWait + strings.TrimSuffix(a.prefix, "-") + "." + n
}

func (s schedulesPeer) add(a *Adder, n int, dueMs int64) *nats.Msg {
	m := a.message(s.waiting(a, strconv.Itoa(n)), n, dueMs)
	m.Header = nats.Header{
		headerSchedule: {scheduleAt + schemas.FormatTime(dueMs)},
		headerTarget:   {peerFired + a.serviceOf(n)},
	}
	return m
}

// unstored returns 0: an acknowledged schedule is stored and will fire.
func (s schedulesPeer) unstored(context.Context) (uint64, error) { return 0, nil }

func (s schedulesPeer) fired(service string) (stream, subject string) {
	return peerStream, peerFired + service
}

// receive has the server push the events of the stream. A plain subscriber gets none of them,
// because the server puts what is due into the stream without publishing it.
func (s schedulesPeer) receive(ctx context.Context, name, subject string, from uint64, handle nats.MsgHandler) error {
	inbox := nats.NewInbox()
	nc, err := s.subscribe(ctx, name, inbox, handle)
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	_, err = js.CreateOrUpdatePushConsumer(ctx, peerStream, jetstream.ConsumerConfig{
		DeliverSubject: inbox, FilterSubject: subject, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true,
	})
	return err
}

// cancel purges the subject of the timer. Only an answer with one purged message says that the
// timer was pending.
func (s schedulesPeer) cancel(ctx context.Context, nc *nats.Conn, a *Adder, n int) error {
	ctx, stop := context.WithTimeout(ctx, addTimeout)
	defer stop()
	subject := s.waiting(a, strconv.Itoa(n))
	m, err := nc.RequestWithContext(ctx, "$JS.API.STREAM.PURGE."+peerStream, []byte(`{"filter":"`+subject+`"}`))
	if err != nil {
		return err
	}
	var answer struct {
		Success bool   `json:"success"`
		Purged  uint64 `json:"purged"`
	}
	if err := json.Unmarshal(m.Data, &answer); err != nil {
		return err
	}
	if !answer.Success || answer.Purged != 1 {
		return fmt.Errorf("the answer is %.200s", m.Data)
	}
	return nil
}

func (s schedulesPeer) follow(_ context.Context, a *Adder, count int, want schemas.State) (ledger, error) {
	return &peerLedger{peer: s, adder: a, count: count, want: want}, nil
}

func (s schedulesPeer) known(ctx context.Context) (int, error) {
	return s.countMessages(ctx, peerStream, "bench.peer.>")
}

func (s schedulesPeer) explain(ctx context.Context, a *Adder, n int) (string, error) {
	stream, err := s.js.Stream(ctx, peerStream)
	if err != nil {
		return "", err
	}
	_, err = stream.GetLastMsgForSubject(ctx, s.waiting(a, strconv.Itoa(n)))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return "neither pending nor fired", nil
	case err != nil:
		return "", err
	}
	return "pending still", nil
}

// peerLedger accounts for timers by the messages that wait in the stream.
type peerLedger struct {
	peer  schedulesPeer
	adder *Adder
	count int
	want  schemas.State
}

func (l *peerLedger) beside(context.Context) {}
func (l *peerLedger) end()                   {}

func (l *peerLedger) account(ctx context.Context, _ *progress, v *Verified) error {
	pending, err := l.peer.countMessages(ctx, peerStream, l.peer.waiting(l.adder, "*"))
	if err != nil {
		return err
	}
	if l.want == schemas.StatePending {
		*v = stored(l.count, pending)
		return nil
	}
	v.Expected, v.Found, v.Wrong = l.count, l.count, pending
	if pending > 0 {
		v.Why = map[string]int{"pending, not " + l.want.String(): pending}
	}
	return nil
}
