package main

import (
	"fmt"
	"testing"

	"github.com/belfryio/belfry/internal/natstest"
)

// TestHistoryFolderIsLocked: a folder has the search index of one node. The lock ends with the process.
func TestHistoryFolderIsLocked(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	url := natstest.Run(t).URL()
	args := []string{"--roles", "router,visibility", "--history-folder", folder}
	first := serveOn(t, url, args...)
	refused := append([]string{"serve", "--nats-url", url, "--http", "-", "--log-level", "error"}, args...)
	belfryRun(t, refused...).oneLine(t, exitInUse, "history folder "+folder, "--history-folder", fmt.Sprintf("process %d", first.cmd.Process.Pid))
	first.cmd.Process.Kill()
	<-first.done
	serveOn(t, url, args...)

	own := serve(t, "")
	belfryRun(t, "serve", "--nats-url", url, "--http", "-", "--log-level", "error", "--roles", "visibility", "--history-folder", own.data+"/visibility").oneLine(t, exitInUse, "history folder")
}
