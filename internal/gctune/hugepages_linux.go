//go:build !race

package gctune

import (
	"math/bits"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"unsafe"
)

const (
	thpSetting = "/sys/kernel/mm/transparent_hugepage/enabled"
	overcommit = "/proc/sys/vm/overcommit_memory"
)

// newHugePages makes Go reserve bytes of its heap and returns their addresses, with huge pages
// requested. It returns a range of size 0, for which set does nothing, where a request has no
// effect or the reservation could fail: if the system grants huge pages to every process or to
// none, accounts for memory that is not used yet, or limits the process's addresses.
//
// Call it once in a process, before the heap has grown: only fresh memory is not touched.
func newHugePages(bytes int) *hugePages {
	if bytes <= 0 || !byRequest() || accounted() {
		return &hugePages{}
	}
	// Go's heap keeps its addresses for the life of the process and uses the lowest free ones
	// first. So the heap grows into these bytes as soon as they are freed. Fresh memory from the
	// system needs no clearing, so no page is touched here.
	b := make([]byte, bytes)
	p := &hugePages{addr: uintptr(unsafe.Pointer(unsafe.SliceData(b))), size: uintptr(bytes)}
	p.set(true)
	runtime.KeepAlive(b)
	// Free the bytes, and tell the runtime that the system has their memory.
	debug.FreeOSMemory()
	return p
}

// set requests huge pages for the range, or small ones. The pages in use stay as they are.
func (p *hugePages) set(on bool) {
	if p.size == 0 || p.on == on {
		return
	}
	advice := syscall.MADV_NOHUGEPAGE
	if on {
		advice = syscall.MADV_HUGEPAGE
	}
	// A kernel without huge pages refuses. Then there is nothing to do, now and later.
	if _, _, errno := syscall.Syscall(syscall.SYS_MADVISE, p.addr, p.size, uintptr(advice)); errno != 0 {
		p.size = 0
		return
	}
	p.on = on
}

// byRequest reports whether the system gives huge pages to those who ask for them.
func byRequest() bool {
	b, err := os.ReadFile(thpSetting)
	return err == nil && strings.Contains(string(b), "[madvise]")
}

// accounted reports whether memory counts against a limit before it is used.
func accounted() bool {
	if bits.UintSize < 64 {
		return true
	}
	if b, err := os.ReadFile(overcommit); err != nil || strings.TrimSpace(string(b)) == "2" {
		return true
	}
	for _, resource := range []int{syscall.RLIMIT_AS, syscall.RLIMIT_DATA} {
		var limit syscall.Rlimit
		if err := syscall.Getrlimit(resource, &limit); err != nil || limit.Cur != ^uint64(0) {
			return true
		}
	}
	return false
}
