package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// rawWorkload measures the cost of JetStream operations on the same server without Belfry, for
// comparison with the cost of a timer.
type rawWorkload struct{}

const (
	defaultRawCount = 50_000
	// A stream with all messages, and a stream with the last message of each subject, as
	// a key/value bucket has.
	rawLog, rawBucket   = "BENCH_RAW_LOG", "BENCH_RAW_BUCKET"
	rawSubject, rawKeys = "bench.raw.log", "bench.raw.key."
	// settleRaw is a pause in which the work of the run ends, so that it does not count as
	// JetStream's.
	settleRaw = 500 * time.Millisecond
)

func (rawWorkload) Name() string { return "raw" }
func (rawWorkload) About() string {
	return "JetStream's own operations on the same server: publish, create and compare-and-set"
}

func (rawWorkload) Defaults(c *Config) {
	c.Raw = cmp.Or(c.Raw, defaultRawCount)
}

func (rawWorkload) Run(ctx context.Context, e *Env) (*Result, error) {
	return &Result{}, e.Start(ctx)
}

// raw measures Config.Raw operations of each kind and adds figures of their cost.
func (e *Env) raw(ctx context.Context, r *Result) (err error) {
	p := e.progress()
	defer p.end()
	if !waitUntil(ctx, time.Now().Add(settleRaw)) {
		return context.Cause(ctx)
	}
	for _, cfg := range []jetstream.StreamConfig{
		{Name: rawLog, Subjects: []string{rawSubject}},
		{Name: rawBucket, Subjects: []string{rawKeys + ">"}, MaxMsgsPerSubject: 1},
	} {
		cfg.Storage, cfg.Replicas = jetstream.FileStorage, 1
		if e.deployed != nil {
			cfg.Replicas = e.deployed.replicas
		}
		if _, err := e.js.CreateStream(ctx, cfg); err != nil {
			return fmt.Errorf("make the streams of raw operations: %w", err)
		}
		defer func() { err = errors.Join(err, e.js.DeleteStream(context.WithoutCancel(ctx), cfg.Name)) }()
	}
	nc, err := e.Connect("belfry bench raw")
	if err != nil {
		return err
	}
	data := []byte(strings.Repeat("x", e.Size))
	seqs := make([]uint64, e.Raw)
	key := func(n int) *nats.Msg {
		return &nats.Msg{Subject: rawKeys + strconv.Itoa(n), Header: nats.Header{}, Data: data}
	}
	for _, op := range []struct {
		name string
		msg  func(n int) *nats.Msg
		seq  bool
	}{
		{"publish", func(int) *nats.Msg { return &nats.Msg{Subject: rawSubject, Data: data} }, false},
		{"create", func(n int) *nats.Msg {
			m := key(n)
			m.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{"0"}
			return m
		}, true},
		{"compare-and-set", func(n int) *nats.Msg {
			m := key(n)
			m.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(seqs[n], 10)}
			return m
		}, true},
	} {
		p.show("raw JetStream: %d × %s", e.Raw, op.name)
		m, err := e.meter(ctx)
		if err != nil {
			return err
		}
		if err := rawOps(ctx, nc, e.Raw, op.msg, func(n int, seq uint64) {
			if op.seq {
				seqs[n] = seq
			}
		}); err != nil {
			return fmt.Errorf("raw %s: %w", op.name, err)
		}
		u, err := m.stop(ctx)
		if err != nil {
			return err
		}
		r.figure("raw JetStream "+op.name, float64(e.Raw)/u.took.Seconds(), "1/s")
		if u.cpu > 0 && !u.clientsOnly {
			r.figure(rawCPU(op.name), u.cpu/float64(e.Raw)*1e6, "µs")
		}
	}
	if timer, one := r.value(cpuFigure), r.value(rawCPU("publish")); timer > 0 && one > 0 {
		r.figure("a timer costs, in raw publishes", timer/one, "")
	}
	return nil
}

func rawCPU(op string) string { return "CPU a raw JetStream " + op }

// rawOps sends count messages, with at most window of them unanswered, and waits for all answers.
func rawOps(ctx context.Context, nc *nats.Conn, count int, msg func(int) *nats.Msg, done func(n int, seq uint64)) error {
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(window))
	if err != nil {
		return err
	}
	type call struct {
		n int
		f jetstream.PubAckFuture
	}
	calls := make(chan call, window)
	failed := make(chan error, 1)
	go func() {
		defer close(failed)
		for c := range calls {
			select {
			case a := <-c.f.Ok():
				done(c.n, a.Sequence)
			case err := <-c.f.Err():
				failed <- err
				for range calls { // drain, so that the sender can end
				}
				return
			}
		}
	}()
	for n := 0; n < count && ctx.Err() == nil && err == nil; n++ {
		var f jetstream.PubAckFuture
		if f, err = js.PublishMsgAsync(msg(n), jetstream.WithStallWait(addTimeout)); err == nil {
			calls <- call{n, f}
		}
	}
	close(calls)
	if ferr := <-failed; ferr != nil {
		return ferr
	}
	if err == nil {
		err = ctx.Err()
	}
	return err
}
