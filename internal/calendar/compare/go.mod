module github.com/belfryio/belfry/internal/calendar/compare

go 1.26.0

require (
	github.com/belfryio/belfry v0.0.0
	github.com/robfig/cron/v3 v3.0.1
)

replace github.com/belfryio/belfry => ../../..
