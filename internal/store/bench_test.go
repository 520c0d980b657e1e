//go:build unix

package store

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

// cpuTime returns the CPU time that this process, client and server, has used.
func cpuTime(b *testing.B) time.Duration {
	var ru syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &ru); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}

// measure reports the CPU time of an operation, in addition to the wall time.
func measure(b *testing.B, f func()) {
	b.ResetTimer()
	before := cpuTime(b)
	f()
	b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
}

func benchStore(b *testing.B, shards int, options ...natstest.Option) *Store {
	b.Helper()
	return benchStoreOf(b, shards, false, options...)
}

func benchStoreOf(b *testing.B, shards int, grouped bool, options ...natstest.Option) *Store {
	b.Helper()
	nc := natstest.Run(b, options...).InProcess()
	s, err := Open(b.Context(), nc, Config{Node: "bench", GroupCommit: grouped, Geometry: schemas.Geometry{Shards: shards, SlotWidth: time.Second, WheelSize: 100_000_000}}, zerolog.Nop())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(s.Close)
	if _, err := s.Beat(b.Context()); err != nil {
		b.Fatal(err)
	}
	return s
}

// BenchmarkPublish compares the publisher with the publisher of nats.go.
func BenchmarkPublish(b *testing.B) {
	payload := make([]byte, 400)
	for _, safe := range []bool{false, true} {
		var options []natstest.Option
		name := "fast"
		if safe {
			name, options = "safe", []natstest.Option{natstest.SyncAlways}
		}
		b.Run(name+"/own", func(b *testing.B) {
			s := benchStore(b, 1, options...)
			measure(b, func() {
				var wg sync.WaitGroup
				wg.Add(b.N)
				for range b.N {
					s.PublishAsync(Msg{Subject: "timers.fired.bench", Data: payload}, func(_ uint64, _ bool, err error) {
						if err != nil {
							b.Error(err)
						}
						wg.Done()
					})
				}
				wg.Wait()
			})
		})
		b.Run(name+"/nats.go", func(b *testing.B) {
			s := benchStore(b, 1, options...)
			js, err := jetstream.New(s.Conn(), jetstream.WithPublishAsyncMaxPending(4096))
			if err != nil {
				b.Fatal(err)
			}
			measure(b, func() {
				for range b.N {
					for {
						_, err := js.PublishMsgAsync(&nats.Msg{Subject: "timers.fired.bench", Data: payload}, jetstream.WithStallWait(time.Minute))
						if err == nil {
							break
						}
						b.Fatal(err)
					}
				}
				<-js.PublishAsyncComplete()
			})
		})
	}
}

// BenchmarkLife measures the four writes of a timer: index entry, record, claim and result.
// It does so for timers added seconds ago (young) and hours ago (old), without syncs, with a
// sync for each write, and with batch commits.
func BenchmarkLife(b *testing.B) {
	for _, shards := range []int{1, 2, 4} {
		for _, c := range []struct {
			name          string
			age           time.Duration
			warm          bool
			sync, grouped bool
		}{
			{name: "young"}, {name: "old", age: time.Hour}, {name: "old, warm", age: time.Hour, warm: true},
			{name: "young, synced", sync: true}, {name: "young, synced, grouped", sync: true, grouped: true}, {name: "young, grouped", grouped: true},
			{name: "old, synced, grouped", age: time.Hour, sync: true, grouped: true},
			{name: "old, warm, synced, grouped", age: time.Hour, warm: true, sync: true, grouped: true},
		} {
			b.Run(fmt.Sprintf("shards=%d/%s", shards, c.name), func(b *testing.B) {
				var options []natstest.Option
				if c.sync {
					options = append(options, natstest.SyncAlways)
				}
				s := benchStoreOf(b, shards, c.grouped, options...)
				age := c.age
				for n := range s.subjects {
					s.revisionGC.writes[n].warm.Store(c.warm)
				}
				now, err := s.nowMs(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				r := benchRecord(now, now-age.Milliseconds())
				claimed, done := *r, *r
				claimed.State, claimed.Queued = schemas.StateDelivered, false
				done.State, done.Queued, done.Body = schemas.StateSuccess, false, schemas.Body{}
				measure(b, func() {
					const batch = 2048
					revs := make([]uint64, batch)
					for first := 0; first < b.N; first += batch {
						n := min(batch, b.N-first)
						writes := make([]Write, n)
						for i := range writes {
							writes[i] = Write{ID: benchID(first + i), Record: r}
						}
						for i, res := range s.Create(b.Context(), writes) {
							if res.Err != nil {
								b.Fatal(res.Err)
							}
							revs[i] = res.Rev
						}
						for _, next := range []Write{{Record: &claimed}, {Record: &done, TTL: 24 * time.Hour}} {
							var wg sync.WaitGroup
							wg.Add(n)
							for i := range n {
								w := next
								w.ID, w.Rev = writes[i].ID, revs[i]
								s.UpdateAsync(w, func(res Result) {
									if res.Err != nil {
										b.Error(res.Err)
									}
									revs[i] = res.Rev
									wg.Done()
								})
							}
							wg.Wait()
						}
					}
					s.rem.drain()
				})
			})
		}
	}
}

// BenchmarkLoad reads ticks of 70 and of 5,000 timers out of a shard of 250,000.
func BenchmarkLoad(b *testing.B) {
	const total, slots = 250_000, 3500
	s := benchStore(b, 1)
	now, err := s.nowMs(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	base := s.geo.Tick(now) + 100
	large := base + slots
	for first := 0; first < total; {
		writes := make([]Write, 0, 4096)
		for ; len(writes) < cap(writes) && first < total; first++ {
			tick := base + int64(first%slots)
			if first < 5000 {
				tick = large
			}
			writes = append(writes, Write{ID: benchID(first), Record: benchRecord(s.geo.TickStart(tick), now)})
		}
		for _, res := range s.Create(b.Context(), writes) {
			if res.Err != nil {
				b.Fatal(res.Err)
			}
		}
	}
	load := func(b *testing.B, ticks []int64) (n int) {
		for after := uint64(0); ; {
			l, err := s.LoadTicks(b.Context(), 0, ticks, 1000, after, 0, nil)
			if err != nil {
				b.Fatal(err)
			}
			n += len(l.Timers)
			if after = l.Next; after == 0 {
				return n
			}
		}
	}
	b.Run("tick of 70", func(b *testing.B) {
		var n int
		measure(b, func() {
			for i := range b.N {
				n += load(b, []int64{base + int64(i%slots)})
			}
		})
		b.ReportMetric(float64(n)/float64(b.N), "timers/op")
	})
	b.Run("tick of 5000", func(b *testing.B) {
		var n int
		measure(b, func() {
			for range b.N {
				n += load(b, []int64{large})
			}
		})
		b.ReportMetric(float64(n)/float64(b.N), "timers/op")
	})
	b.Run("tick of 5000 by next_by_subj", func(b *testing.B) {
		var n int
		measure(b, func() {
			for range b.N {
				for after := uint64(0); ; {
					msgs, more, err := s.jet.Next(b.Context(), s.subjects[0].stream, s.slotPrefix(0, large)+">", after, 1000)
					if err != nil {
						b.Fatal(err)
					}
					timers, err := s.indexed(b.Context(), 0, s.timersOf(msgs), 1000, 0, nil)
					if err != nil {
						b.Fatal(err)
					}
					n += len(timers)
					if more == 0 || len(msgs) == 0 {
						break
					}
					after = msgs[len(msgs)-1].Sequence
				}
			}
		})
		b.ReportMetric(float64(n)/float64(b.N), "timers/op")
	})
	b.Run("512 empty ticks", func(b *testing.B) {
		ticks := make([]int64, 512)
		for i := range ticks {
			ticks[i] = large + 10 + int64(i)
		}
		measure(b, func() {
			for range b.N {
				load(b, ticks)
			}
		})
	})
	b.Run("scan of 250000", func(b *testing.B) {
		var n int
		measure(b, func() {
			for range b.N {
				if err := s.ScanQueued(b.Context(), 0, 1<<62, func(Timer) error { n++; return nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.ReportMetric(float64(n)/float64(b.N), "timers/op")
	})
	b.Run("list page", func(b *testing.B) {
		measure(b, func() {
			for range b.N {
				if _, err := s.List(b.Context(), ListQuery{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
	b.Run("get", func(b *testing.B) {
		measure(b, func() {
			for i := range b.N {
				if _, err := s.Get(b.Context(), benchID(i%total)); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}

// BenchmarkTail follows a backlog, and then single writes.
func BenchmarkTail(b *testing.B) {
	b.Run("backlog", func(b *testing.B) {
		s := benchStore(b, 1)
		now, err := s.nowMs(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		for first := 0; first < b.N; {
			writes := make([]Write, 0, 4096)
			for ; len(writes) < cap(writes) && first < b.N; first++ {
				writes = append(writes, Write{ID: benchID(first), Record: benchRecord(now+1e9, now)})
			}
			s.Create(b.Context(), writes)
		}
		measure(b, func() {
			var n atomic.Int64
			all := make(chan struct{})
			tail, err := s.Tail(b.Context(), 0, 0, func(Timer) {
				if n.Add(1) == int64(b.N) {
					close(all)
				}
			})
			if err != nil {
				b.Fatal(err)
			}
			<-all
			tail.Stop()
		})
	})
	b.Run("write to tail", func(b *testing.B) {
		s := benchStore(b, 1)
		now, err := s.nowMs(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		got := make(chan struct{}, 1)
		tail, err := s.Tail(context.Background(), 0, 0, func(Timer) { got <- struct{}{} })
		if err != nil {
			b.Fatal(err)
		}
		defer tail.Stop()
		s.Create(b.Context(), []Write{{ID: benchID(-1), Record: benchRecord(now+1e9, now)}})
		<-got
		measure(b, func() {
			for i := range b.N {
				if res := s.Create(b.Context(), []Write{{ID: benchID(i), Record: benchRecord(now+1e9, now)}})[0]; res.Err != nil {
					b.Fatal(res.Err)
				}
				<-got
			}
		})
	})
}

// BenchmarkClock measures the compare-and-set of a shard's clock, and a heartbeat.
func BenchmarkClock(b *testing.B) {
	s := benchStore(b, 1)
	b.Run("write", func(b *testing.B) {
		c, rev, err := s.ReadClock(b.Context(), 0)
		if err != nil {
			b.Fatal(err)
		}
		measure(b, func() {
			for range b.N {
				if rev, err = s.WriteClock(b.Context(), 0, c, rev); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
	b.Run("beat", func(b *testing.B) {
		measure(b, func() {
			for range b.N {
				if _, err := s.Beat(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}
