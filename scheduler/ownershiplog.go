package scheduler

import (
	"slices"

	"github.com/rs/zerolog"
)

// ownershipLog collects the shards that this node takes and gives up, and logs them in one
// line each when no change is in progress. It is not safe for concurrent use.
type ownershipLog struct {
	from         map[int]string // previous owner of each shard that is being taken
	taken, given []int          // since the last flush
	owners       []string       // previous owners of the taken shards
}

// taking records the start of a take-over.
func (l *ownershipLog) taking(a TakeShard) {
	if l.from == nil {
		l.from = map[int]string{}
	}
	l.from[a.Shard] = a.From
}

// note records the end of a take-over or of a term.
func (l *ownershipLog) note(ev CoordinatorEvent) {
	switch ev := ev.(type) {
	case ShardTaken:
		if owner := l.from[ev.Shard]; ev.Err == nil {
			l.taken = append(l.taken, ev.Shard)
			if owner != "" && !slices.Contains(l.owners, owner) {
				l.owners = append(l.owners, owner)
			}
		}
		delete(l.from, ev.Shard)
	case TermEnded:
		l.given = append(l.given, ev.Shard)
	}
}

// flush writes at most one line for each kind of change.
func (l *ownershipLog) flush(log zerolog.Logger) {
	if len(l.taken) > 0 {
		slices.Sort(l.taken)
		slices.Sort(l.owners)
		log.Info().Ints("shards", l.taken).Strs("from", l.owners).Msg("shards taken")
	}
	if len(l.given) > 0 {
		slices.Sort(l.given)
		log.Info().Ints("shards", l.given).Msg("shards given up")
	}
	l.taken, l.given, l.owners = nil, nil, nil
}
