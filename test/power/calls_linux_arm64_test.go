package power

import "syscall"

const auditArch = 0xc00000b7 // AUDIT_ARCH_AARCH64

// Calls that package syscall has no name for.
const (
	sysRenameat2     = 276
	sysCopyFileRange = 285
	sysPwritev       = syscall.SYS_PWRITEV
	sysPwritev2      = 287
	sysSyncfs        = 267
	sysDup3          = syscall.SYS_DUP3
)

// oldCalls are those by path alone, which this machine does not have.
var oldCalls = map[int]string{}
