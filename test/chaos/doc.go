// Package chaos holds tests that run the real programs and break them.
//
// TestKillNine builds belfry, serves on a temporary folder, and has clients add,
// cancel and be called back while the process is ended with SIGKILL again and
// again.
//
// TestChaos runs three nats-server processes with three replicas of everything and
// three belfry nodes, each behind a network of its own (proc.Link), and makes one
// fault after the other (faults_test.go): processes are killed, paused and
// restarted, connections cut, held up and delayed, leaders made to step down, a
// disk filled. Clients add, cancel and reschedule meanwhile.
//
// TestRollingUpgrade replaces nodes by nodes of a newer build and back, under load.
// TestNewerRecordsOnProcesses plants records of a newer format. Their newer node is this
// program, built with the tag belfrylevel, which reads the format of the next build.
//
// What clients saw is a history (package check), whose checker judges it. It also
// measures fail-over: from the fault to the first event, in each shard that it hit,
// that was due after the fault. Its bounds are judged where the run has the machine for
// itself, and the longest stall of the machine is added to them.
//
//	go test -run TestChaos -v ./test/chaos                           a short run: a node dies, a server dies; fail-over is logged, not judged
//	BELFRY_CHAOS_SECONDS=120 go test -run TestChaos -v ./test/chaos  all faults, for that long
//	BELFRY_CHAOS_SEED=7 …                                            a seed again
//	BELFRY_CHAOS_FAULTS=node-kill,server-kill …                      only these
//	BELFRY_CHAOS_KEEP=1 …                                            history and logs are kept
//
// A seed fixes what is done and which fault comes when, not how the machine
// schedules processes: a failing seed is tried a few times. The history and the
// logs of a run that failed are kept, and their path printed.
package chaos
