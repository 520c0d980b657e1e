package scheduler

import (
	"slices"

	"github.com/rs/zerolog"
)

// ownershipLog collects the shards that this node takes and gives up, and logs a start or
// a take-over in one line. Lines of single shards have level debug. It is not safe for
// concurrent use.
type ownershipLog struct {
	from         map[int]string // previous owner of each shard that is being taken
	taken, given []int
	owners       []string // previous owners of the taken shards
}

// taking records the start of a take-over.
func (l *ownershipLog) taking(a KeepTake) {
	if l.from == nil {
		l.from = map[int]string{}
	}
	l.from[a.Shard] = a.From
}

// note records the end of a take-over or of an ownership.
func (l *ownershipLog) note(ev KeepEvent) {
	switch ev := ev.(type) {
	case KeepTook:
		if owner := l.from[ev.Shard]; ev.Err == nil {
			l.taken = append(l.taken, ev.Shard)
			if owner != "" && !slices.Contains(l.owners, owner) {
				l.owners = append(l.owners, owner)
			}
		}
		delete(l.from, ev.Shard)
	case KeepEnded:
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
