// Package compare benchmarks calendar.Next beside robfig/cron in the same run. It is a module
// of its own, so that Belfry does not depend on the other library:
//
//	cd internal/calendar/compare && go test -bench .
package compare
