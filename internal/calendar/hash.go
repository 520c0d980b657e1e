package calendar

// The hash decides at which minute H runs and how long jitter is. Changing it would move the
// runs of existing schedules.

// hashID mixes a timer ID and a number into 64 bits: FNV-1a with the finalizer of MurmurHash3.
func hashID(id string, n int64) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * prime
	}
	for i := range 8 {
		h = (h ^ uint64(n)>>(8*i)&0xff) * prime
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
