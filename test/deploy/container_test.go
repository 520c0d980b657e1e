package deploy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/belfryio/belfry/internal/cmdline"
	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/tcptest"
	"github.com/belfryio/belfry/internal/waittest"
)

// TestContainer builds the image and runs a node in it, with the program alone: health, a timer,
// and a stop in order. It writes to its volume and to nothing else. BELFRY_CONTAINER=1 runs it, because the
// build of a static program compiles every package once more.
func TestContainer(t *testing.T) {
	t.Parallel()
	if os.Getenv("BELFRY_CONTAINER") == "" {
		t.Skip("BELFRY_CONTAINER is not set, so this was not checked: that the image builds, and that a node runs in it")
	}
	need(t, "buildah", "that the image builds, and that a node runs in it (Debian: apt-get install buildah)")
	if os.Getuid() != 0 {
		t.Skip("not root, so this was not checked: that the image builds, and that a node runs in it")
	}
	b := buildah{t, t.TempDir()}
	const image = "localhost/belfry-test"
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "deploy/container/build"), image)
	cmd.Env = append(os.Environ(), "TOOL=buildah "+strings.Join(b.store(), " "), "COMMIT=abc123")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	b.checkImage(image)
	container := b.run("from", "--pull-never", image)
	mounted := b.run("mount", container)
	before := snapshot(t, mounted)

	natsAddr, httpAddr := tcptest.FreeAddress(t), tcptest.FreeAddress(t)
	data := t.TempDir()
	if err := errors.Join(os.Chown(data, 65532, 65532), os.Chmod(data, 0o700)); err != nil {
		t.Fatal(err)
	}
	// The folders above belong to root alone, and buildah mounts data over the volume.
	inside := func(args ...string) *exec.Cmd {
		return b.command(append([]string{"run", "--isolation", "chroot", "--cap-drop", "all", "--user", "65532:65532", "-v", data + ":/var/lib/belfry",
			"--env", "BELFRY_NATS_LISTEN=" + natsAddr, "--env", "BELFRY_HTTP=" + httpAddr, container, "--", "/belfry"}, args...)...)
	}
	node := inside("serve")
	var log logtest.Buffer
	node.Stdout, node.Stderr = &log, &log
	node.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- node.Wait() }()
	t.Cleanup(func() { syscall.Kill(-node.Process.Pid, syscall.SIGKILL) })

	call := func(args ...string) (string, int) {
		var out bytes.Buffer
		cmd := inside(args...)
		cmd.Stdout, cmd.Stderr = &out, &out
		cmd.Run() // the exit code says what happened
		return out.String(), cmd.ProcessState.ExitCode()
	}
	text := ""
	waittest.UntilWithin(t, bound, "belfry health exits with code 0 in the container", func() bool {
		select {
		case err := <-ended:
			t.Fatalf("the node ended: %v\n%s", err, log.String())
		default:
		}
		out, code := call("health")
		text = out
		return code == cmdline.ExitOK
	}, func() string { return text + log.String() })
	if out, code := call("version", "-o", "json"); code != cmdline.ExitOK || !strings.Contains(out, `"commit":"abc123"`) {
		t.Errorf("version: exit code %d, %s; want the commit abc123", code, out)
	}
	server := "nats://" + natsAddr
	if out, code := call("add", "--in", "1ms", "--svc", "orders", "--id", "one", "--nats-url", server); code != cmdline.ExitOK {
		t.Errorf("add: exit code %d: %s", code, out)
	}
	if out, code := call("tail", "orders", "--since", "1h", "-n", "1", "--nats-url", server); code != cmdline.ExitOK || !strings.Contains(out, "one") {
		t.Errorf("tail: exit code %d: %s", code, out)
	}
	// A runtime sends the signal to the process in the container. buildah would kill it.
	if err := syscall.Kill(processWith(t, "BELFRY_HTTP="+httpAddr, "serve"), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waittest.Receive(t, "the end of the node after SIGTERM", ended, log.String)
	if !strings.Contains(log.String(), `"message":"stopped"`) {
		t.Errorf("the node did not log that it stopped: %s", log.String())
	}
	if after := snapshot(t, mounted); !slices.Equal(before, after) {
		t.Errorf("the root file system changed: had %v, has %v", before, after)
	}
	if entries, err := os.ReadDir(data); err != nil || len(entries) == 0 {
		t.Errorf("the volume has %v, %v; want the node's data", entries, err)
	}
}

// processWith returns the id of the /belfry process that has a variable and an argument.
func processWith(t *testing.T, variable, argument string) int {
	t.Helper()
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range folders {
		args, argsErr := os.ReadFile(filepath.Join(folder, "cmdline"))
		env, envErr := os.ReadFile(filepath.Join(folder, "environ"))
		if argsErr != nil || envErr != nil || string(args) != "/belfry\x00"+argument+"\x00" || !slices.Contains(strings.Split(string(env), "\x00"), variable) {
			continue // another process, or it has ended
		}
		pid, err := strconv.Atoi(filepath.Base(folder))
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	t.Fatalf("no process /belfry %s with %s", argument, variable)
	return 0
}

// buildah runs commands of buildah with a storage of their own.
type buildah struct {
	t   *testing.T
	dir string
}

func (b buildah) store() []string {
	return []string{"--root", filepath.Join(b.dir, "root"), "--runroot", filepath.Join(b.dir, "run"), "--storage-driver", "vfs"}
}

func (b buildah) command(args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	b.t.Cleanup(cancel)
	return exec.CommandContext(ctx, "buildah", append(b.store(), args...)...)
}

func (b buildah) run(args ...string) string {
	b.t.Helper()
	var stderr bytes.Buffer
	cmd := b.command(args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		b.t.Fatalf("buildah %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// checkImage compares the configuration of the image with what docs/deploy.md says.
func (b buildah) checkImage(image string) {
	b.t.Helper()
	var got struct {
		Docker struct {
			Config struct {
				User        string
				Entrypoint  []string
				Cmd         []string
				Volumes     map[string]struct{}
				Healthcheck struct{ Test []string }
			} `json:"config"`
		}
	}
	if err := json.Unmarshal([]byte(b.run("inspect", "--type", "image", image)), &got); err != nil {
		b.t.Fatal(err)
	}
	c := got.Docker.Config
	if _, ok := c.Volumes["/var/lib/belfry"]; !ok || c.User != "65532:65532" || !slices.Equal(c.Entrypoint, []string{"/belfry"}) || !slices.Equal(c.Cmd, []string{"serve"}) ||
		!slices.Equal(c.Healthcheck.Test, []string{"CMD", "/belfry", "health"}) {
		b.t.Errorf("the image has the configuration %+v", c)
	}
}

// snapshot returns the files below a folder, with size, mode and time of change. It leaves out the
// mount points that buildah makes.
func snapshot(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if rel != "etc/hostname" && rel != "etc/hosts" && rel != "etc/resolv.conf" && rel != "run/.containerenv" {
			all = append(all, strings.Join([]string{rel, info.Mode().String(), info.ModTime().String()}, " "))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
