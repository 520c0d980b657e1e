package sim

import (
	"fmt"

	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// describe says in a few words what an action or an event is, for a trace.
func (w *world) describe(what any) string {
	n := func(id schemas.TimerID) int { return w.byID[id].n }
	switch x := what.(type) {
	case scheduler.ActLoad:
		return fmt.Sprintf("load %d ticks from %s, after %d, seen %d, in %s", len(x.Ticks), ms(w.p.geo.TickStart(x.Ticks[0])), x.After, x.Seen, x.Delay)
	case scheduler.ActScan:
		return "scan through " + ms(x.ThroughMs)
	case scheduler.ActClaim:
		return fmt.Sprintf("claim %d, revision %d", n(x.ID), x.Rev)
	case scheduler.ActPublish:
		return fmt.Sprintf("publish %d", n(x.ID))
	case scheduler.ActFinish:
		return fmt.Sprintf("finish %d, revision %d", n(x.ID), x.Rev)
	case scheduler.ActDeadLetter:
		return fmt.Sprintf("dead letter of %d, %s", n(x.ID), x.Msg.MsgID)
	case scheduler.ActFail:
		return fmt.Sprintf("fail %d, revision %d", n(x.ID), x.Rev)
	case scheduler.EvDeadLettered:
		return fmt.Sprintf("dead-lettered %d, %v", n(x.ID), x.Err)
	case scheduler.EvFailed:
		return fmt.Sprintf("failed %d, %v", n(x.ID), x.Err)
	case scheduler.ActReread:
		return fmt.Sprintf("reread %d in %s", n(x.ID), x.Delay)
	case scheduler.ActDedupCheck:
		return fmt.Sprintf("confirm %d events since %s", len(x.IDs), ms(x.SinceMs))
	case scheduler.ActIndex:
		return fmt.Sprintf("index %d", n(x.ID))
	case scheduler.EvLoaded:
		return fmt.Sprintf("loaded %d, complete %v, next %d, %v", len(x.Load.Timers), x.Load.Complete, x.Load.Next, x.Err)
	case scheduler.EvClaimed:
		return fmt.Sprintf("claimed %d, revision %d, %v", n(x.ID), x.Rev, x.Err)
	case scheduler.EvPublished:
		return fmt.Sprintf("published %d, duplicate %v, %v", n(x.ID), x.Duplicate, x.Err)
	case scheduler.EvReread:
		return fmt.Sprintf("reread %d: %s, revision %d, %v", n(x.ID), x.Timer.Record.State, x.Timer.Rev, x.Err)
	case scheduler.EvDedupChecked:
		return fmt.Sprintf("confirmed %d, %v", len(x.Found), x.Err)
	case scheduler.EvIndexed:
		return fmt.Sprintf("indexed %d, %v", n(x.ID), x.Err)
	case scheduler.EvSwept:
		return fmt.Sprintf("swept %d: %s, refire %v", n(x.Timer.ID), x.Timer.Record.State, x.Redispatch)
	case scheduler.EvScanned:
		return fmt.Sprintf("scanned %d: %s, revision %d", n(x.Timer.ID), x.Timer.Record.State, x.Timer.Rev)
	case scheduler.EvScanDone:
		return fmt.Sprintf("scan done, %v", x.Err)
	case scheduler.EvFinished:
		return fmt.Sprintf("finished %d, %v", n(x.Finish.ID), x.Err)
	case scheduler.EvTail:
		return fmt.Sprintf("tail %d: %s, revision %d", n(x.Timer.ID), x.Timer.Record.State, x.Timer.Rev)
	}
	return fmt.Sprintf("%T", what)
}
