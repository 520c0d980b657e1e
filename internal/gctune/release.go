package gctune

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// A process that was busy keeps the memory of its garbage: a heap that was collected at
// four times its live size keeps that size, and Go returns free memory slowly. releaser returns
// the memory to the system
//
//   - once the process has allocated little for quietLooks intervals, if the gain is at least
//     releaseLeast and a part of the live heap (quietShare);
//   - while it allocates more, if the gain is at least releaseMuch and as much as the live heap, and
//     if the process would take busyLooks intervals to allocate the gain: it keeps far more garbage
//     than it needs. An example is the time after millions of adds, when only the search index works.
//
// A release costs three garbage collections, whose time is proportional to the live heap. Therefore there
// is at most one release in releasePause, and releases take at most 1/releaseShare of the time. In a quiet
// process whose gain is at least its live heap, as after millions of adds, they take at most
// 1/quietReleaseShare: such a process has the time, and does not make as much garbage again soon.
const (
	// releaseLeast and releaseMuch are minimum gains of a release, in bytes.
	releaseLeast = 64 << 20
	releaseMuch  = 512 << 20
	// quietShare: in a quiet process the gain must be more than the live heap divided by it.
	quietShare = 8
	// quietBytes bounds the allocations of a quiet process in one interval. An idle node
	// with an embedded server allocates about 0.5 MB a second; a timer costs about 40 kB.
	quietBytes = 8 << 20
	// quietLooks is the number of consecutive intervals in which the process must be quiet: 5
	// seconds. Returned memory comes back by one page fault for each 4 kB.
	quietLooks = 5
	// steadyLooks is the number of consecutive intervals after which a process that is not quiet is
	// steadily busy. A start with a million timers takes fewer.
	steadyLooks = 5
	// busyLooks is the least number of intervals for which the garbage would suffice.
	busyLooks = 30
	// releasePause is the least time between two releases. It is releaseShare or quietReleaseShare
	// times the duration of the last one, if that is longer.
	releasePause      = 30 * time.Second
	releaseShare      = 100
	quietReleaseShare = 10
)

// heap has values of the runtime's metrics, in bytes.
type heap struct {
	allocated uint64 // since the start
	live      uint64 // after the last collection
	resident  uint64 // of the heap: objects, garbage and free spans, without what was returned
}

// releaser decides when memory is returned.
type releaser struct {
	last heap
	// rate is the number of bytes allocated in one interval. It rises at once, and falls as a moving
	// average does.
	rate uint64
	// quiet and busy count the last intervals in a row in which the process was quiet, or not.
	quiet, busy int
	at          time.Time // of the last release
	took        time.Duration
}

// due records new values and reports whether the process should return memory now.
func (r *releaser) due(h heap, now time.Time) bool {
	allocated := h.allocated - r.last.allocated
	r.rate = max(allocated, (7*r.rate+allocated)/8)
	if allocated > quietBytes {
		r.quiet, r.busy = 0, r.busy+1
	} else {
		r.quiet, r.busy = r.quiet+1, 0
	}
	r.last = h
	gain := h.resident - min(h.live, h.resident)
	quiet := r.quiet >= quietLooks && gain >= max(releaseLeast, h.live/quietShare)
	spare := gain >= max(releaseMuch, h.live) && gain >= r.rate*busyLooks
	share := releaseShare
	if quiet && gain >= h.live {
		share = quietReleaseShare
	}
	if !quiet && !spare || now.Sub(r.at) < max(releasePause, time.Duration(share)*r.took) {
		return false
	}
	r.at = now
	return true
}

// heapMetrics names the metrics that readHeap reads. readHeap relies on their order.
var heapMetrics = []string{
	"/gc/heap/allocs:bytes", "/gc/heap/live:bytes",
	"/memory/classes/heap/objects:bytes", "/memory/classes/heap/unused:bytes", "/memory/classes/heap/free:bytes",
}

func readHeap() heap {
	s := make([]metrics.Sample, len(heapMetrics))
	for i := range s {
		s[i].Name = heapMetrics[i]
	}
	metrics.Read(s)
	v := make([]uint64, len(s))
	for i := range s {
		if s[i].Value.Kind() == metrics.KindUint64 { // 0 where this runtime does not have it
			v[i] = s[i].Value.Uint64()
		}
	}
	return heap{allocated: v[0], live: v[1], resident: v[2] + v[3] + v[4]}
}

// look returns memory to the system if due says so. It returns the bytes alive after the last
// collection.
func (r *releaser) look() (live uint64) {
	h := readHeap()
	if now := time.Now(); r.due(h, now) {
		// nats-server has buffers of 8 MB: the first collection puts those of its block caches into a
		// sync.Pool, the second one moves them aside there, and that of FreeOSMemory frees them.
		runtime.GC()
		runtime.GC()
		debug.FreeOSMemory()
		r.took = time.Since(now)
		h = readHeap()
	}
	return h.live
}
