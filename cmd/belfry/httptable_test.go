package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/belfryio/belfry/internal/httpapi"
)

// commandRoutes are the commands, by groups in the order of the table in docs/http.md, with the
// routes that do the same.
var commandRoutes = []struct{ command, routes string }{
	{"add", "POST /v1/timers, POST /v1/events"},
	{"get", "GET /v1/timers, GET /v1/timers/{timer}"},
	{"ls", "GET /v1/timers, GET /v1/counts"},
	{"reschedule", "PATCH /v1/timers, PATCH /v1/timers/{timer}, POST /v1/bulk/reschedule"},
	{"cancel", "DELETE /v1/timers, DELETE /v1/timers/{timer}, POST /v1/bulk/cancel"},
	{"pause", "POST /v1/timers/{timer}/pause, POST /v1/groups/{group}/pause"},
	{"resume", "POST /v1/timers/{timer}/resume, POST /v1/groups/{group}/resume"},
	{"why", "GET /v1/timers/{timer}/why"},
	{"tail", "GET /v1/stream"},
	{"preview", "GET /v1/preview, GET /v1/timers/{timer}/preview"},
	{"trigger", "POST /v1/timers/{timer}/trigger"},
	{"backfill", "POST /v1/timers/{timer}/backfill"},
	{"update", "PUT /v1/timers/{timer}"},
	{"runs", "GET /v1/timers/{timer}/runs"},
	{"dead ls", "GET /v1/dead-letters"},
	{"dead replay", "POST /v1/dead-letters/replay, POST /v1/bulk/replay"},
	{"dead rm", "DELETE /v1/dead-letters/{sequence}, POST /v1/bulk/discard"},
	{"rejected ls", "GET /v1/rejections"},
	{"services", "GET /v1/services"},
	{"order ls", "GET /v1/order-keys"},
	{"flow ls", "GET /v1/flows"},
	{"flow show", "GET /v1/flows/{key}"},
	{"flow set", "PUT /v1/flows/{key}"},
	{"flow rm", "DELETE /v1/flows/{key}"},
	{"flow pause", "POST /v1/flows/{key}/pause"},
	{"flow resume", "POST /v1/flows/{key}/resume"},
	{"flow reset", "POST /v1/flows/{key}/reset"},
	{"calendar ls", "GET /v1/calendars"},
	{"calendar get", "GET /v1/calendars/{name}"},
	{"calendar put", "PUT /v1/calendars/{name}"},
	{"calendar rm", "DELETE /v1/calendars/{name}"},
	{"status", "GET /v1/status"},
	{"doctor", "GET /v1/doctor"},
}

// localCommands have no route: they run a node, work on its machine or its files, or on the whole
// store.
var localCommands = []string{
	"serve", "config check", "config print", "token new", "token ls", "bench", "health", "size", "version", "exit-codes",
	"backup", "restore", "repair", "tz diff",
}

// TestCommandsAndRoutes: docs/http.md has the table of commandRoutes, which has every command that is
// not local and every route of the HTTP API.
func TestCommandsAndRoutes(t *testing.T) {
	t.Parallel()
	var document struct {
		Paths map[string]map[string]any
	}
	if err := yaml.Unmarshal(httpapi.Document, &document); err != nil {
		t.Fatal(err)
	}
	routes := map[string]bool{}
	for path, item := range document.Paths {
		for method := range item {
			if method != "parameters" && path != "/v1/openapi.yaml" {
				routes[strings.ToUpper(method)+" "+path] = false
			}
		}
	}
	var table strings.Builder
	listed := slices.Clone(localCommands)
	table.WriteString("| command | route |\n|---|---|\n")
	for _, row := range commandRoutes {
		listed = append(listed, row.command)
		all := strings.Split(row.routes, ", ")
		for _, route := range all {
			if _, exists := routes[route]; !exists {
				t.Errorf("belfry %s: there is no route %s", row.command, route)
			}
			routes[route] = true
		}
		fmt.Fprintf(&table, "| `belfry %s` | `%s` |\n", row.command, strings.Join(all, "`, `"))
	}
	for route, has := range routes {
		if !has {
			t.Errorf("no command has the route %s", route)
		}
	}
	found := map[string]bool{}
	c := &cli{process: process{getenv: func(string) string { return "" }}}
	eachLeaf(c.rootCommand(), func(name string) {
		found[name] = true
		if !slices.Contains(listed, name) {
			t.Errorf("belfry %s is neither in commandRoutes nor in localCommands", name)
		}
	})
	for _, name := range listed {
		if !found[name] {
			t.Errorf("there is no command belfry %s", name)
		}
	}
	guide, err := os.ReadFile("../../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(guide), table.String()) {
		t.Errorf("docs/http.md lacks this table:\n%s", table.String())
	}
}

// eachLeaf passes the name of each command without subcommands to fn, without that of the program.
func eachLeaf(cmd *cobra.Command, fn func(name string)) {
	for _, sub := range cmd.Commands() {
		if sub.HasSubCommands() {
			eachLeaf(sub, fn)
			continue
		}
		_, name, _ := strings.Cut(sub.CommandPath(), " ")
		fn(name)
	}
}
