package power

import "syscall"

const auditArch = 0xc00000b7 // AUDIT_ARCH_AARCH64

// System calls without a name in package syscall.
const (
	sysRenameat2     = 276
	sysCopyFileRange = 285
	sysPwritev       = syscall.SYS_PWRITEV
	sysPwritev2      = 287
	sysSyncfs        = 267
	sysDup3          = syscall.SYS_DUP3
)

// oldCalls are system calls with a path and without a folder. arm64 has none.
var oldCalls = map[int]string{}
