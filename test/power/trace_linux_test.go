//go:build amd64 || arm64

package power

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// traced is a program whose changes to a folder are followed in a model.
//
// Only one thread may trace, and it owns all fields; others may read them after done is
// closed. While the tracer handles a call of the program, the calling thread is stopped.
// So everything that the program reported to others before it was killed depends only on
// fsyncs whose end the tracer has seen.
type traced struct {
	root string // absolute, without symbolic links
	disk *disk

	pid   int
	mem   *os.File
	files map[int]*opened // by descriptor
	begun map[int]*call   // by thread

	left atomic.Int64 // stops until the program is killed; 0 for not drawn yet
	// rewrites is the number of block files of shards to replace until the program is killed, after stops more stops;
	// 0 for none.
	rewrites, stops atomic.Int64
	killed          atomic.Bool
	seen            atomic.Int64 // stops at calls below root

	done     chan struct{}
	problems []string
	status   syscall.WaitStatus
	fsyncs   int
	broken   func(path string) bool // fsyncs of these files do nothing; nil for none
}

// opened is a file or folder below root with a descriptor.
type opened struct {
	*inode
	path string
	sync bool // O_SYNC or O_DSYNC
}

// call is a system call in progress. Its effect on the model occurs when it has returned
// without an error.
type call struct {
	name   string
	doubt  []*inode // files that it may have changed if its end is not seen
	finish func(ret int64)
}

const (
	ptraceGetSyscallInfo = 0x420e // Linux 5.3
	ptraceOptions        = syscall.PTRACE_O_TRACESYSGOOD | syscall.PTRACE_O_TRACECLONE | syscall.PTRACE_O_TRACEFORK | syscall.PTRACE_O_TRACEVFORK |
		syscall.PTRACE_O_TRACEEXEC | traceSeccomp | exitKill
	// Constants that package syscall does not have on every architecture.
	traceSeccomp = 0x80
	exitKill     = 0x100000
	eventSeccomp = 7
)

// trace starts a program under the tracer. Fsyncs of files for which broken returns true do nothing; broken may be nil. The
// kernel kills the program when this process ends.
func trace(d *disk, root string, argv, env []string, log *os.File, broken func(path string) bool) (*traced, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	t := &traced{root: root, disk: d, files: map[int]*opened{}, begun: map[int]*call{}, done: make(chan struct{}), broken: broken}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with the goroutine
		defer close(t.done)
		err := t.start(self, append([]string{self}, argv...), append([]string{becomeEnv + "=1"}, env...), log)
		started <- err
		if err == nil {
			t.follow()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return t, nil
}

func (t *traced) start(self string, argv, env []string, log *os.File) error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	attr := &syscall.ProcAttr{Dir: "/", Env: env, Files: []uintptr{null.Fd(), log.Fd(), log.Fd()}, Sys: &syscall.SysProcAttr{Ptrace: true}}
	if t.pid, err = syscall.ForkExec(self, argv, attr); err != nil {
		return fmt.Errorf("start a traced process: %w", err)
	}
	if _, err := syscall.Wait4(t.pid, &t.status, syscall.WALL, nil); err != nil {
		return fmt.Errorf("wait for a traced process: %w", err)
	}
	err = syscall.PtraceSetOptions(t.pid, ptraceOptions)
	if err == nil {
		err = syscall.PtraceCont(t.pid, 0)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("trace: %w", err), syscall.Kill(t.pid, syscall.SIGKILL))
	}
	return nil
}

// arm makes the tracer kill the program at the n-th stop from now.
func (t *traced) arm(n int64) { t.left.Store(max(n, 1)) }

// armAtRewrite makes the tracer kill the program at the stops-th stop after it has replaced the n-th block file of a
// shard from now.
func (t *traced) armAtRewrite(n, stops int64) {
	t.stops.Store(max(stops, 1))
	t.rewrites.Store(max(n, 1))
}

// replaced counts the block files of shards that the program has replaced.
func (t *traced) replaced(path string) {
	if strings.Contains(path, "/KV_timers_") && strings.HasSuffix(path, ".blk") && t.rewrites.Load() > 0 && t.rewrites.Add(-1) == 0 {
		t.arm(t.stops.Load())
	}
}

// kill ends the program at any point, and waits for its end.
func (t *traced) kill() {
	select {
	case <-t.done:
		return
	default:
	}
	t.killed.Store(true)
	_ = syscall.Kill(t.pid, syscall.SIGKILL) // fails only if it has ended
	<-t.done
}

// follow handles every stop until the last thread has ended.
func (t *traced) follow() {
	for {
		var ws syscall.WaitStatus
		// Wait only for children of this thread.
		tid, err := syscall.Wait4(-1, &ws, syscall.WALL|syscall.WNOTHREAD, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			if !errors.Is(err, syscall.ECHILD) {
				t.problem("wait: %v", err)
			}
			if t.mem != nil {
				t.mem.Close()
			}
			return
		case !ws.Stopped():
			if tid == t.pid {
				t.status = ws
				if !t.killed.Load() {
					t.problem("the program ended by itself: status %#x", uint32(ws))
				}
			}
			continue
		}
		t.stopped(tid, ws)
	}
}

func (t *traced) stopped(tid int, ws syscall.WaitStatus) {
	resume := func(tid int, sig int) error { return syscall.PtraceCont(tid, sig) }
	deliver := 0
	switch sig := ws.StopSignal(); {
	case sig == syscall.SIGTRAP|0x80:
		t.leave(tid)
	case sig == syscall.SIGTRAP && ws.TrapCause() == eventSeccomp:
		if t.enter(tid) {
			resume = syscall.PtraceSyscall // stops again when the call returns
		}
	case sig == syscall.SIGTRAP && ws.TrapCause() == syscall.PTRACE_EVENT_EXEC:
		t.became()
	case sig == syscall.SIGTRAP, sig == syscall.SIGSTOP: // a new thread, and its first stop
	default:
		deliver = int(sig)
	}
	if err := resume(tid, deliver); err != nil && !errors.Is(err, syscall.ESRCH) { // it was killed meanwhile
		t.problem("resume: %v", err)
	}
}

// became opens the memory of the program after exec.
func (t *traced) became() {
	if t.mem != nil {
		t.mem.Close()
	}
	var err error
	if t.mem, err = os.Open(fmt.Sprintf("/proc/%d/mem", t.pid)); err != nil {
		t.problem("%v", err)
	}
	clear(t.files)
}

// info returns the kernel's description of the call at which a thread has stopped.
func (t *traced) info(tid int) (op byte, words [7]uint64, ok bool) {
	var b [88]byte
	_, _, e := syscall.Syscall6(syscall.SYS_PTRACE, ptraceGetSyscallInfo, uintptr(tid), uintptr(len(b)), uintptr(unsafe.Pointer(&b)), 0, 0)
	if e != 0 {
		if !errors.Is(e, syscall.ESRCH) {
			t.problem("PTRACE_GET_SYSCALL_INFO (Linux 5.3 is needed): %v", e)
		}
		return 0, words, false
	}
	for i := range words {
		words[i] = binary.NativeEndian.Uint64(b[24+8*i:])
	}
	return b[0], words, true
}

const (
	opExit    = 2
	opSeccomp = 3
)

// enter handles the start of a call. It returns true if the tracer must also see its end.
func (t *traced) enter(tid int) bool {
	op, w, ok := t.info(tid)
	if !ok {
		return false
	}
	k := calls[int(w[0])]
	if op != opSeccomp || k == nil {
		t.problem("a stop that is not understood: %d at call %d", op, w[0])
		return false
	}
	c := k(t, w[1:])
	if c == nil {
		return false
	}
	t.begun[tid] = c
	t.count()
	return true
}

func (t *traced) leave(tid int) {
	op, w, ok := t.info(tid)
	if !ok {
		return
	}
	c := t.begun[tid]
	if op != opExit || c == nil {
		t.problem("a call's end that is not understood: %d", op)
		return
	}
	delete(t.begun, tid)
	if ret := int64(w[0]); ret >= 0 && !t.killed.Load() {
		c.finish(ret)
	}
	t.count()
}

// count kills the program at the drawn stop.
func (t *traced) count() {
	t.seen.Add(1)
	if t.left.Load() > 0 && t.left.Add(-1) == 0 {
		t.killed.Store(true)
		if err := syscall.Kill(t.pid, syscall.SIGKILL); err != nil {
			t.problem("kill: %v", err)
		}
	}
}

// doubt returns the files that calls in progress at the end may have changed.
func (t *traced) doubt() map[*inode]bool {
	out := map[*inode]bool{}
	for _, c := range t.begun {
		for _, i := range c.doubt {
			out[i] = true
		}
	}
	return out
}

const problemsKept = 20

func (t *traced) problem(format string, args ...any) {
	if len(t.problems) < problemsKept {
		t.problems = append(t.problems, fmt.Sprintf(format, args...))
	}
}
