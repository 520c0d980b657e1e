// Package chaos holds tests that run the real program and kill it.
//
// TestKillNine builds belfry, serves on a temporary folder, and has clients add,
// cancel and be called back while the process is ended with SIGKILL again and
// again. What they saw is a history (package check), whose checker judges it.
//
//	go test -run TestKillNine -v ./test/chaos                          a short run
//	BELFRY_CHAOS_SECONDS=60 go test -run TestKillNine -v ./test/chaos  the full one
//	BELFRY_CHAOS_SEED=7 …                                              a seed again
//
// A seed fixes what is done and when processes die, not how the machine schedules
// them: a failing seed is tried a few times. The history of a run that failed is
// kept, and its path printed.
package chaos
