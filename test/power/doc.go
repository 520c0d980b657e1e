// Package power shows that a power loss takes nothing that was acknowledged, if the node
// has the safe profile.
//
// A tracer (trace_linux_test.go) runs a node and sees every system call that changes a
// file or folder below the data folder, and every fsync. From them it maintains a model
// of the disk (disk_test.go): what was written, and how much of it a power loss would
// leave. At a random moment the node is killed between two system calls, and a folder is
// created with what was left. Belfry starts on that folder, and everything that it had
// acknowledged must be there. Schedules fire meanwhile: none of their nominal times may be
// without a decision, or fire twice (test/chaos/check). They follow a calendar that is put
// again and again, and each deadline of timerexpect without a success has one overdue event.
//
// The tracer uses ptrace with a seccomp filter. It needs no root, no tool and no mount.
// The test fails if the tracer meets something that it does not model (a mapped file, an
// unknown call), or if the model finally differs from the files, since a write that the
// tracer misses would never be lost.
package power
