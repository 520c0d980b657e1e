// Package chaos runs the real programs and breaks them.
//
// TestKillNine runs one belfry process that is killed with SIGKILL again and again while
// clients add, cancel and receive callbacks. TestKillNineWhileSchedulesFire does so with
// two hundred schedules, whose calendars change meanwhile (calendars_test.go).
//
// TestChaos runs three nats-server processes with three replicas of every stream and
// three belfry nodes, each behind a network of its own (proc.Link), and makes one fault
// after another (faults_test.go): it kills, pauses and restarts processes, cuts, holds up
// and delays connections, makes leaders step down, and fills a disk. Meanwhile clients
// add, cancel and reschedule. Schedules with every misfire and overlap policy fire, and
// clients pause, resume, trigger, backfill, update and delete them (schedules_test.go).
//
// TestRollingUpgrade replaces nodes by nodes of a newer build and back, under load.
// TestNewerRecordsOnProcesses plants records of a newer format. Their newer node is this
// program, built with the tag belfrylevel, which reads the format of the next build.
//
// Clients record what they see as a history, which package check judges. It also measures
// fail-over: the time from the fault to the first event of each affected shard that was
// due after the fault. Bounds of fail-over are checked only in runs that have the machine
// for themselves, plus the longest stall of the machine.
//
//	go test -run TestChaos -v ./test/chaos                           short: one node and one server die; fail-over is logged, not judged
//	BELFRY_CHAOS_SECONDS=120 go test -run TestChaos -v ./test/chaos  all faults, for 120 seconds
//	BELFRY_TESTS=all go test -v ./test/chaos                         also the tests that go test leaves out
//	BELFRY_CHAOS_SEED=7 …                                            repeats a seed
//	BELFRY_CHAOS_FAULTS=node-kill,server-kill …                      only these faults
//	BELFRY_CHAOS_KEEP=1 …                                            keeps the history and the logs
//
// A seed fixes the operations and the order of faults, but not how the machine schedules
// processes: repeat a failing seed a few times. A failed run keeps its history and its
// logs, and prints their path.
package chaos
