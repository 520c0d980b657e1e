package scheduler

// Bounds of what has fired and is yet to be concluded.
const (
	maxSettling  = 512    // final records being written
	maxUnsettled = 16_384 // that wait; beyond, they are written although something due waits, too
)

// settle writes the final records of what has fired without a callback, once
// nothing that is due waits for its claim: in a burst, the events leave first. If
// the process dies before, the sweeper concludes them.
func (k *Core) settle() {
	for len(k.unsettled) > 0 && k.settling < maxSettling {
		if k.ready.n > 0 && !k.draining && len(k.unsettled) < maxUnsettled {
			return
		}
		a := k.unsettled[0]
		k.unsettled[0] = ActFinish{}
		if k.unsettled = k.unsettled[1:]; len(k.unsettled) == 0 {
			k.unsettled = nil
		}
		k.settling++
		k.do(a)
	}
}
