package recurrence

import (
	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/schemas"
)

// Preview describes a calendar and explains its first n runs from fromMs on, in Unix
// milliseconds. With jitter the reply has the due time of each run.
func Preview(c *calendar.Schedule, fromMs int64, n int, jitter bool) schemas.PreviewReply {
	reply := schemas.PreviewReply{
		Description: c.Describe(), Resolved: c.Resolved(), Zones: c.Zones().Release(), Warnings: c.Warnings(), Runs: []schemas.PreviewRun{},
	}
	for _, o := range c.Explain(fromMs, calendar.MaxMs, n) {
		run := schemas.PreviewRun{At: schemas.TimeOf(o.NominalMs), Local: o.Local(), Skipped: o.Skipped, Why: []schemas.ReasonInfo{}}
		if jitter && !o.Skipped {
			run.Due = schemas.TimeOf(o.DueMs)
		}
		for _, r := range o.Reasons {
			run.Why = append(run.Why, schemas.ReasonInfo{Code: string(r.Code), Text: r.Text})
		}
		reply.Runs = append(reply.Runs, run)
	}
	return reply
}
