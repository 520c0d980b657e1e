package sim

import (
	"fmt"

	"github.com/belfryio/belfry/scheduler"
	"github.com/belfryio/belfry/schemas"
)

// describe says in a few words what an action or an event is, for a trace.
func (w *world) describe(what any) string {
	n := func(id schemas.TimerID) *life { return w.byID[id] }
	switch x := what.(type) {
	case scheduler.ActLoad:
		return fmt.Sprintf("load %d ticks from %s, after %d, seen %d, in %s", len(x.Ticks), w.ms(w.p.geo.TickStart(x.Ticks[0])), x.After, x.Seen, x.Delay)
	case scheduler.ActScan:
		return "scan through " + w.ms(x.ThroughMs)
	case scheduler.ActClaim:
		return fmt.Sprintf("claim %s, revision %d", n(x.ID), x.Rev)
	case scheduler.ActPublish:
		return fmt.Sprintf("publish %s", n(x.ID))
	case scheduler.ActFinish:
		return fmt.Sprintf("finish %s, revision %d", n(x.ID), x.Rev)
	case scheduler.ActDeadLetter:
		return fmt.Sprintf("dead letter of %s, %s", n(x.ID), x.Msg.MsgID)
	case scheduler.ActFail:
		return fmt.Sprintf("fail %s, revision %d", n(x.ID), x.Rev)
	case scheduler.EvDeadLettered:
		return fmt.Sprintf("dead-lettered %s, %v", n(x.ID), x.Err)
	case scheduler.EvFailed:
		return fmt.Sprintf("failed %s, %v", n(x.ID), x.Err)
	case scheduler.ActReread:
		return fmt.Sprintf("reread %s in %s", n(x.ID), x.Delay)
	case scheduler.ActDedupCheck:
		return fmt.Sprintf("confirm %d events since %s", len(x.IDs), w.ms(x.SinceMs))
	case scheduler.ActIndex:
		return fmt.Sprintf("index %s", n(x.ID))
	case scheduler.ActLook:
		return fmt.Sprintf("look at %s for %s", n(x.Run), n(x.ID))
	case scheduler.EvLooked:
		return fmt.Sprintf("looked for %s: open %v, %v", n(x.ID), x.Open, x.Err)
	case scheduler.ActCreateRun:
		return fmt.Sprintf("create %s", n(x.ID))
	case scheduler.EvRunCreated:
		return fmt.Sprintf("created %s, revision %d, %v", n(x.ID), x.Rev, x.Err)
	case scheduler.ActSkipped:
		return fmt.Sprintf("skipped %s: %+v", n(x.ID), x.Skipped)
	case scheduler.ActEndRun:
		return fmt.Sprintf("end %s", n(x.ID))
	case scheduler.EvLoaded:
		return fmt.Sprintf("loaded %d, complete %v, next %d, %v", len(x.Load.Timers), x.Load.Complete, x.Load.Next, x.Err)
	case scheduler.EvClaimed:
		return fmt.Sprintf("claimed %s, revision %d, %v", n(x.ID), x.Rev, x.Err)
	case scheduler.EvPublished:
		return fmt.Sprintf("published %s, duplicate %v, %v", n(x.ID), x.Duplicate, x.Err)
	case scheduler.EvReread:
		return fmt.Sprintf("reread %s: %s, revision %d, %v", n(x.ID), x.Timer.Record.State, x.Timer.Rev, x.Err)
	case scheduler.EvDedupChecked:
		return fmt.Sprintf("confirmed %d, %v", len(x.Found), x.Err)
	case scheduler.EvIndexed:
		return fmt.Sprintf("indexed %s, %v", n(x.ID), x.Err)
	case scheduler.EvSwept:
		return fmt.Sprintf("swept %s: %s, refire %v", n(x.Timer.ID), x.Timer.Record.State, x.Redispatch)
	case scheduler.EvScanned:
		return fmt.Sprintf("scanned %s: %s, revision %d", n(x.Timer.ID), x.Timer.Record.State, x.Timer.Rev)
	case scheduler.EvScanDone:
		return fmt.Sprintf("scan done, %v", x.Err)
	case scheduler.EvFinished:
		return fmt.Sprintf("finished %s, %v", n(x.Finish.ID), x.Err)
	case scheduler.EvVoid:
		return fmt.Sprintf("void %s, revision %d", n(x.ID), x.Rev)
	case scheduler.EvTail:
		return fmt.Sprintf("tail %s: %s, revision %d", n(x.Timer.ID), x.Timer.Record.State, x.Timer.Rev)
	}
	return fmt.Sprintf("%T", what)
}
