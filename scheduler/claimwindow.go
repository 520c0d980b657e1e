package scheduler

// claimWindow bounds the writes in flight up to which the core claims entries. It starts small after a
// moment without writes in flight, and grows by one with each stored claim, so that it doubles
// in each round trip: TCP's slow start (RFC 5681, section 3.1). Claims and publishes share a connection.
// If all claims of a burst went first, the first event of the burst would wait until the server
// has read them.
type claimWindow struct {
	size        int
	first, most int
}

// newClaimWindow returns a window that grows from first to most. It is most from the start if first
// is 0 or larger.
func newClaimWindow(first, most int) claimWindow {
	if first == 0 || first > most {
		first = most
	}
	return claimWindow{size: first, first: first, most: most}
}

func (w *claimWindow) reset() { w.size = w.first }

func (w *claimWindow) grow() { w.size = min(w.size+1, w.most) }
