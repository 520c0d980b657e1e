package main

import (
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/belfryio/belfry/internal/calendar"
	"github.com/belfryio/belfry/internal/natstest"
	"github.com/belfryio/belfry/schemas"
)

// TestTimeoutBoundsTheWholeCommand: --timeout bounds a command that reads many pages,
// each of which arrives quickly.
func TestTimeoutBoundsTheWholeCommand(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	nc := srv.Connect()
	// A fake API whose lists never end; a real one would need millions of timers.
	answer := func(verb, body string) {
		if _, err := nc.Subscribe(schemas.SubjectAPIPrefix+verb, func(m *nats.Msg) {
			if err := m.Respond([]byte(body)); err != nil {
				t.Error(err)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	answer("list", `{"timers":[],"cursor":"more"}`)
	answer("dead.list", `{"dead":[],"cursor":"more"}`)
	answer("bulk.replay", `{"matched":1,"done":1,"refused":0,"dead":[],"cursor":"more"}`)
	answer("bulk.cancel", `{"matched":0,"done":0,"refused":0,"timers":[],"cursor":"more"}`)
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"ls": "0 were listed", "ls -n 0 -o json": "0 were listed", "dead ls": "0 were listed", "dead replay --svc x": "were replayed; the same command does the rest",
		"cancel --svc x": "0 were cancelled; the same command does the rest",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			var r result
			var begun time.Time
			for try, reached := 0, false; try < 5 && !reached; try++ { // a slow machine may not even connect within the timeout
				begun = time.Now()
				r = belfryRun(t, append(strings.Fields(line), "--timeout", "500ms", "--nats-url", srv.URL())...)
				reached = !strings.Contains(r.err, "cannot be reached")
			}
			r.oneLine(t, exitUnreachable, "not done within --timeout 500ms", want)
			if took := time.Since(begun); took < 500*time.Millisecond {
				t.Errorf("the command ended after %s, want no sooner than its timeout of 500ms", took)
			}
		})
	}
}

// TestNoAnswer: a server without a node, and a node that receives requests and does not
// answer.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	srv := natstest.Run(t)
	nc := srv.Connect()
	if _, err := nc.Subscribe(schemas.SubjectAPIPrefix+">", func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	id := schemas.NewTimerID("a", "b").String()
	for _, line := range []string{"add --in 1s", "get " + id, "cancel " + id, "reschedule " + id + " --in 1s", "ls", "dead ls", "dead replay " + id, "dead replay --svc x"} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			belfryRun(t, append(strings.Fields(line), "--timeout", "200ms", "--nats-url", srv.URL())...).oneLine(t, exitUnreachable, "not done within --timeout 200ms")
		})
	}
	t.Run("default", func(t *testing.T) {
		t.Parallel()
		belfryRun(t, "ls", "--nats-url", srv.URL()).oneLine(t, exitUnreachable, "no answer within 5s", "--timeout")
	})
	for _, d := range []string{"0s", "-1s"} {
		belfryRun(t, "ls", "--timeout", d, "--nats-url", srv.URL()).oneLine(t, exitUsage, "timeout")
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	text := belfryRun(t, "version")
	m := parseLines[map[string]string](t, belfryRun(t, "version", "-o", "json").out)[0]
	if m["version"] != version || m["go"] != runtime.Version() || m["commit"] == "" || m["tzdata"] != calendar.ZoneDataVersion {
		t.Errorf("version -o json: got %v, want the versions of belfry %s, %s and time zone data %s, and a commit", m, version, runtime.Version(), calendar.ZoneDataVersion)
	}
	for key, value := range m {
		name := strings.NewReplacer("nats_server", "nats-server", "nats_go", "nats.go").Replace(key)
		if name != "version" && (!strings.Contains(text.out, name) || !strings.Contains(text.out, value)) {
			t.Errorf("version: got %s, want the row %s %s", text.out, name, value)
		}
	}
	vcs := func(pairs ...string) *debug.BuildInfo {
		info := &debug.BuildInfo{}
		for i := 0; i < len(pairs); i += 2 {
			info.Settings = append(info.Settings, debug.BuildSetting{Key: pairs[i], Value: pairs[i+1]})
		}
		return info
	}
	fetched := func(module string) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Version: module, Sum: "h1:x"}}
	}
	for want, info := range map[string]*debug.BuildInfo{
		"abc":              vcs("vcs.revision", "abc", "vcs.modified", "false"),
		"abc with changes": vcs("vcs.revision", "abc", "vcs.modified", "true"),
		"a957c6fabcde":     fetched("v0.1.1-0.20261121074120-a957c6fabcde"),
		"b957c6fabcde":     fetched("v0.0.0-20261121074120-b957c6fabcde"),
		unknown:            {Main: debug.Module{Version: "(devel)"}},
		"v9.8.7":           fetched("v9.8.7"),
	} {
		if got := commit(info, true); got != want {
			t.Errorf("commit is %q, want %q", got, want)
		}
	}
	if got := commit(nil, false); got != unknown {
		t.Errorf("commit without build information: got %q, want %q", got, unknown)
	}
	for want, info := range map[string]*debug.BuildInfo{
		"9.8.7": fetched("v9.8.7"), "0.1.1-0.20261121074120-a957c6fabcde": fetched("v0.1.1-0.20261121074120-a957c6fabcde"),
		version: {Main: debug.Module{Version: "v9.8.7"}}, // a clone with a tag, whose build sets the version if it is a release
	} {
		if got := releaseOf(info, true); got != want {
			t.Errorf("version of %+v is %q, want %q", info.Main, got, want)
		}
	}
	if got := releaseOf(nil, false); got != version {
		t.Errorf("version without build information: got %q, want %q", got, version)
	}
}
