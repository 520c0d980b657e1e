//go:build amd64 || arm64

package power

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// calls are the system calls at which the filter stops, with the function that starts to
// model each; nil for a call that does not concern the model.
var calls map[int]func(*traced, []uint64) *call

func init() {
	calls = map[int]func(*traced, []uint64) *call{
		syscall.SYS_OPENAT:    (*traced).openat,
		syscall.SYS_CLOSE:     (*traced).close,
		syscall.SYS_WRITE:     (*traced).write,
		syscall.SYS_PWRITE64:  (*traced).pwrite,
		syscall.SYS_FTRUNCATE: (*traced).ftruncate,
		syscall.SYS_FSYNC:     (*traced).fsync,
		syscall.SYS_FDATASYNC: (*traced).fsync,
		syscall.SYS_MKDIRAT:   (*traced).mkdirat,
		syscall.SYS_UNLINKAT:  (*traced).unlinkat,
		syscall.SYS_RENAMEAT:  (*traced).renameat,
		sysRenameat2:          (*traced).renameat,
	}
	// The model does not handle these calls, so a program must not use them on a file
	// below root.
	for nr, c := range map[int]struct {
		name string
		fd   int // index of the argument that is the descriptor
	}{
		syscall.SYS_WRITEV: {"writev", 0}, sysPwritev: {"pwritev", 0}, sysPwritev2: {"pwritev2", 0}, syscall.SYS_FALLOCATE: {"fallocate", 0},
		syscall.SYS_SENDFILE: {"sendfile", 0}, syscall.SYS_SPLICE: {"splice", 2}, sysCopyFileRange: {"copy_file_range", 2},
		syscall.SYS_MMAP: {"shared mmap", 4}, syscall.SYS_DUP: {"dup", 0}, sysDup3: {"dup3", 0},
	} {
		calls[nr] = func(t *traced, a []uint64) *call {
			if f := t.file(a[c.fd]); f != nil {
				t.problem("%s of %s, which the model does not know", c.name, f.path)
			}
			return nil
		}
	}
	const ioUringSetup, closeRange, openat2 = 425, 436, 437
	never := map[int]string{
		syscall.SYS_SYNC: "sync", sysSyncfs: "syncfs", syscall.SYS_TRUNCATE: "truncate", syscall.SYS_LINKAT: "linkat", syscall.SYS_SYMLINKAT: "symlinkat",
		syscall.SYS_MKNODAT: "mknodat", ioUringSetup: "io_uring_setup", closeRange: "close_range", openat2: "openat2",
	}
	for _, m := range []map[int]string{never, oldCalls} {
		for nr, name := range m {
			calls[nr] = func(t *traced, _ []uint64) *call {
				t.problem("a call of %s, which the model does not know", name)
				return nil
			}
		}
	}
}

// file returns the file of a descriptor, or nil if it is not below root.
func (t *traced) file(fd uint64) *opened { return t.files[int(int32(fd))] }

// place is the result of following a path below root.
type place struct {
	folder *inode // nil if it does not exist, or for root itself
	name   string
	ino    *inode // nil if it does not exist
	path   string
}

// find follows a path of the program. It returns nil for a path that is not below root.
func (t *traced) find(dirfd, at uint64) *place {
	path := t.text(at)
	p := &place{ino: t.disk.root, path: path}
	switch f := t.file(dirfd); {
	case path == t.root:
		return p
	case strings.HasPrefix(path, t.root+"/"):
		path = path[len(t.root)+1:]
	case filepath.IsAbs(path) || f == nil: // the working folder is not below root
		return nil
	default:
		p.ino, p.path = f.inode, f.path+"/"+path
	}
	for name := range strings.SplitSeq(path, "/") {
		switch name {
		case "", ".":
			continue
		case "..":
			t.problem("a path with ..: %s", path)
		}
		p.folder, p.name = p.ino, name
		if p.ino != nil {
			p.ino = p.ino.live[name]
		}
	}
	return p
}

// missing reports that a call succeeded on a file that the model does not have.
func (t *traced) missing(what string, p *place) {
	t.problem("%s of %s, which is not in the model", what, p.path)
}

func (t *traced) openat(a []uint64) *call {
	dirfd, flags := a[0], int(a[2])
	p := t.find(dirfd, a[1])
	if p == nil {
		return nil
	}
	c := &call{name: "openat", finish: func(ret int64) {
		if p.folder != nil {
			p.ino = p.folder.live[p.name] // its present state
		}
		switch {
		case p.ino == nil && (p.folder == nil || flags&syscall.O_CREAT == 0):
			t.missing("an open", p)
			return
		case p.ino == nil:
			p.ino = &inode{}
			t.disk.link(p.folder, p.name, p.ino)
		case flags&syscall.O_TRUNC != 0:
			p.ino.truncate(0)
		}
		t.files[int(ret)] = &opened{inode: p.ino, path: p.path, sync: flags&(syscall.O_SYNC|syscall.O_DSYNC) != 0}
	}}
	if flags&syscall.O_CREAT != 0 && p.folder != nil {
		c.doubt = append(c.doubt, p.folder)
	}
	if flags&syscall.O_TRUNC != 0 && p.ino != nil {
		c.doubt = append(c.doubt, p.ino)
	}
	return c
}

// close always succeeds: the descriptor is free from here on.
func (t *traced) close(a []uint64) *call {
	delete(t.files, int(int32(a[0])))
	return nil
}

func (t *traced) pwrite(a []uint64) *call {
	return t.written("pwrite64", a, func(int64) int64 { return int64(a[3]) })
}

func (t *traced) write(a []uint64) *call {
	return t.written("write", a, func(n int64) int64 { return t.position(a[0]) - n })
}

func (t *traced) written(name string, a []uint64, at func(n int64) int64) *call {
	f := t.file(a[0])
	if f == nil || a[2] == 0 {
		return nil
	}
	b := make([]byte, a[2])
	t.read(a[1], b)
	m := t.disk.now(f.inode)
	return &call{name: name, doubt: []*inode{f.inode}, finish: func(n int64) {
		if !f.sync {
			f.write(at(n), b[:n])
			return
		}
		// Such a write makes itself and earlier sizes durable, but not earlier writes,
		// which the model cannot express.
		for _, c := range f.log {
			if c.isWrite() {
				t.problem("a synced write to %s, after a write without a sync", f.path)
			}
		}
		f.write(at(n), b[:n])
		m.changes = t.disk.now(f.inode).changes
		t.synced(f, m)
	}}
}

func (t *traced) synced(f *opened, m mark) {
	if t.broken != nil && t.broken(f.path) {
		return
	}
	t.fsyncs++
	t.disk.sync(f.inode, m)
}

func (t *traced) ftruncate(a []uint64) *call {
	f := t.file(a[0])
	if f == nil {
		return nil
	}
	return &call{name: "ftruncate", doubt: []*inode{f.inode}, finish: func(int64) { f.truncate(int64(a[1])) }}
}

func (t *traced) fsync(a []uint64) *call {
	f := t.file(a[0])
	if f == nil {
		return nil
	}
	m := t.disk.now(f.inode)
	return &call{name: "fsync", finish: func(int64) { t.synced(f, m) }}
}

func (t *traced) mkdirat(a []uint64) *call {
	p := t.find(a[0], a[1])
	if p == nil {
		return nil
	}
	return &call{name: "mkdirat", doubt: []*inode{p.folder}, finish: func(int64) {
		if p.folder == nil {
			t.missing("a mkdir", p)
			return
		}
		t.disk.link(p.folder, p.name, newFolder())
	}}
}

func (t *traced) unlinkat(a []uint64) *call {
	p := t.find(a[0], a[1])
	if p == nil {
		return nil
	}
	return &call{name: "unlinkat", doubt: []*inode{p.folder}, finish: func(int64) {
		if p.folder == nil || p.folder.live[p.name] == nil {
			t.missing("an unlink", p)
			return
		}
		t.disk.unlink(p.folder, p.name)
	}}
}

func (t *traced) renameat(a []uint64) *call {
	from, to := t.find(a[0], a[1]), t.find(a[2], a[3])
	if from == nil && to == nil {
		return nil
	}
	if from == nil || to == nil {
		t.problem("a rename into or out of the folder")
		return nil
	}
	return &call{name: "renameat", doubt: []*inode{from.folder, to.folder}, finish: func(int64) {
		switch {
		case from.folder == nil || to.folder == nil || from.folder.live[from.name] == nil:
			t.missing("a rename", from)
		case from.folder != to.folder || from.name != to.name:
			t.disk.rename(from.folder, from.name, to.folder, to.name)
			t.replaced(to.path)
		}
	}}
}

// position returns the offset of a descriptor.
func (t *traced) position(fd uint64) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", t.pid, int32(fd)))
	if err == nil {
		text, _, _ := strings.Cut(strings.TrimPrefix(string(b), "pos:"), "\n")
		var n int64
		if n, err = strconv.ParseInt(strings.TrimSpace(text), 10, 64); err == nil {
			return n
		}
	}
	t.problem("where a file was written: %v", err)
	return 0
}

// read copies memory of the program.
func (t *traced) read(at uint64, b []byte) {
	if t.mem == nil {
		t.problem("a write before the program began")
		return
	}
	if _, err := t.mem.ReadAt(b, int64(at)); err != nil {
		t.problem("read the program's memory: %v", err)
	}
}

const longestPath = 4096

// text reads a string that ends with a zero byte.
func (t *traced) text(at uint64) string {
	var out []byte
	for len(out) < longestPath && t.mem != nil {
		// Read to the end of a page at most, because the next page may not be mapped.
		b := make([]byte, pageBytes-at%pageBytes)
		n, err := t.mem.ReadAt(b, int64(at))
		if end := bytes.IndexByte(b[:n], 0); end >= 0 {
			return string(append(out, b[:end]...))
		}
		if err != nil {
			t.problem("read a path in the program's memory: %v", err)
			return ""
		}
		out, at = append(out, b...), at+uint64(n)
	}
	return string(out)
}
