package power

import "syscall"

const auditArch = 0xc000003e // AUDIT_ARCH_X86_64

// System calls without a name in package syscall.
const (
	sysRenameat2     = 316
	sysCopyFileRange = 326
	sysPwritev       = 296
	sysPwritev2      = 328
	sysSyncfs        = 306
	sysDup3          = syscall.SYS_DUP3
)

// oldCalls are system calls with a path and without a folder, which newer architectures
// do not have.
var oldCalls = map[int]string{
	syscall.SYS_OPEN: "open", syscall.SYS_CREAT: "creat", syscall.SYS_RENAME: "rename", syscall.SYS_MKDIR: "mkdir",
	syscall.SYS_RMDIR: "rmdir", syscall.SYS_LINK: "link", syscall.SYS_UNLINK: "unlink", syscall.SYS_SYMLINK: "symlink",
	syscall.SYS_DUP2: "dup2",
}
