//go:build !race

package gctune

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// testHugePages returns a range of the heap. ok is false on a system that gives no huge pages by
// request: it has checked then that a request does nothing.
func testHugePages(t *testing.T, bytes int) (p *hugePages, ok bool) {
	t.Helper()
	p = newHugePages(bytes)
	if p.size == 0 {
		if p.set(true); p.on {
			t.Error("huge pages are requested for no range")
		}
		t.Log("this system gives no huge pages by request: nothing is reserved")
		return p, false
	}
	t.Cleanup(func() { p.set(false) })
	return p, true
}

// TestHugePagesSaveFaults: the heap grows with few page faults, and the reservation itself
// takes no memory. Not parallel, because faults and memory are the process's.
func TestHugePagesSaveFaults(t *testing.T) {
	const size, used = 256 << 20, 128 << 20
	before := residentBytes(t)
	_, ok := testHugePages(t, size)
	if grown := residentBytes(t) - before; grown > 16<<20 {
		t.Errorf("the reservation takes %d bytes", grown)
	}
	if !ok {
		return
	}
	var start, end syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &start); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, used)
	for i := 0; i < used; i += os.Getpagesize() {
		b[i] = 1
	}
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &end); err != nil {
		t.Fatal(err)
	}
	if faults, small := end.Minflt-start.Minflt, used/os.Getpagesize(); int(faults) > small/2 {
		t.Errorf("%d page faults in %d bytes; small pages take %d", faults, used, small)
	}
}

func residentBytes(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * os.Getpagesize()
}

// TestHugePagesWhileBusy: huge pages are requested until the process has been quiet for
// quietLooks intervals. Not parallel, because the settings are the process's.
func TestHugePagesWhileBusy(t *testing.T) {
	p, ok := testHugePages(t, 64<<20)
	if !ok {
		return
	}
	if got := advice(t, p.addr); got != "hg" {
		t.Errorf("the kernel has the advice %q after the reservation, want hg", got)
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			follow(ctx, 1<<30, p)
		}()
		time.Sleep((quietLooks - 1) * every)
		synctest.Wait()
		if !p.on {
			t.Errorf("no huge pages before %d intervals", quietLooks)
		}
		time.Sleep(2 * every)
		synctest.Wait()
		if p.on {
			t.Errorf("huge pages after %d quiet intervals", quietLooks)
		}
		cancel()
		<-done
	})
	if got := advice(t, p.addr); got != "nh" {
		t.Errorf("the kernel has the advice %q for a quiet process, want nh", got)
	}
}

// advice returns the kernel's flag for the advice of the mapping of an address: hg for huge
// pages, nh for small ones, "" for none.
func advice(t *testing.T, addr uintptr) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for line := range strings.Lines(string(b)) {
		var from, to uintptr
		if n, _ := fmt.Sscanf(line, "%x-%x ", &from, &to); n == 2 {
			found = from <= addr && addr < to
			continue
		}
		if flags, ok := strings.CutPrefix(line, "VmFlags:"); ok && found {
			for _, f := range strings.Fields(flags) {
				if f == "hg" || f == "nh" {
					return f
				}
			}
			return ""
		}
	}
	return ""
}
