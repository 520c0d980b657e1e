package scheduler

// Backlogs returns the Backlog of each shard's next core.
func (s *Scheduler) Backlogs() (all []*Backlog) {
	for _, shard := range s.shards {
		all = append(all, shard.cfg.Core.Backlog)
	}
	return all
}
