//go:build unix

package proc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// disk is a small file system of a server's own, in memory, that can be filled
// without harm to anybody else. It is mounted in a name space of its own, which
// needs no root where the kernel lets users make such, and lives as long as the
// process that holds it.
type disk struct {
	dir    string
	holder *exec.Cmd
	hold   io.Closer
}

func newDisk(tb testing.TB, dir string, bytes int64) (*disk, error) {
	tb.Helper()
	for _, tool := range []string{"sh", "mount", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// cat ends, and with it the file system, when this process does.
	cmd := exec.Command("sh", "-c", `mount -t tmpfs -o size="$1" belfry "$2" && echo mounted && exec cat`, "sh", strconv.FormatInt(bytes, 10), dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	var text strings.Builder
	cmd.Stderr = &text
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("a name space of its own: %w", err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "mounted\n" {
		in.Close()
		return nil, fmt.Errorf("mount: %w: %s", errors.Join(err, cmd.Wait()), text.String())
	}
	tb.Cleanup(func() {
		in.Close()
		_ = cmd.Wait() // cat has nothing to tell
	})
	return &disk{dir: dir, holder: cmd, hold: in}, nil
}

// command runs a program where the file system is seen.
func (d *disk) command(bin string, args ...string) *exec.Cmd {
	pid := strconv.Itoa(d.holder.Process.Pid)
	return exec.Command("nsenter", append([]string{"--preserve-credentials", "-U", "-m", "-t", pid, "--", bin}, args...)...)
}

// ballast is the file that fills the disk, as it is seen from here.
func (d *disk) ballast() string {
	return filepath.Join("/proc", strconv.Itoa(d.holder.Process.Pid), "root", d.dir, "ballast")
}

// fill takes all the room that is left.
func (d *disk) fill() error {
	f, err := os.Create(d.ballast())
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, 1<<20)
	for {
		_, err := f.Write(b)
		switch {
		case errors.Is(err, syscall.ENOSPC) && len(b) > 1:
			b = b[:len(b)/2]
		case errors.Is(err, syscall.ENOSPC):
			return nil
		case err != nil:
			return err
		}
	}
}

func (d *disk) free() error { return os.Remove(d.ballast()) }
