package main

import (
	"fmt"
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

// TestTextsOfRefusals: a refused login, an account without JetStream, an unknown shell and a data folder that is a file
// have texts that name the mistake.
func TestTextsOfRefusals(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "nats.conf")
	text := "accounts { A { jetstream: enabled, users: [{user: a, password: p}] }, T { users: [{user: team, password: p}] } }"
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // readable by all: see below
		t.Fatal(err)
	}
	conf, err := server.ProcessConfigFile(path)
	if err != nil {
		t.Fatal(err)
	}
	srv := natstest.Run(t, func(o *server.Options) { o.Accounts, o.Users = conf.Accounts, conf.Users })
	at := func(login string) string { return "nats://" + login + "@" + srv.Addr().String() }
	belfryRun(t, "ls", "--nats-url", at("a:wrong")).oneLine(t, exitUnreachable, "refuses the login", "password")
	belfryRun(t, "serve", "--http", "-", "--nats-url", at("a:wrong")).oneLine(t, exitUnreachable, "refuses the login", "password-file")
	belfryRun(t, "doctor", "--nats-url", at("a:wrong")).oneLine(t, exitUnreachable, "refuses the login", "password")
	login := filepath.Join(t.TempDir(), "wrong.json")
	if err := os.WriteFile(login, fmt.Appendf(nil, `{"url":"nats://%s","user":"a","password":"wrong"}`, srv.Addr()), 0o600); err != nil {
		t.Fatal(err)
	}
	belfryRun(t, "ls", "--context", login).oneLine(t, exitUnreachable, "refuses the login of context", "password")
	belfryRun(t, "tail", "orders", "--nats-url", at("team:p")).oneLine(t, exitUnreachable, "this user's account has no JetStream", "Belfry's account")
	belfryRun(t, "completion", "nope").oneLine(t, exitUsage, "unknown command", "nope")
	if r := belfryRun(t, "completion", "bash"); r.code != exitOK || !strings.Contains(r.out, "bash completion") {
		t.Errorf("completion bash: got exit code %d", r.code)
	}
	r := belfryRun(t, "serve", "--data", path, "--nats-listen", "127.0.0.1:0", "--http", "-")
	r.oneLine(t, exitUsage, "data folder "+path)
	for command, want := range map[string]string{"tail": "of each request", "status": "of each request", "listen": "of each request", "backup": "of each request", "restore": "of each request", "ls": "of the whole command"} {
		if r := belfryRun(t, command, "--help"); !strings.Contains(r.out, "time limit "+want) {
			t.Errorf("%s --help: the help of --timeout lacks %q", command, want)
		}
	}
}
