package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/belfryio/belfry/schemas"
)

// writeYAML writes a file of schedules.
func writeYAML(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// actions returns the actions of an apply by the ids of the schedules.
func actions(steps []applyStep) map[string]string {
	all := map[string]string{}
	for _, s := range steps {
		all[s.ID] = s.Action
	}
	return all
}

// TestApply: apply makes a group what files say, shows it first, changes nothing twice, and cancels what
// the files lack, of no other group.
func TestApply(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	dir := t.TempDir()
	one := writeYAML(t, dir, "one.yaml", `
defaults: {source: /ops, svc: jobs, ext: {color: red}}
schedules:
  - id: nightly
    cron: 30 2 * * *
    tz: Europe/Berlin
    data: {keep: 7, list: [1, two, null, 1.50]}
  - id: sync
    every: 7m
    callback: https://u:p@sync.example/run
    limit: 100
`)
	writeYAML(t, dir, "two.yml", "schedules:\n  - {id: daily, source: /ops, cron: '@daily', data: hello}\n")
	writeYAML(t, dir, "notes.txt", "no YAML: [")
	for _, args := range [][]string{
		{"add", "--cron", "@hourly", "--id", "old", "--source", "/ops", "--group", "ops"},
		{"add", "--cron", "@hourly", "--id", "other", "--source", "/ops", "--group", "others"},
		{"add", "--in", "2h", "--id", "once", "--source", "/ops", "--group", "ops"},
	} {
		if r := n.client(t, args...); r.code != exitOK {
			t.Fatal(r)
		}
	}
	args := []string{"apply", "-f", dir, "--group", "ops", "--prune"}
	dry := append(args, "--dry-run")
	r := n.client(t, dry...)
	for _, want := range []string{"create     nightly of source /ops\n           after  20", "delete     old of source /ops\n           before 20"} {
		if r.code != exitNotFound || !strings.Contains(r.out, want) || r.err != "plan: 3 to create, 0 to change, 1 to delete, 0 unchanged\n" {
			t.Errorf("plan: %v, want %q", r, want)
		}
	}
	if list := ok[schemas.TimerInfo](t, n, "ls", "--state", "pending"); len(list) != 3 {
		t.Errorf("after the dry run: %d timers", len(list))
	}
	if r = n.client(t, args...); r.code != exitOK || r.err != "done: 3 created, 0 changed, 1 deleted, 0 unchanged\n" {
		t.Errorf("apply: %v", r)
	}
	states := map[string]string{"nightly": "pending", "sync": "pending", "daily": "pending", "old": "cancelled", "other": "pending", "once": "pending"}
	for id, want := range states {
		if info := ok[schemas.TimerInfo](t, n, "get", id, "--source", "/ops")[0]; info.State.String() != want || strings.HasPrefix(id, "other") == (info.Group == "ops") {
			t.Errorf("%s: state %s of group %s, want %s", id, info.State, info.Group, want)
		}
	}
	if r = n.client(t, dry...); r.code != exitOK || r.err != "plan: 0 to create, 0 to change, 0 to delete, 3 unchanged\n" {
		t.Errorf("the second plan: %v", r)
	}
	exported := n.client(t, "export", "--group", "ops", "--schedule").out
	for _, want := range []string{`"data":{"keep":7,"list":[1,"two",null,1.50]}`, `"color":"red"`, `"data":"hello"`, `"timersvc":"jobs"`} {
		if !strings.Contains(exported, want) {
			t.Errorf("the events lack %s: %s", want, exported)
		}
	}

	// A change keeps the pause and the phase. A schedule of another group is refused, and the others are applied.
	if r := n.client(t, "pause", "sync", "--source", "/ops"); r.code != exitOK {
		t.Fatal(r)
	}
	before := ok[schemas.TimerInfo](t, n, "get", "sync", "--source", "/ops")[0]
	text, err := os.ReadFile(one)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.NewReplacer("u:p@", "u:q@", "30 2", "30 3", "limit: 100", "limit: 50").Replace(string(text)) + "  - {id: other, source: /ops, cron: '@daily'}\n"
	writeYAML(t, dir, "one.yaml", changed)
	r = n.client(t, append(dry, "-o", "json")...)
	steps := map[string]applyStep{}
	for _, s := range parseLines[applyStep](t, r.out) {
		steps[s.ID] = s
	}
	if r.code != exitRefused || !strings.Contains(r.err, "group others") || steps["other"].Action != "refused" || steps["daily"].Action != "unchanged" {
		t.Errorf("the third plan: %v", r)
	}
	if s := steps["nightly"]; s.Action != "change" || len(s.Changes) != 1 || s.Changes[0] != (attributeChange{"timercron", "30 2 * * *", "30 3 * * *"}) || len(s.Before) != 3 || len(s.After) != 3 || s.Before[0].Equal(s.After[0]) {
		t.Errorf("nightly: %+v", s)
	}
	if s := steps["sync"]; s.Action != "change" || !s.Paused || len(s.After) != 3 || !s.Before[0].Equal(s.After[0]) || strings.Contains(r.out, "u:q") {
		t.Errorf("sync: %+v", s)
	}
	if r = n.client(t, args...); r.code != exitRefused || !strings.Contains(r.err, "done: 0 created, 2 changed, 0 deleted, 1 unchanged") || !strings.Contains(r.out, "timercallback differs") {
		t.Errorf("the second apply: %v", r)
	}
	after := ok[schemas.TimerInfo](t, n, "get", "sync", "--source", "/ops")[0]
	if after.State != schemas.StatePaused || after.Schedule.Limit != 50 || !after.Schedule.Next.Equal(before.Schedule.Next) {
		t.Errorf("sync after its change: %+v", after.Schedule)
	}
	// What was pruned and has not expired is refused, not forgotten.
	r = belfryEnv(t, []string{"NATS_URL=" + n.nats}, "schedules: [{id: old, source: /ops, cron: '@hourly'}, {id: once, source: /ops, cron: '@hourly'}]", "apply", "-f", "-", "--group", "ops", "-o", "json")
	if got := actions(parseLines[applyStep](t, r.out)); r.code != exitRefused || got["old"] != "refused" || got["once"] != "refused" {
		t.Errorf("a cancelled schedule and a timer: %v", r)
	}
}

// TestApplyTogether: several applies of the same files at the same time all succeed, and the schedules
// are there once.
func TestApplyTogether(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	dir := t.TempDir()
	text := func(minute string) string {
		return "schedules:\n  - {id: a, source: /t, cron: '" + minute + " * * * *'}\n  - {id: fast, source: /t, every: 1s, svc: s" + minute + "}\n"
	}
	for _, minute := range []string{"1", "2"} {
		file := writeYAML(t, dir, "all.yaml", text(minute))
		results := make(chan result, 4)
		for range cap(results) {
			go func() { results <- n.client(t, "apply", "-f", file, "--group", "g", "--prune") }()
		}
		for range cap(results) {
			// An apply whose plan another one has overtaken with the same change succeeds.
			if r := <-results; r.code != exitOK {
				t.Errorf("minute %s: %v", minute, r)
			}
		}
		if r := n.client(t, "apply", "-f", file, "--group", "g", "--prune", "--dry-run"); r.code != exitOK || !strings.Contains(r.err, "2 unchanged") {
			t.Errorf("minute %s: the plan after that: %v", minute, r)
		}
	}
}

// TestApplyEmptyFile: a file without a document is a mistake, because --prune would cancel the whole group. An empty list
// of schedules cancels it.
func TestApplyEmptyFile(t *testing.T) {
	t.Parallel()
	n := serve(t, "")
	if r := n.client(t, "add", "--cron", "@hourly", "--id", "a", "--source", "/ops", "--group", "ops"); r.code != exitOK {
		t.Fatal(r)
	}
	apply := func(text string) result {
		return belfryEnv(t, []string{"NATS_URL=" + n.nats}, text, "apply", "-f", "-", "--group", "ops", "--prune")
	}
	for _, text := range []string{"", "\n", "# schedules: []\n"} {
		apply(text).oneLine(t, exitUsage, "-: the file is empty", "schedules: []", "nothing was changed")
	}
	if info := ok[schemas.TimerInfo](t, n, "get", "a", "--source", "/ops")[0]; info.State != schemas.StatePending {
		t.Errorf("after empty files the schedule is %s, want pending", info.State)
	}
	if r := apply("schedules: []"); r.code != exitOK || !strings.Contains(r.err, "1 deleted") {
		t.Errorf("apply of an empty list: got %v, want 1 deleted", r)
	}
}

// TestApplyMistakes: all mistakes of all files are found before any request, each with its place; a mistake that only
// a node finds ends the command before the first change.
func TestApplyMistakes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeYAML(t, dir, "a.yaml", `schedules:
  - id: a
    cron: 61 * * * *
  - id: b
    every: 5m
    tz: Mars
    colour: red
  - {id: c, every: 5m, group: other}
  - {id: d}
  - cron: '@daily'
  - id: a2
    every: 1h
    every: 2h
  - {id: e, every: 1h, data: &x [1], ext: {a: *x}}
  - {id: f, every: 1h, limit: [1]}
  - {id: g, every: 1h, content-type: application/json, data: "{"}
  - {id: h, every: 1h, expect: 30m}
  - {id: twice, every: 1h}
  - {id: i, cron: '@daily', callback: 'https://x.example/', worker: true}
  - {id: k, every: 1h, source: /the kitchen}
  - {id: 'l ', every: 1h}
`)
	writeYAML(t, dir, "b.yaml", "defaults: {id: x}\nother: 1\nschedules: [{id: twice, every: 1h}]\n")
	writeYAML(t, dir, "e.yaml", "schedules: [{id: twice, every: 1h}]\n")
	writeYAML(t, dir, "c.yaml", "schedules: 7\n---\n- a\n")
	writeYAML(t, dir, "d.yaml", "schedules:\n  - {id: j\n")
	r := belfryEnv(t, noServer, "", "apply", "-f", dir, "--group", "ops")
	if r.code != exitUsage || r.out != "" || !strings.Contains(r.err, "nothing was changed") {
		t.Errorf("got %v", r)
	}
	for _, want := range []string{
		"a.yaml:3: timercron", "a.yaml:7: unknown key \"colour\"", "a.yaml:8: the schedule has the group \"other\"", "a.yaml:9: give cron or every", "a.yaml:10: id is missing",
		"a.yaml:13: the key every occurs twice here", "a.yaml:14: aliases are not supported", "a.yaml:15: limit must be one text or number", "a.yaml:16: data: the content type is application/json",
		"a.yaml:17: timerexpect", "a.yaml:19: give either worker or callback", "a.yaml:20: the source \"/the kitchen\" is not a URI reference: write it as \"/the%20kitchen\"", "a.yaml:21: the id \"l \" begins or ends with white space", "e.yaml:1: the schedule at ", "d.yaml:", "c.yaml:1: schedules must be a list", "c.yaml:3: a file has the keys", "b.yaml:1: defaults must not have id", "b.yaml:2: unknown key",
	} {
		if !strings.Contains(r.err, want) {
			t.Errorf("stderr lacks %q: %s", want, r.err)
		}
	}
	for line, want := range map[string]string{
		"-f x --prune": "--prune needs --group", "--group g": "-f is required", "-f /does/not/exist": "no such file", "-f " + t.TempDir(): "no file *.yaml",
	} {
		belfryEnv(t, noServer, "", append([]string{"apply"}, strings.Fields(line)...)...).oneLine(t, exitUsage, want)
	}
	n := serve(t, "")
	r = belfryEnv(t, []string{"NATS_URL=" + n.nats}, "schedules:\n  - {id: a, every: 1h}\n  - {id: b, every: 1h, exclude: [nowhere]}\n", "apply", "-f", "-")
	r.oneLine(t, exitRefused, "-:3:", "nowhere", "nothing was changed")
}
