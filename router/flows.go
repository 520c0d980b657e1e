package router

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/internal/store"
	"github.com/belfryio/belfry/schemas"
)

// Flows is the part of the store that keeps the limits of flow control; *store.Store has it.
type Flows interface {
	FlowsNow() (set *store.FlowSet, fresh bool)
	RefreshFlows(ctx context.Context) (*store.FlowSet, error)
	PutLimit(ctx context.Context, l store.FlowLimit, rev uint64) (uint64, error)
	DeleteLimit(ctx context.Context, l store.FlowLimit, rev uint64) (uint64, error)
	ResetHold(ctx context.Context, key, by string, nowMs int64) (before store.FlowHold, ok bool, err error)
	FlowState(ctx context.Context, key string) (store.FlowKeyState, error)
	PutFlowState(ctx context.Context, s store.FlowKeyState, ttl time.Duration) (uint64, error)
	FlowStates(ctx context.Context, pattern string, limit int) (all []store.FlowKeyState, more bool, err error)
	PendingCounts(ctx context.Context) ([]store.PendingCount, error)
}

// FlowSet replaces the limit of a flow key or pattern, except its pause, or makes a new one.
// When it returns without an error, the limit is in force on all nodes; see store.Flows. from
// is the verified part of the caller, q.By the caller's own claim. Errors: bad_request,
// conflict for another revision, store_full, unavailable, after which the change may be in
// force.
func (s *Service) FlowSet(ctx context.Context, q schemas.FlowSetRequest, from schemas.Caller) (schemas.FlowReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (reply schemas.FlowReply, err error) {
		limit, err := flowLimit(q)
		if err != nil {
			return reply, err
		}
		c := limitChange{key: q.Key, revision: q.Revision, by: q.By, dryRun: q.DryRun, done: "flow limit set", edit: func(old *store.FlowLimit, _ string) (*store.FlowLimit, error) {
			next := *old
			if next.Err != nil {
				next = store.FlowLimit{} // a damaged limit is replaced
			}
			limit.Paused = next.Limit.Paused
			next.Pattern, next.Limit, next.Err = q.Key, limit, nil
			return &next, nil
		}}
		if reply, err = s.changeLimit(ctx, c, from); err != nil {
			return reply, err
		}
		waits, countErr := s.flowWaits(ctx, func(key string) bool {
			return flow.Match(q.Key, key) && !slices.ContainsFunc(reply.Except, func(other string) bool { return flow.Match(other, key) })
		})
		// The limit is stored, so a count that failed is only partial.
		reply.Waiting, reply.Partial = waits.total(), waits.partial || countErr != nil
		if n := waits.most(); n > 0 && limit.Rate.Count > 0 && !limit.Paused {
			reply.Drained = schemas.TimeOf(s.nowMs() + int64(float64(n)*limit.Rate.Interval().Seconds()*1000))
		}
		return reply, nil
	})
}

// flowLimit returns the limit that a request asks for.
func flowLimit(q schemas.FlowSetRequest) (l flow.Limit, err error) {
	if err := checkFlowPattern(q.Key); err != nil {
		return l, err
	}
	if tenant, _, ok := strings.Cut(strings.TrimPrefix(q.Key, schemas.AddsFlowPrefix), schemas.TenantEnd); ok && (tenant == "" || strings.HasSuffix(tenant, ":")) {
		return l, schemas.Errorf(schemas.CodeBadRequest, "flow key %s has no tenant before the %s: write one, such as %sacme%[2]s; a service of the default tenant has no %[2]s, such as %[3]sorders", q.Key, schemas.TenantEnd, schemas.AddsFlowPrefix)
	}
	quotas := q.Pending != 0 || q.Schedules != 0 || q.Services != 0 || q.Bytes != 0
	if q.Rate == "" && q.Parallel == 0 && !quotas && q.Circuit == nil {
		if schemas.LimitsAdds(q.Key) {
			return l, schemas.Errorf(schemas.CodeBadRequest, "the request limits nothing: give a rate such as 100/1m, or more than 0 pending timers, schedules, services or bytes; flow.delete removes a limit")
		}
		return l, schemas.Errorf(schemas.CodeBadRequest, "the request limits nothing: give a rate such as 100/1m, a number of parallel calls or a circuit; flow.delete removes a limit, and flow.pause stops all calls")
	}
	if schemas.LimitsAdds(q.Key) && (q.Parallel != 0 || q.Circuit != nil) {
		return l, schemas.Errorf(schemas.CodeBadRequest, "%s limits adds, which have a rate and quotas of pending timers, schedules, services and bytes: leave parallel and circuit out", q.Key)
	}
	if !schemas.LimitsAdds(q.Key) && quotas {
		return l, schemas.Errorf(schemas.CodeBadRequest, "%s limits callbacks; pending, schedules, services and bytes limit adds: use a key such as %sorders", q.Key, schemas.AddsFlowPrefix)
	}
	if q.Services != 0 && !strings.HasSuffix(q.Key, schemas.TenantEnd) {
		return l, schemas.Errorf(schemas.CodeBadRequest, "%s limits one service; services limits the services of a tenant: use a key such as %sacme%s", q.Key, schemas.AddsFlowPrefix, schemas.TenantEnd)
	}
	l.Parallel, l.Burst, l.Pending = q.Parallel, q.Burst, q.Pending
	l.Schedules, l.Services, l.Bytes = q.Schedules, q.Services, q.Bytes
	if q.Circuit != nil {
		if l.Circuit = *q.Circuit; l.Circuit < 0 {
			return l, schemas.Errorf(schemas.CodeBadRequest, "circuit %d: it must be 1 to %d connection errors in a row, or 0 for no circuit", l.Circuit, flow.MaxCircuit)
		}
		if l.Circuit == 0 {
			l.Circuit = flow.NoCircuit
		}
	}
	if q.Rate != "" {
		if l.Rate, err = flow.ParseRate(q.Rate); err != nil {
			return l, schemas.Errorf(schemas.CodeBadRequest, "%w", err)
		}
		if l.Burst == 0 {
			l.Burst = l.Rate.DefaultBurst()
		}
	}
	if err := l.Check(); err != nil {
		return l, schemas.Errorf(schemas.CodeBadRequest, "%w", err)
	}
	return l, nil
}

func checkFlowPattern(key string) error {
	if key == "" {
		return schemas.Errorf(schemas.CodeBadRequest, "the flow key is missing: name a host such as api.example.com, service:<service>, group:<group>, a value of timerflow, <tenant>=<value> for that of a tenant, or a pattern such as customer:*")
	}
	return schemas.CheckFlowPattern(key)
}

// FlowPause stops all calls of a flow key, or of each key that matches a pattern, until
// FlowResume. Their events wait and use no attempt. For a key without a limit it stores a
// limit that only pauses. Errors: as FlowSet.
func (s *Service) FlowPause(ctx context.Context, q schemas.FlowRequest, from schemas.Caller) (schemas.FlowReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (schemas.FlowReply, error) {
		if err := cmp.Or(checkFlowPattern(q.Key), schemas.CheckNote(q.Note)); err != nil {
			return schemas.FlowReply{}, err
		}
		if schemas.LimitsAdds(q.Key) {
			return schemas.FlowReply{}, schemas.Errorf(schemas.CodeBadRequest, "%s limits adds, which cannot be paused: set a low rate", q.Key)
		}
		nowMs := s.nowMs()
		return s.changeLimit(ctx, limitChange{key: q.Key, revision: q.Revision, by: q.By, done: "flow paused", edit: func(old *store.FlowLimit, by string) (*store.FlowLimit, error) {
			switch {
			case old.Err != nil:
				return nil, unreadable(old)
			case old.Limit.Paused && old.Note == q.Note:
				return old, nil
			}
			next := *old
			if !next.Limit.Paused {
				next.PausedMs = nowMs
			}
			next.Pattern, next.Limit.Paused, next.Note, next.PausedBy = q.Key, true, q.Note, by
			return &next, nil
		}}, from)
	})
}

// FlowResume ends the pause of a flow key or pattern. A limit that only paused is removed.
// Errors: not_found for a key whose calls are not paused under that name, otherwise as FlowSet.
func (s *Service) FlowResume(ctx context.Context, q schemas.FlowRequest, from schemas.Caller) (schemas.FlowReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (schemas.FlowReply, error) {
		if err := checkFlowPattern(q.Key); err != nil {
			return schemas.FlowReply{}, err
		}
		return s.changeLimit(ctx, limitChange{key: q.Key, revision: q.Revision, by: q.By, stored: true, done: "flow resumed", edit: func(old *store.FlowLimit, _ string) (*store.FlowLimit, error) {
			switch {
			case old.Err != nil:
				return nil, unreadable(old)
			case !old.Limit.Paused:
				return old, nil
			}
			next := *old
			next.Limit.Paused, next.Note, next.PausedMs, next.PausedBy = false, "", 0, ""
			if !next.Limit.Bounds() && next.Limit.Circuit == 0 {
				return nil, nil
			}
			return &next, nil
		}}, from)
	})
}

// FlowDelete removes the limit of a flow key or pattern; its keys then have the limit of
// another pattern that matches, or none. Errors: not_found, conflict for another revision or a
// paused limit, unavailable.
func (s *Service) FlowDelete(ctx context.Context, q schemas.FlowRequest, from schemas.Caller) (schemas.FlowReply, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (schemas.FlowReply, error) {
		if err := checkFlowPattern(q.Key); err != nil {
			return schemas.FlowReply{}, err
		}
		return s.changeLimit(ctx, limitChange{key: q.Key, revision: q.Revision, by: q.By, stored: true, done: "flow limit deleted", edit: func(old *store.FlowLimit, _ string) (*store.FlowLimit, error) {
			if old.Err == nil && old.Limit.Paused {
				return nil, schemas.Errorf(schemas.CodeConflict, "%s is paused, and without its limit the calls would begin: resume it first, then delete it", q.Key)
			}
			return nil, nil
		}}, from)
	})
}

// unreadable is the error of a change of a part of a limit that cannot be read.
func unreadable(l *store.FlowLimit) error {
	return schemas.Errorf(schemas.CodeConflict, "the limit of %s cannot be read, so its calls wait: set it again: %w", l.Pattern, l.Err)
}

// limitChange is one change of a stored limit.
type limitChange struct {
	key      string
	revision uint64 // that the limit must have; 0 for any
	by       string
	dryRun   bool
	stored   bool   // the limit must exist
	done     string // for the log
	// edit returns the limit after the change: old if nothing changes, nil to delete it. old
	// has only the pattern if no limit is stored. by is the name of the caller.
	edit func(old *store.FlowLimit, by string) (*store.FlowLimit, error)
}

// changeLimit makes a change by compare-and-set, again after a conflict if the request names no
// revision.
func (s *Service) changeLimit(ctx context.Context, c limitChange, from schemas.Caller) (reply schemas.FlowReply, err error) {
	by, err := claimed(from, c.by)
	if err != nil {
		return reply, err
	}
	for try := 1; ; try++ {
		set, err := s.o.Store.RefreshFlows(ctx)
		if err != nil {
			return reply, err
		}
		old, exists := set.Get(c.key)
		switch {
		case !exists && c.stored:
			return reply, noLimit(set, c.key)
		case c.revision != 0 && c.revision != old.Rev:
			return reply, otherLimit(c.key, old.Rev, c.revision)
		case errors.Is(old.Err, schemas.ErrNewer):
			return reply, old.Err
		}
		if !exists {
			old = store.FlowLimit{Pattern: c.key}
		} else {
			reply.Before = limitInfo(&old)
		}
		next, err := c.edit(&old, by.Name())
		if err != nil {
			return reply, err
		}
		reply.Except = except(set, c.key)
		if next == &old {
			reply.Limit = reply.Before
			return reply, nil
		}
		if reply.Limit = nil; next != nil {
			next.AtMs, next.By = s.nowMs(), by.Name()
			reply.Limit = limitInfo(next)
		}
		if c.dryRun {
			return reply, nil
		}
		rev, err := s.writeLimit(ctx, next, &old, by.Name())
		switch {
		case err == nil:
			if next != nil {
				reply.Limit.Revision = rev
			}
			s.o.Log.Info().Str("flow", c.key).Uint64("revision", rev).Str("by", by.Name()).Msg(c.done)
			return reply, nil
		case !errors.Is(err, store.ErrRevision):
			return reply, err
		case c.revision != 0:
			return reply, revisionError("the limit of %s was changed by somebody else at the same time: get it, check what has changed, and try again", c.key)
		case try == putTries:
			return reply, schemas.Errorf(schemas.CodeConflict, "the limit of %s was changed by somebody else at the same time: show it, then try again", c.key)
		}
	}
}

// writeLimit stores next in place of old, or deletes old if next is nil.
func (s *Service) writeLimit(ctx context.Context, next, old *store.FlowLimit, by string) (uint64, error) {
	if next == nil {
		return s.o.Store.DeleteLimit(ctx, store.FlowLimit{Pattern: old.Pattern, AtMs: s.nowMs(), By: by}, old.Rev)
	}
	return s.o.Store.PutLimit(ctx, *next, old.Rev)
}

// noLimit returns the error for a key without a stored limit. Its text names the limit that applies to
// the key.
func noLimit(set *store.FlowSet, key string) error {
	l, ok := find(set, key)
	if t, asked := set.Target(key); ok && asked {
		if l = set.Configured(key); l.Pattern == "" {
			return schemas.Errorf(schemas.CodeNotFound, "no limit is stored for %s: its target allows %d calls a minute, until %s or its next answer", key, t.PerMinute, schemas.TimeOf(t.UntilMs).Format(time.RFC3339))
		}
	}
	if ok {
		return schemas.Errorf(schemas.CodeNotFound, "no limit is stored for %s: the limit of %s applies to it", key, l.Pattern)
	}
	return schemas.Errorf(schemas.CodeNotFound, "no limit is stored for %s, and none applies to it", key)
}

func otherLimit(key string, is, want uint64) error {
	if is == 0 {
		return revisionError("no limit is stored for %s, and the request names revision %d: leave the revision out to store one", key, want)
	}
	return revisionError("the limit of %s has revision %d, not %d: get it, check what has changed, and try again", key, is, want)
}

// except returns the stored limits that apply to keys of a pattern instead of the pattern's own limit:
// limits of single keys, and of longer patterns.
func except(set *store.FlowSet, pattern string) []string {
	if !strings.Contains(pattern, "*") {
		return nil
	}
	var out []string
	for _, l := range set.All() {
		beats := !strings.Contains(l.Pattern, "*") || len(l.Pattern) > len(pattern)
		if beats && flow.Match(pattern, l.Pattern) && len(out) < schemas.MaxFlowExcept {
			out = append(out, l.Pattern)
		}
	}
	return out
}

// FlowList returns all stored limits, and the rates that targets allow. Errors: unavailable.
func (s *Service) FlowList(ctx context.Context, _ struct{}) (schemas.FlowListReply, error) {
	return do(ctx, s, s.quick, func(ctx context.Context) (reply schemas.FlowListReply, err error) {
		set, err := s.o.Store.RefreshFlows(ctx)
		if err != nil {
			return reply, err
		}
		for _, h := range set.Holds(s.nowMs() * int64(time.Millisecond)) {
			if len(reply.Holds) < schemas.MaxFlowHolds {
				reply.Holds = append(reply.Holds, holdInfo(&h))
			}
		}
		reply.Limits = []schemas.FlowLimitInfo{}
		for _, l := range set.All() {
			reply.Limits = append(reply.Limits, *limitInfo(&l))
		}
		for _, t := range set.Targets() {
			if _, stored := set.Get(t.Key); !stored {
				l, _ := set.Find(t.Key)
				l.Pattern, l.Rev = t.Key, 0
				reply.Limits = append(reply.Limits, *limitInfo(&l))
			}
		}
		slices.SortFunc(reply.Limits, func(a, b schemas.FlowLimitInfo) int { return strings.Compare(a.Key, b.Key) })
		for i := range reply.Limits {
			reply.Limits[i].Target = s.targetInfo(set, reply.Limits[i].Key)
		}
		return reply, nil
	})
}

// maxFlowStates bounds the states that FlowGet reads for a pattern, to show the busiest keys.
const maxFlowStates = 2000

// FlowGet returns the limit that applies to a flow key, or that is stored for a pattern, and
// how much of it is used. Errors: bad_request, not_found for a pattern without a limit,
// unavailable.
func (s *Service) FlowGet(ctx context.Context, q schemas.FlowRequest) (schemas.FlowStatus, error) {
	return do(ctx, s, s.slow, func(ctx context.Context) (reply schemas.FlowStatus, err error) {
		if err := checkFlowPattern(q.Key); err != nil {
			return reply, err
		}
		set, err := s.o.Store.RefreshFlows(ctx)
		if err != nil {
			return reply, err
		}
		reply.Key, reply.Keys = q.Key, []schemas.FlowKeyInfo{}
		h, _ := set.HoldOf(q.Key)
		if p, _ := h.Hold.Ask(s.nowMs() * int64(time.Millisecond)); p != flow.Free {
			info := holdInfo(&h)
			reply.Hold = &info
		}
		limit, exists := set.Get(q.Key)
		pattern := strings.Contains(q.Key, "*")
		if !pattern {
			limit, exists = find(set, q.Key)
		}
		switch {
		case !exists && pattern:
			return reply, noLimit(set, q.Key)
		case exists:
			reply.Limit, reply.Except = limitInfo(&limit), except(set, q.Key)
			if limit.Target != nil { // its generation is not the revision of a stored limit
				reply.Limit.Revision = set.Configured(q.Key).Rev
			}
			reply.Limit.Target = s.targetInfo(set, q.Key)
		}
		ours := func(key string) bool {
			if !pattern {
				return key == q.Key
			}
			l, ok := find(set, key)
			return ok && l.Pattern == q.Key
		}
		states, err := s.flowStates(ctx, q.Key, pattern)
		if err != nil {
			return reply, err
		}
		waits, err := s.flowWaits(ctx, ours)
		if err != nil {
			return reply, err
		}
		for _, st := range states {
			if ours(st.Key) {
				reply.Keys = append(reply.Keys, keyInfo(&limit, &st, &waits, s.nowMs()))
			}
			delete(waits.keys, st.Key)
		}
		for key := range waits.keys {
			reply.Keys = append(reply.Keys, keyInfo(&limit, &store.FlowKeyState{Key: key}, &waits, s.nowMs()))
		}
		if exists && limit.Limit.Counts() {
			if reply.Keys, reply.Uncounted, err = s.pendingKeys(ctx, set, reply.Keys, ours); err != nil {
				return reply, err
			}
		}
		slices.SortFunc(reply.Keys, func(a, b schemas.FlowKeyInfo) int {
			return cmp.Or(cmp.Compare(b.Waiting, a.Waiting), cmp.Compare(b.InFlight, a.InFlight), cmp.Compare(b.Pending, a.Pending), cmp.Compare(a.Key, b.Key))
		})
		if reply.More = len(reply.Keys) > schemas.MaxFlowKeys; reply.More {
			reply.Keys = reply.Keys[:schemas.MaxFlowKeys]
		}
		return reply, nil
	})
}

// find returns the limit of a flow key, or of a key of adds.
func find(set *store.FlowSet, key string) (store.FlowLimit, bool) {
	if schemas.LimitsAdds(key) {
		return set.FindAdds(key)
	}
	return set.Find(key)
}

// flowStates returns the states of the keys of a pattern, or the state of one key.
func (s *Service) flowStates(ctx context.Context, key string, pattern bool) ([]store.FlowKeyState, error) {
	if pattern {
		all, _, err := s.o.Store.FlowStates(ctx, key, maxFlowStates)
		return all, err
	}
	st, err := s.o.Store.FlowState(ctx, key)
	if errors.Is(err, schemas.ErrDamaged) {
		err = nil // the next call replaces it
	}
	return []store.FlowKeyState{st}, err
}

// flowWaits are the events that wait for a call, by flow key.
type flowWaits struct {
	keys    map[string]flowWait
	partial bool // the time was too short to count all
}

// flowWait are the events of one key that wait.
type flowWait struct {
	n      int
	lastMs int64 // the latest slot, in Unix milliseconds
}

func (w *flowWaits) total() (n int) {
	for _, k := range w.keys {
		n += k.n
	}
	return n
}

// most returns the largest number of events that wait for one key.
func (w *flowWaits) most() (n int) {
	for _, k := range w.keys {
		n = max(n, k.n)
	}
	return n
}

// flowWaits counts the events that wait in the store for a call of the keys that match. Events
// that wait for seconds only may be missing.
func (s *Service) flowWaits(ctx context.Context, match func(key string) bool) (w flowWaits, err error) {
	w.keys = map[string]flowWait{}
	q := store.ListQuery{States: []schemas.State{schemas.StateRetrying}}
	_, w.partial, err = s.eachTimer(ctx, effectTimeout, &q, func(t *store.Timer) {
		r := &t.Record
		if !r.Deferred() || !match(r.Deferral.Flow) {
			return
		}
		k := w.keys[r.Deferral.Flow]
		k.n++
		k.lastMs = max(k.lastMs, r.Deferral.SlotMs)
		w.keys[r.Deferral.Flow] = k
	})
	return w, err
}

// keyInfo describes the use of a limit by a key.
func keyInfo(l *store.FlowLimit, st *store.FlowKeyState, waits *flowWaits, nowMs int64) schemas.FlowKeyInfo {
	sum := st.State.Summary(l.Limit, l.Rev, nowMs*int64(time.Millisecond))
	wait := waits.keys[st.Key]
	info := schemas.FlowKeyInfo{Key: st.Key, InFlight: sum.InFlight, Waiting: max(sum.Waiting, wait.n), Partial: waits.partial}
	if l.Limit.Paused {
		return info
	}
	info.Next = schemas.TimeOf(sum.NextNs / int64(time.Millisecond))
	if last := max(sum.DrainedNs/int64(time.Millisecond), wait.lastMs); last > nowMs && info.Waiting > 0 {
		info.Drained = schemas.TimeOf(last)
	}
	return info
}

// targetInfo describes the rate that the target of a flow key allows; nil if it names none. All tenants share the
// key of a host, so the URL may be that of another tenant's webhook: without the scope of all tenants it has no path.
func (s *Service) targetInfo(set *store.FlowSet, key string) *schemas.FlowTarget {
	t, ok := set.Target(key)
	if !ok {
		return nil
	}
	if !s.scope.All {
		t.URL = originOf(t.URL)
	}
	return &schemas.FlowTarget{PerMinute: t.PerMinute, URL: t.URL, Asked: schemas.TimeOf(t.AtMs), Until: schemas.TimeOf(t.UntilMs)}
}

// originOf returns the scheme and the host of a URL; "/…" for a path without them.
func originOf(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return "/…"
	}
	return u.Scheme + "://" + u.Host
}

// limitInfo describes a stored limit.
func limitInfo(l *store.FlowLimit) *schemas.FlowLimitInfo {
	info := &schemas.FlowLimitInfo{
		Key: l.Pattern, Revision: l.Rev, Rate: l.Limit.Rate.String(), Burst: l.Limit.Burst, Parallel: l.Limit.Parallel, Pending: l.Limit.Pending,
		Schedules: l.Limit.Schedules, Services: l.Limit.Services, Bytes: l.Limit.Bytes,
		Paused: l.Limit.Paused, PauseNote: l.Note, PausedBy: l.PausedBy, By: l.By,
	}
	if l.Limit.Circuit != 0 {
		n := l.Limit.CircuitAfter()
		info.Circuit = &n
	}
	if l.PausedMs != 0 {
		info.PausedAt = schemas.TimeOf(l.PausedMs)
	}
	if l.AtMs != 0 {
		info.Changed = schemas.TimeOf(l.AtMs)
	}
	if l.Err != nil {
		info.Error = l.Err.Error()
	}
	return info
}
