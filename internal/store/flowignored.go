package store

import "slices"

// This file names the live nodes whose version does not obey limits of flow keys.

// IgnoredBy returns the names of those of the given live nodes that make callbacks and do not obey
// the limits, because their version has no flow control; none if there is no limit.
func (s *FlowSet) IgnoredBy(nodes []Member) []string {
	if s.Empty() {
		return nil
	}
	return olderNodes(nodes, LevelFlow, "functions")
}

// TurnsIgnoredBy returns the names of those of the given live nodes that make callbacks and may not take
// turns with parallel calls (flow.State.Turns), because their version may not know turns: when such a
// node writes the state of a flow key, the turns are lost. None if no limit has Parallel.
func (s *FlowSet) TurnsIgnoredBy(nodes []Member) []string {
	if len(s.sorted(func(l *FlowLimit) bool { return l.Limit.Parallel > 0 && !l.Deleted })) == 0 {
		return nil
	}
	return olderNodes(nodes, LevelAdds, "functions") // turns have no level; LevelAdds is the first after them
}

// olderNodes returns the names of the nodes that have a role and do not read a level. A node that
// states no roles has all.
func olderNodes(nodes []Member, level FormatLevel, role string) (names []string) {
	for _, n := range nodes {
		p := &n.Presence
		if p.Reads < level && (len(p.Roles) == 0 || slices.Contains(p.Roles, role)) {
			names = append(names, n.Node)
		}
	}
	return names
}
