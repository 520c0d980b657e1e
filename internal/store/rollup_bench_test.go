//go:build unix

package store

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/belfryio/belfry/internal/jet"
	"github.com/belfryio/belfry/schemas"
)

// BenchmarkRollUp measures the three writes of a record (pending, claim, result) with three ways to
// remove the replaced revisions: a roll-up with the claim and one with the result, which Belfry uses for
// young timers; one roll-up, with the result, that removes both; and none. As many timers as the name
// states are claimed before the first of them gets its result.
//
// With one roll-up the server visits every message between the pending revision and the claim, if both
// are in one block of the file (fileStore.PurgeEx of nats-server 2.15.2). The cost grows with the
// distance.
func BenchmarkRollUp(b *testing.B) {
	for _, apart := range []int{100, 1000, 4000} {
		for _, c := range []struct {
			name          string
			claim, result bool
		}{{"both", true, true}, {"result", false, true}, {"none", false, false}} {
			b.Run(fmt.Sprintf("apart=%d/%s", apart, c.name), func(b *testing.B) {
				s := benchStore(b, 1)
				now, err := s.nowMs(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				r := benchRecord(now, now)
				claimed, done := *r, *r
				claimed.State, claimed.Queued = schemas.StateDelivered, false
				done.State, done.Queued, done.Body = schemas.StateSuccess, false, schemas.Body{}
				revs := make([]uint64, apart)
				write := func(first, n int, w Write, rollUp bool) {
					var wg sync.WaitGroup
					wg.Add(n)
					for i := range n {
						w.ID, w.Rev = benchID(first+i), revs[i]
						m := s.message(&w)
						if rollUp {
							m.RollUp()
						}
						subject, stream := s.timerSubject(w.ID)
						s.jet.WriteAsync(stream, "write timer", subject, m.Header, m.data, func(a jet.Ack, err error) {
							if err != nil {
								b.Error(err)
							}
							revs[i] = a.Seq
							wg.Done()
						})
						m.recycle()
					}
					wg.Wait()
				}
				measure(b, func() {
					for first := 0; first < b.N; first += apart {
						n := min(apart, b.N-first)
						clear(revs)
						write(first, n, Write{Record: r}, false)
						write(first, n, Write{Record: &claimed}, c.claim)
						write(first, n, Write{Record: &done, TTL: 24 * time.Hour}, c.result)
					}
				})
			})
		}
	}
}

// BenchmarkRollUpBehind measures roll-ups of one revision and of two, in a stream with 300,000 timers and a
// consumer that has read nothing yet (work-around 19).
func BenchmarkRollUpBehind(b *testing.B) {
	const timers = 300_000
	s := benchStore(b, 1)
	now, err := s.nowMs(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	record := benchRecord(now, now)
	subject := func(i int) string {
		key, _ := s.timerSubject(benchID(i))
		return key
	}
	write := func(first, n int, rollUp bool) {
		var wg sync.WaitGroup
		wg.Add(n)
		for i := first; i < first+n; i++ {
			w := Write{ID: benchID(i), Record: record}
			m := s.message(&w)
			hdr := jet.Header{}
			if rollUp {
				m.RollUp()
				hdr[jetstream.MsgRollup] = m.Header[jetstream.MsgRollup]
			}
			s.jet.PublishAsync("write timer", subject(i), hdr, m.data, func(_ jet.Ack, err error) {
				if err != nil {
					b.Error(err)
				}
				wg.Done()
			})
			m.recycle()
		}
		wg.Wait()
	}
	write(0, timers, false)
	stream, err := s.JetStream().Stream(b.Context(), s.subjects[0].stream)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := stream.CreateConsumer(b.Context(), jetstream.ConsumerConfig{FilterSubject: s.subjects[0].timer + "*", AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true}); err != nil {
		b.Fatal(err)
	}
	next := 0
	for removed := 1; removed <= 2; removed++ {
		b.Run(fmt.Sprintf("removed=%d", removed), func(b *testing.B) {
			if next+b.N > timers {
				b.Skip("no timers are left")
			}
			for range removed - 1 {
				write(next, b.N, false)
			}
			b.ResetTimer()
			write(next, b.N, true)
			next += b.N
		})
	}
}
