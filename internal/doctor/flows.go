package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/belfryio/belfry/schemas"
)

// mostPaused is the number of paused flow keys, of open circuits and of failing ordering keys that are
// named.
const mostPaused = 10

// flows checks that all nodes obey the limits of flow keys.
func (e *examination) flows(ctx context.Context) {
	set, err := e.look.ReadFlows(ctx)
	if err != nil {
		e.found("flows", Unknown, "", "cannot read the limits of flow keys: %v", err)
		return
	}
	if names := set.IgnoredBy(e.alive()); len(names) > 0 {
		e.found("flows", Error, "upgrade these nodes, or stop them", "nodes of an older version make callbacks without obeying the %d flow limits: %s", len(set.All()), strings.Join(names, ", "))
		return
	}
	if names := set.AddsIgnoredBy(e.alive()); len(names) > 0 {
		e.found("flows", Error, "upgrade these nodes, or stop them", "nodes of an older version store adds without obeying the limits of adds: %s", strings.Join(names, ", "))
		return
	}
	if names := set.HoldsIgnoredBy(e.alive(), e.now()*int64(time.Millisecond)); len(names) > 0 {
		e.found("flows", Error, "upgrade these nodes, or stop them", "nodes of an older version call targets that asked for a pause (Retry-After) or cannot be reached: %s", strings.Join(names, ", "))
		return
	}
	if names := set.TargetsIgnoredBy(e.alive()); len(names) > 0 {
		e.found("flows", Error, "upgrade these nodes, or stop them", "nodes of an older version make callbacks without obeying the rates that targets allow: %s", strings.Join(names, ", "))
		return
	}
	if names := set.TurnsIgnoredBy(e.alive()); len(names) > 0 {
		e.found("flows", Warning, "upgrade these nodes, or stop them", "nodes of an older version may take no turns with parallel calls, so the events of one node can wait long: %s", strings.Join(names, ", "))
	}
	for _, l := range set.All() {
		switch {
		case errors.Is(l.Err, schemas.ErrNewer) && schemas.LimitsAdds(l.Pattern):
			e.found("flows", Error, "upgrade the nodes", "the adds of %s wait, and with 20,000 of them all adds: %v", l.Pattern, l.Err)
		case l.Err != nil && schemas.LimitsAdds(l.Pattern):
			e.found("flows", Error, "store the limit again with \"belfry flow set\"", "the adds of %s are not limited: %v", l.Pattern, l.Err)
		case l.Err != nil:
			e.found("flows", Error, "store the limit again with \"belfry flow set\", and see who may publish to its bucket ($KV.>); for one of a newer version, upgrade the nodes", "the callbacks of flow key %s wait: %v", l.Pattern, l.Err)
		}
	}
	paused := set.Paused()
	for i, l := range paused {
		if i == mostPaused {
			e.found("flows", Warning, "run \"belfry flow ls\"", "%d more flow keys are paused", len(paused)-i)
			break
		}
		text := fmt.Sprintf("%s is paused since %s", l.Pattern, schemas.FormatTime(l.PausedMs))
		if l.PausedBy != "" {
			text += " by " + l.PausedBy
		}
		if l.Note != "" {
			text += " (" + l.Note + ")"
		}
		e.found("flows", Warning, "run \"belfry flow resume '"+l.Pattern+"'\" when the pause may end", "%s: its callbacks wait", text)
	}
	open := set.OpenCircuits(e.now() * int64(time.Millisecond))
	for _, h := range open[:min(len(open), mostPaused)] {
		e.found("flows", Warning, "repair the target; its answer to the next probe lets the calls begin again", "flow key %s cannot be reached since %s (%s): its callbacks wait", h.Key, schemas.FormatTime(h.Hold.OpenNs/int64(time.Millisecond)), h.Reason)
	}
	e.found("flows", OK, "", "%d flow limits are stored, and every node obeys them", len(set.All()))
}
