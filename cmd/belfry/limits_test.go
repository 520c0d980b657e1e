package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/belfryio/belfry/internal/natstest"
)

// TestTooFewStreams: doctor finds that the account may have too few streams, and serve says so at once.
func TestTooFewStreams(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "nats.conf")
	text := "accounts { A { jetstream: {max_streams: 12}, users: [{user: a, password: p}] } }"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	conf, err := server.ProcessConfigFile(path)
	if err != nil {
		t.Fatal(err)
	}
	srv := natstest.Run(t, func(o *server.Options) { o.Accounts, o.Users = conf.Accounts, conf.Users })
	url := "nats://a:p@" + srv.Addr().String()
	if r := belfryRun(t, "doctor", "--nats-url", url); !strings.Contains(r.out, "12 streams; Belfry creates 14") || !strings.Contains(r.out, "max_streams") {
		t.Errorf("doctor: got %v, want the number of streams that Belfry creates", r)
	}
	belfryRun(t, "serve", "--nats-url", url, "--http", "-", "--log-level", "error").oneLine(t, exitUsage, "may have no more streams", "max_streams")
	if r := belfryRun(t, "doctor", "--nats-url", url, "--shards", "2"); strings.Contains(r.out, "Belfry creates") {
		t.Errorf("doctor with 2 shards: got %v, want no finding about 12 streams", r)
	}
}
