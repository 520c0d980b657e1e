package scheduler

import (
	"errors"

	"github.com/belfryio/belfry/schemas"
)

// Bounds of what has fired and is yet to be concluded.
const (
	maxSettling  = 512    // final records being written
	maxUnsettled = 16_384 // that wait; beyond, they are written although something due waits, too
	// A final record that cannot be written is tried again after refinishPauseMs, up
	// to maxRefinish times, at most maxUnsettled at a time: a store that was away for
	// a moment is no reason to leave it to the sweeper, minutes later.
	refinishPauseMs = 1000
	maxRefinish     = 10
)

// onFinished takes note of a final record, or that it could not be written. A
// revision that is not the expected one is somebody else's, or this one, written
// although its answer was lost.
func (k *Core) onFinished(ev EvFinished) {
	k.settling--
	if ev.Err == nil || isRevision(ev.Err) || errors.Is(ev.Err, schemas.ErrNotFound) {
		return
	}
	a := ev.Finish
	if a.Fails == maxRefinish || len(k.refinish) == maxUnsettled {
		return
	}
	a.Fails++
	if len(k.refinish) == 0 {
		k.refinishMs = k.now + refinishPauseMs
	}
	k.refinish = append(k.refinish, a)
}

// settle writes the final records of what has fired without a callback, once
// nothing that is due waits for its claim: in a burst, the events leave first. If
// the process dies before, the sweeper concludes them.
func (k *Core) settle() {
	// The cluster's clock may have been set back.
	if k.now >= k.refinishMs || k.now < k.refinishMs-refinishPauseMs {
		k.unsettled, k.refinish = append(k.unsettled, k.refinish...), nil
	}
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
