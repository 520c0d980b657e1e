package store

import (
	"slices"
	"strings"

	"github.com/belfryio/belfry/internal/flow"
	"github.com/belfryio/belfry/schemas"
)

// AddLimit is a limit that applies to the adds of a service.
type AddLimit struct {
	// Key is the flow key of the service or of its tenant: see schemas.AddsFlowPrefix.
	Key string
	FlowLimit
}

// LimitsAdds reports whether any limit of adds is stored.
func (s *FlowSet) LimitsAdds() bool { return len(s.adds) > 0 }

// AddLimits returns the limits that apply to the adds of a service, by its internal name: that of
// the service, then that of its tenant. It allocates nothing for a service that it was asked for
// before. The caller must not change the result.
func (s *FlowSet) AddLimits(service string) []AddLimit {
	if len(s.adds) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	limits, known := s.ofAdds[service]
	if known {
		return limits
	}
	keys := []string{schemas.AddsFlowPrefix + service}
	if tenant := schemas.TenantOf(service); tenant != "" {
		keys = append(keys, schemas.AddsFlowPrefix+tenant+schemas.TenantEnd)
	}
	for _, key := range keys {
		if l, ok := s.FindAdds(key); ok {
			limits = append(limits, AddLimit{key, l})
		}
	}
	if s.ofAdds == nil || len(s.ofAdds) >= maxFlowMatches {
		s.ofAdds = map[string][]AddLimit{}
	}
	s.ofAdds[service] = limits
	return limits
}

// FindAdds returns the limit of a key of adds: that of the key itself, or of the longest pattern that
// matches, or of the pattern that sorts first among the longest. A pattern that does not end with
// schemas.TenantEnd matches no tenant's key.
func (s *FlowSet) FindAdds(key string) (FlowLimit, bool) {
	if l, ok := s.Get(key); ok {
		return l, true
	}
	ofTenant := strings.HasSuffix(key, schemas.TenantEnd)
	i := slices.IndexFunc(s.adds, func(l FlowLimit) bool {
		return strings.HasSuffix(l.Pattern, schemas.TenantEnd) == ofTenant && flow.Match(l.Pattern, key)
	})
	if i < 0 {
		return FlowLimit{}, false
	}
	return s.adds[i], true
}

// AddsIgnoredBy returns the names of those of the given live nodes that store adds, or own shards, and do not
// obey the limits of adds, because their version does not know them; none if there is no such limit.
func (s *FlowSet) AddsIgnoredBy(nodes []Member) []string {
	switch {
	case !s.LimitsAdds():
		return nil
	case s.PendingSelection() == "":
		return olderNodes(nodes, LevelAdds, "router")
	}
	level := LevelPending
	if slices.ContainsFunc(s.adds, func(l FlowLimit) bool { return l.Limit.Quotas() }) {
		level = LevelQuota
	}
	names := append(olderNodes(nodes, level, "router"), olderNodes(nodes, level, "scheduler")...)
	slices.Sort(names)
	return slices.Compact(names)
}
