//go:build amd64 || arm64

package power

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// becomeEnv makes this test binary install the filter and execute the program in its
// arguments, because package os cannot run code between fork and exec.
const becomeEnv = "BELFRY_POWER_BECOME"

const (
	prSetNoNewPrivs   = 38
	prSetSeccomp      = 22
	seccompModeFilter = 2
	seccompAllow      = 0x7fff0000
	seccompTrace      = 0x7ff00000
	seccompKill       = 0x80000000
	mapShared         = 0x01 // also a bit of MAP_SHARED_VALIDATE

	// Offsets in struct seccomp_data.
	dataNr, dataArch, dataArgs = 0, 4, 16
)

// become installs the filter and replaces this process by the program in its arguments.
// It does not return.
func become() {
	runtime.LockOSThread() // a filter belongs to a thread, and this thread executes the program
	prog := filter()
	fprog := syscall.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	if _, _, e := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0); e != 0 {
		fail("no_new_privs", e)
	}
	if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, prSetSeccomp, seccompModeFilter, uintptr(unsafe.Pointer(&fprog))); e != 0 {
		fail("seccomp", e)
	}
	var env []string
	for _, v := range os.Environ() {
		if v != becomeEnv+"=1" {
			env = append(env, v)
		}
	}
	fail("exec", syscall.Exec(os.Args[1], os.Args[1:], env))
}

func fail(what string, err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", what, err)
	os.Exit(1)
}

// filter stops at the calls of the table. All others run at full speed.
func filter() []syscall.SockFilter {
	load := func(off uint32) syscall.SockFilter {
		return syscall.SockFilter{Code: syscall.BPF_LD | syscall.BPF_W | syscall.BPF_ABS, K: off}
	}
	jump := func(code uint16, k uint32, yes, no uint8) syscall.SockFilter {
		return syscall.SockFilter{Code: syscall.BPF_JMP | code | syscall.BPF_K, Jt: yes, Jf: no, K: k}
	}
	answer := func(k uint32) syscall.SockFilter {
		return syscall.SockFilter{Code: syscall.BPF_RET | syscall.BPF_K, K: k}
	}
	prog := []syscall.SockFilter{
		load(dataArch), jump(syscall.BPF_JEQ, auditArch, 1, 0), answer(seccompKill),
		load(dataNr),
		// An anonymous mapping has no file.
		jump(syscall.BPF_JEQ, syscall.SYS_MMAP, 0, 4),
		load(dataArgs + 3*8), jump(syscall.BPF_JSET, mapShared, 0, 1), answer(seccompTrace), answer(seccompAllow),
	}
	for nr := range calls {
		prog = append(prog, jump(syscall.BPF_JEQ, uint32(nr), 0, 1), answer(seccompTrace))
	}
	return append(prog, answer(seccompAllow))
}
