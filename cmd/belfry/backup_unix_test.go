//go:build unix

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/belfryio/belfry/internal/backup"
	"github.com/belfryio/belfry/internal/logtest"
	"github.com/belfryio/belfry/internal/waittest"
)

// fullPipe returns a pipe that has no room: a process that writes to it waits.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	fd := int(w.Fd())
	if err := syscall.SetNonblock(fd, true); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := syscall.Write(fd, make([]byte, 4096)); errors.Is(err, syscall.EAGAIN) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	return w
}

// TestRestoreKilled: a restore that is killed after its first stream leaves a folder that neither a node nor another
// restore uses.
func TestRestoreKilled(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	publishAdd(t, connectJS(t, n), "one", `"timerafter":"1h"`)
	dir := filepath.Join(t.TempDir(), "backup")
	ok[backup.Manifest](t, n, "backup", dir)
	n.stop(t)

	data := filepath.Join(t.TempDir(), "data")
	cmd := command(t, nil, "restore", dir, "--data", data)
	cmd.Stderr = fullPipe(t) // the restore waits when it reports the first stream
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the restore has made the first stream", func() bool {
		_, err := os.Stat(filepath.Join(data, "jetstream", "$G", "streams", "KV_clock"))
		return err == nil
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("the restore ended before it was killed")
	}
	if _, err := os.Stat(filepath.Join(data, "jetstream", "$G", "streams", "TIMERS_DEAD")); err == nil {
		t.Fatal("the restore was complete when it was killed")
	}
	const what = "a restore was interrupted"
	belfryRun(t, "restore", dir, "--data", data).oneLine(t, exitRefused, what, "restore again")
	var log logtest.Buffer
	node := command(t, nil, "serve", "--data", data, "--nats-listen", "127.0.0.1:0", "--http", "-")
	node.Stderr = &log
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	waittest.Until(t, "the node runs or refuses the folder", func() bool {
		_, running := log.Line("belfry is running")
		_, refused := log.Line("belfry: ")
		return running || refused
	}, log.String)
	node.Process.Kill()
	node.Wait() // the log tells the result
	if line, _ := log.Line("belfry: "); !strings.Contains(line, what) || !strings.Contains(line, "remove the new data folder") {
		t.Fatalf("the node on a folder that is restored in part logs %s", log.String())
	}

	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	if r := belfryRun(t, "restore", dir, "--data", data); r.code != exitOK {
		t.Fatalf("restore into a new folder: got %v", r)
	}
	serve(t, data)
}
