package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/internal/pause"
	"github.com/belfryio/belfry/schemas"
)

func (c *cli) tailCommand() *cobra.Command {
	var count int
	var since string
	cmd := &cobra.Command{
		Use:   "tail SERVICE",
		Short: "Show fired events as they come, with their lateness",
		Long: `Show the events of a service as they fire, until interrupted. "*" means every service.
The command only reads the stream TIMERS_FIRED, so it does not affect other readers.

LATE is the time between the due time of a timer, or its add if that was later, and the
time at which the stream stored its event, by the server's clock.`,
		Example: `  belfry tail orders
  belfry tail orders --since 1h -n 10 -o json`,
		Args: exactly(1),
	}
	cmd.Flags().IntVarP(&count, "count", "n", 0, "stop after this many events; 0 means never")
	cmd.Flags().StringVar(&since, "since", "", "also show events that fired in this period, or since this time: 10m, or an RFC 3339 time (default: now)")
	var cfg jetstream.OrderedConsumerConfig
	check := func(args []string) error {
		if args[0] != "*" && !schemas.ValidService(args[0]) {
			return usagef("%.80q is not a service name: give 1 to %d letters, digits, '-' or '_', or \"*\" for all", args[0], schemas.MaxServiceLength)
		}
		if count < 0 {
			return usagef("--count must not be negative")
		}
		cfg = jetstream.OrderedConsumerConfig{FilterSubjects: []string{schemas.SubjectFired(args[0])}, DeliverPolicy: jetstream.DeliverByStartSequencePolicy}
		if since != "" {
			t, err := parseSince(since)
			if err != nil {
				return err
			}
			cfg.DeliverPolicy, cfg.OptStartTime = jetstream.DeliverByStartTimePolicy, &t
		}
		return nil
	}
	return c.following(cmd, check, func(ctx context.Context, s session) error { return c.tail(ctx, s, cfg, count) })
}

// tidyTimeout bounds the removal of a consumer.
const tidyTimeout = time.Second

func parseSince(s string) (time.Time, error) {
	if d, err := cmdline.ParseDuration(s); err == nil && d >= 0 {
		return time.Now().Add(-d), nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return t, usagef("--since %q is neither a duration such as 10m nor an RFC 3339 time", s)
	}
	return t, nil
}

func (c *cli) tail(ctx context.Context, s session, cfg jetstream.OrderedConsumerConfig, count int) error {
	js, err := jetstream.New(s.Conn())
	if err != nil {
		return err
	}
	cons, err := openFired(ctx, s, js, cfg)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, jetstream.ErrJetStreamNotEnabled):
		return schemas.Errorf(schemas.CodeUnavailable, "this NATS server has no stream %s: has a Belfry node run there?", schemas.StreamFired)
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return schemas.Errorf(schemas.CodeUnavailable, "tail reads the stream %s, and this user's account has no JetStream: connect as a user of Belfry's account; a team subscribes to timers.fired.<service> (nats sub)", schemas.StreamFired)
	case err != nil:
		return schemas.Errorf(schemas.CodeUnavailable, "read %s: %w", schemas.StreamFired, err)
	}
	msgs, err := cons.Messages()
	if err != nil {
		return schemas.Errorf(schemas.CodeUnavailable, "read %s: %w", schemas.StreamFired, err)
	}
	defer pause.Within(tidyTimeout, func() {
		msgs.Stop()
		removeConsumer(ctx, js, cons) // otherwise the server keeps it for minutes
	})
	next := receive(ctx, msgs)
	t := table{c.out, []int{c.zone.clockWidth(), 9, schemas.TimerIDLength, 12, 20, 16}}
	if !c.json() {
		if err := t.row("FIRED", "LATE", "TIMER", "SERVICE", "ID", "TYPE", "DATA"); err != nil {
			return err
		}
	}
	for n := 0; count == 0 || n < count; n++ {
		var r received
		select {
		case r = <-next:
		case <-ctx.Done():
		}
		switch {
		case ctx.Err() != nil:
			return nil // the user interrupted the command
		case r.err != nil:
			return schemas.Errorf(schemas.CodeUnavailable, "read %s: %w", schemas.StreamFired, r.err)
		}
		f, err := readFired(r.msg)
		if err != nil {
			// Not an event of Belfry's: other clients with the permission may publish there.
			if _, err := fmt.Fprintf(c.err, "a message on %s is not a fired event: %v\n", printable(r.msg.Subject()), err); err != nil {
				return err
			}
			continue
		}
		if c.json() {
			err = c.printJSON(f)
		} else {
			err = t.row(c.zone.clock(f.Stored), fmt.Sprintf("%+.3fs", float64(f.LatenessMs)/1000), f.Timer.String(), f.Service, cut(f.ID, 40), cut(f.Type, 30), cut(f.data, 80))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// received is a message of the consumer of tail, or the error that ended it.
type received struct {
	msg jetstream.Msg
	err error
}

// receive passes on the messages of a consumer until ctx ends. Next ignores its context while the library replaces the
// consumer, and that does not end while the stream is missing. So receive calls Next in a goroutine.
func receive(ctx context.Context, msgs jetstream.MessagesContext) <-chan received {
	next := make(chan received)
	go func() {
		for {
			msg, err := msgs.Next(jetstream.NextContext(ctx))
			select {
			case next <- received{msg, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return next
}

// openFired creates the consumer of tail. Without --since it begins after the last message of the stream.
//
// The library replaces an ordered consumer after every reconnect, and when the server has lost it. Before the first
// event, the new consumer uses the start of the old one. So the start must be a sequence or a time: with DeliverNew it is the
// end of the stream at the time of the replacement, so the events in between would be omitted.
func openFired(ctx context.Context, s session, js jetstream.JetStream, cfg jetstream.OrderedConsumerConfig) (jetstream.Consumer, error) {
	// An interrupt must not end these requests: the server may have made a consumer, and only its answer has the
	// name, because the consumer can only be removed by its name.
	ctx = context.WithoutCancel(ctx)
	if cfg.DeliverPolicy == jetstream.DeliverByStartSequencePolicy {
		next, err := nextSequence(ctx, s, js, cfg.FilterSubjects[0])
		if err != nil {
			return nil, err
		}
		cfg.OptStartSeq = next
	}
	call, cancel := s.call(ctx)
	defer cancel()
	return js.OrderedConsumer(call, schemas.StreamFired, cfg)
}

// nextSequence returns the sequence of the next message of the stream. It reads this from the answer to the creation of a
// consumer, which needs only the permissions for reading the events. A request for the stream's information would need another.
//
// A consumer with DeliverNew begins after the stream's last message, whatever its filter, and the server reports
// everything before its beginning as delivered (selectStartingSeqNo and infoWithSnapAndReply in nats-server 2.15.2).
func nextSequence(ctx context.Context, s session, js jetstream.JetStream, filter string) (uint64, error) {
	call, cancel := s.call(ctx)
	defer cancel()
	cons, err := js.CreateConsumer(call, schemas.StreamFired, jetstream.ConsumerConfig{
		FilterSubject: filter, DeliverPolicy: jetstream.DeliverNewPolicy, AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1,
	})
	if err != nil {
		return 0, err
	}
	removeConsumer(ctx, js, cons) // otherwise the server keeps it for some 5 s
	return cons.CachedInfo().Delivered.Stream + 1, nil
}

// removeConsumer deletes a consumer, even if ctx has ended. It ignores errors, because the user may lack the permission, and
// the server removes a consumer that nobody reads from anyway.
func removeConsumer(ctx context.Context, js jetstream.JetStream, cons jetstream.Consumer) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTimeout)
	defer cancel()
	_ = js.DeleteConsumer(ctx, schemas.StreamFired, cons.CachedInfo().Name)
}

// firedEvent is one line of tail.
type firedEvent struct {
	Timer      schemas.TimerID `json:"timer"`
	Service    string          `json:"service"`
	ID         string          `json:"id"`
	Source     string          `json:"source"`
	Type       string          `json:"type"`
	Scheduled  string          `json:"scheduled"`
	Fired      string          `json:"fired"`
	Stored     time.Time       `json:"stored"`
	LatenessMs int64           `json:"lateness_ms"`
	Run        uint32          `json:"run"`
	Missed     uint32          `json:"missed,omitempty"`
	Trigger    string          `json:"trigger,omitempty"`
	Sequence   uint64          `json:"sequence"`
	Event      json.RawMessage `json:"event"`

	data string
}

func readFired(m jetstream.Msg) (firedEvent, error) {
	e, _, fired, err := schemas.ParseFired(m.Headers(), m.Data())
	if err != nil {
		return firedEvent{}, err
	}
	meta, err := m.Metadata()
	if err != nil {
		return firedEvent{}, err
	}
	whole, err := json.Marshal(e)
	if err != nil {
		return firedEvent{}, err
	}
	// The lateness of a timer that was added after its due time counts from the add. Only the
	// claim has the time of the add.
	from := fired.ScheduledMs
	if claim, err := schemas.ParseClaim(m.Headers().Get(schemas.HeaderClaim)); err == nil {
		from = max(from, claim.AddedMs)
	}
	trigger := ""
	if fired.Trigger != schemas.TriggerSchedule {
		trigger = fired.Trigger.String()
	}
	return firedEvent{
		Timer: schemas.NewTimerID(e.Source(), e.ID()), Service: schemas.ServiceOfSubject(m.Subject()), ID: e.ID(), Source: e.Source(), Type: e.Type(),
		Scheduled: schemas.FormatTime(fired.ScheduledMs), Fired: schemas.FormatTime(fired.FiredMs), Stored: meta.Timestamp.UTC(),
		LatenessMs: meta.Timestamp.UnixMilli() - from, Run: fired.Run, Missed: fired.Missed, Trigger: trigger, Sequence: meta.Sequence.Stream, Event: whole, data: string(e.Data()),
	}, nil
}
