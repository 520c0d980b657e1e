// Package sizing estimates the memory, disk and CPU that a load needs. docs/scaling.md has the formulas and the
// measurements that they come from. The package is pure: it reads nothing and decides nothing.
package sizing

import (
	"fmt"
	"time"

	"github.com/belfryio/belfry/internal/store"
)

// What was measured on two cores with file storage; docs/scaling.md and docs/internals have the figures.
const (
	// keyBytes is the server's memory for one key of a bucket.
	keyBytes = 620
	// baseBytes is the memory of a node without timers, its embedded server included.
	baseBytes = 64 << 20
	// serviceBytes is the memory of a service whose consumers exist.
	serviceBytes = 100_000
	// loadedBytes is the memory of a timer that is due within the horizon, without its event.
	loadedBytes = 400
	// garbageFactor is the heap that a node may take for each byte that is alive.
	garbageFactor = 2
	// recordBytes, firedBytes and messageBytes are the bytes on disk of a pending timer, of a fired event and
	// of a message without an event, in addition to the event's data.
	recordBytes, firedBytes, messageBytes = 600, 400, 150
	// timerMicros and callbackMicros are the CPU time of a timer and of an HTTP callback, at most.
	timerMicros, callbackMicros = 180, 200
	// clusterCPU is the factor for three replicas, all servers together; five were not measured, and each further
	// replica counts as half of that.
	clusterCPU = 2.5
	// headroom is the share of the CPU to keep free for peaks and failures.
	headroom = 0.5
)

// Load describes the load of a cluster.
type Load struct {
	// Rate is the number of timers that come due in a second, on average over hours. Runs of schedules count.
	Rate float64
	// Pending is the number of timers that wait at the same time.
	Pending float64
	// Payload is the size of an event's data, in bytes.
	Payload float64
	// Retention, SweepDelay, FiredMaxAge and Horizon are the settings of these names.
	Retention, SweepDelay, FiredMaxAge, Horizon time.Duration
	// Services is the number of services that are in use at the same time.
	Services int
	// Replicas of every stream.
	Replicas int
	// Callbacks is true if timers have callbacks over HTTP.
	Callbacks bool
}

// Validate returns an error for a load with a value out of range.
func (l Load) Validate() error {
	for name, v := range map[string]float64{"rate": l.Rate, "pending": l.Pending, "payload": l.Payload} {
		if v < 0 || v > 1e12 || v != v {
			return fmt.Errorf("%s is %g; it must be 0 to 1e12", name, v)
		}
	}
	if l.Services < 0 || l.Services > 1_000_000 {
		return fmt.Errorf("services is %d; it must be 0 to 1000000", l.Services)
	}
	if l.Replicas != 1 && l.Replicas != 3 && l.Replicas != 5 {
		return fmt.Errorf("replicas is %d; it must be 1, 3 or 5", l.Replicas)
	}
	return nil
}

// Need is the memory, disk and CPU that a load needs. Bytes are for each server of the cluster. Each server has all
// data if there are as many servers as replicas.
type Need struct {
	// Keys is the largest number of keys that the server holds. Timers that are added together share index entries,
	// so there may be fewer.
	Keys float64 `json:"keys"`
	// MemoryAlive is the memory in use, and Memory the recommended memory of the machine or the container.
	MemoryAlive float64 `json:"memory_alive_bytes"`
	Memory      float64 `json:"memory_bytes"`
	// DiskShards and DiskFired are the disk space of the buckets and of TIMERS_FIRED. Disk is their sum.
	DiskShards float64 `json:"disk_shards_bytes"`
	DiskFired  float64 `json:"disk_fired_bytes"`
	Disk       float64 `json:"disk_bytes"`
	// DiskWrites is the number of bytes that the server writes in a second.
	DiskWrites float64 `json:"disk_writes_bytes_per_second"`
	// Cores is the CPU of all servers and nodes together, with half of it kept free.
	Cores float64 `json:"cores"`
}

// IndexKeep is the time for which the index entry of a timer stays after its due time.
func (l Load) IndexKeep() time.Duration { return max(store.DefaultIndexKeep, 3*l.SweepDelay) }

// Of returns the need of a load.
func Of(l Load) Need {
	var n Need
	finished := l.Rate * l.Retention.Seconds()
	index := l.Rate * l.IndexKeep().Seconds()
	n.Keys = 2*l.Pending + finished + index

	loaded := min(l.Rate*l.Horizon.Seconds(), l.Pending)
	n.MemoryAlive = baseBytes + keyBytes*n.Keys + serviceBytes*float64(l.Services) + loaded*(loadedBytes+l.Payload)
	n.Memory = garbageFactor * n.MemoryAlive

	n.DiskShards = l.Pending*(l.Payload+recordBytes) + finished*2*messageBytes + index*messageBytes
	n.DiskFired = l.Rate * l.FiredMaxAge.Seconds() * (l.Payload + firedBytes)
	n.Disk = n.DiskShards + n.DiskFired
	n.DiskWrites = l.Rate * (3*l.Payload + 6*messageBytes)

	micros := float64(timerMicros)
	if l.Callbacks {
		micros += callbackMicros
	}
	if l.Replicas > 1 {
		micros *= clusterCPU * float64(l.Replicas+1) / 4
	}
	n.Cores = l.Rate * micros / 1e6 / headroom
	return n
}
