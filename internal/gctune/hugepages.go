package gctune

// A heap that grows takes a page fault for each 4 kB. In a burst of 50,000 timers that was a
// fifth of the CPU: each fault takes microseconds, most of all in a virtual machine. With huge
// pages there is one fault for each 2 MB. Go does not request them, so the system gives them to
// Go's heap only if it gives them to every process.
//
// hugePages requests them for a part of the heap while the process is busy. While it is quiet,
// they are not requested: the kernel would merge the few used small pages of a range into huge
// ones, and so take back the memory that releaser has returned (golang.org/issue/55328).

const (
	// hugeShare is the divisor of the memory that gives the size of the range.
	hugeShare = 8
	// hugeMost bounds the range. The runtime takes about 1 MB to manage 1 GiB of addresses.
	hugeMost = 1 << 30
)

// hugePages is a range of the heap's addresses for which huge pages are requested.
type hugePages struct {
	addr, size uintptr
	on         bool
}

// hugeBytes returns the size of the range for a machine or container with this much memory.
func hugeBytes(memory uint64) int { return int(min(memory/hugeShare, hugeMost)) }
