// Package power shows what a power loss takes: in the safe profile nothing that
// was acknowledged.
//
// A node is run under a tracer (trace_linux_test.go), which sees every system
// call that changes a file or a folder below the data folder, and every fsync,
// and keeps a model of the disk beside it (disk_test.go): what was written, and
// how much of that a power loss would leave. At a moment that a seed draws, the
// node is killed between two system calls, and a folder is made of what was left.
// Belfry is started on that, and whatever it had acknowledged must hold.
//
// The tracer is ptrace with a seccomp filter: no root, no tool, nothing mounted.
// What it does not understand (a mapped file, a call that it has no model of)
// fails the test, and so does a model that differs from the real files at the end:
// a write that escaped it would be one that is never lost.
package power
