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

// disk is a small file system in memory that belongs to one server, so that filling it harms
// nothing else. It is mounted in a mount name space of its own, which needs no root where the
// kernel permits user name spaces, and exists as long as the holder process.
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
	// cat ends when this process ends, and the file system with it.
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
		_ = cmd.Wait() // the exit code of cat does not matter
	})
	return &disk{dir: dir, holder: cmd, hold: in}, nil
}

// command returns a command that runs in the name space of the file system.
func (d *disk) command(bin string, args ...string) *exec.Cmd {
	pid := strconv.Itoa(d.holder.Process.Pid)
	return exec.Command("nsenter", append([]string{"--preserve-credentials", "-U", "-m", "-t", pid, "--", bin}, args...)...)
}

// ballast is the file that fills the disk, as a path of this process.
func (d *disk) ballast() string {
	return filepath.Join("/proc", strconv.Itoa(d.holder.Process.Pid), "root", d.dir, "ballast")
}

// fill writes ballast until the disk is full.
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
