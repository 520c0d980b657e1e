package scheduler

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// BenchmarkFirstOfBurst measures the time that the core of a shard with 25,000 timers due at one instant
// takes until it has answered the results of the first 16 claims with publishes. Writes take no time.
func BenchmarkFirstOfBurst(b *testing.B) {
	const timers, startMs = 25_000, 1_800_000_000_000
	for b.Loop() {
		b.StopTimer()
		k := NewCore(CoreConfig{
			Geometry: schemas.Geometry{Shards: 1, SlotWidth: time.Second, WheelSize: 100_000_000}, HorizonMs: 5000, ScanBehindMs: 900_000,
			MaxLoaded: 100_000, MaxInflight: DefaultMaxInflight, FirstInflight: firstInflight, FirstFireAtOnce: firstFireAtOnce, FireAtOnce: fireAtOnce,
			SweepMs: 600_000, Retention: time.Hour,
		}, store.Clock{TimeMs: startMs}, 1)
		k.Step(startMs, EvTick{})
		k.Step(startMs, EvLoaded{Load: store.Load{Complete: true}})
		const dueMs = startMs + 3001
		for i := range timers {
			var id schemas.TimerID
			binary.BigEndian.PutUint64(id[:], uint64(i)+1)
			var r schemas.Record
			r.State, r.Queued, r.Service, r.DueMs, r.AddedMs = schemas.StatePending, true, "svc", dueMs, startMs
			k.Step(startMs, EvTail{store.Timer{ID: id, Rev: uint64(i) + 1, Record: r}})
		}
		k.Step(dueMs-1, EvTick{})
		b.StartTimer()
		var claims []ActClaim
		for _, a := range k.Step(dueMs, EvTick{}) {
			if c, ok := a.(ActClaim); ok {
				claims = append(claims, c)
			}
		}
		published := 0
		for i, c := range claims {
			for _, a := range k.Step(dueMs, EvClaimed{ID: c.ID, Rev: timers + uint64(i) + 1}) {
				if _, ok := a.(ActPublish); ok {
					published++
				}
			}
		}
		if published != firstInflight {
			b.Fatalf("%d publishes", published)
		}
	}
}
