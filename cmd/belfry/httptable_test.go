package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/belfryio/belfry/internal/console"
	"github.com/belfryio/belfry/internal/httpapi"
)

// commandRoutes are the commands, by groups in the order of the table in docs/http.md, with the
// routes of the HTTP API and of the console that do the same.
var commandRoutes = []struct{ command, routes, pages string }{
	{"add", "POST /v1/timers, POST /v1/events", "POST /new"},
	{"get", "GET /v1/timers, GET /v1/timers/{timer}", "GET /timers/{timer}"},
	{"ls", "GET /v1/timers, GET /v1/counts", "GET /timers, GET /schedules, GET /groups"},
	{"reschedule", "PATCH /v1/timers, PATCH /v1/timers/{timer}, POST /v1/bulk/reschedule", "POST /timers/{timer}/move, POST /timers/{timer}/fire, POST /timers/reschedule, POST /timers/reschedule-all"},
	{"cancel", "DELETE /v1/timers, DELETE /v1/timers/{timer}, POST /v1/bulk/cancel", "POST /timers/{timer}/cancel, POST /timers/cancel, POST /timers/cancel-all"},
	{"pause", "POST /v1/timers/{timer}/pause, POST /v1/groups/{group}/pause", "POST /timers/{timer}/pause, POST /groups/pause"},
	{"resume", "POST /v1/timers/{timer}/resume, POST /v1/groups/{group}/resume", "POST /timers/{timer}/resume, POST /groups/resume"},
	{"why", "GET /v1/timers/{timer}/why", "GET /timers/{timer}"},
	{"tail", "GET /v1/stream", "GET /tail"},
	{"preview", "GET /v1/preview, GET /v1/timers/{timer}/preview", "GET /new, GET /timers/{timer}"},
	{"trigger", "POST /v1/timers/{timer}/trigger", "POST /timers/{timer}/trigger"},
	{"backfill", "POST /v1/timers/{timer}/backfill", "POST /timers/{timer}/backfill"},
	{"update", "PUT /v1/timers/{timer}", "POST /timers/{timer}/edit"},
	{"runs", "GET /v1/timers/{timer}/runs", "GET /timers/{timer}/runs"},
	{"dead ls", "GET /v1/dead-letters", "GET /dead"},
	{"dead replay", "POST /v1/dead-letters/replay, POST /v1/bulk/replay", "POST /dead/replay, POST /timers/{timer}/replay"},
	{"dead rm", "DELETE /v1/dead-letters/{sequence}, POST /v1/bulk/discard", "POST /dead/discard"},
	{"rejected ls", "GET /v1/rejections", "GET /rejected"},
	{"services", "GET /v1/services", "GET /services, GET /services/{service}"},
	{"order ls", "GET /v1/order-keys", "GET /orders"},
	{"flow ls", "GET /v1/flows", "GET /limits"},
	{"flow show", "GET /v1/flows/{key}", "GET /limits/key"},
	{"flow set", "PUT /v1/flows/{key}", "POST /limits/set"},
	{"flow rm", "DELETE /v1/flows/{key}", "POST /limits/delete"},
	{"flow pause", "POST /v1/flows/{key}/pause", "POST /limits/pause"},
	{"flow resume", "POST /v1/flows/{key}/resume", "POST /limits/resume"},
	{"flow reset", "POST /v1/flows/{key}/reset", "POST /limits/reset"},
	{"clock show", "GET /v1/clock", "GET /timers"},
	{"clock advance", "POST /v1/clock/advance", "POST /clock/advance"},
	{"clock to", "POST /v1/clock/to", "POST /clock/advance"},
	{"clock run-until-idle", "POST /v1/clock/run-until-idle", "POST /clock/run-until-idle"},
	{"calendar ls", "GET /v1/calendars", "GET /calendars"},
	{"calendar get", "GET /v1/calendars/{name}", "GET /calendars/{name}"},
	{"calendar put", "PUT /v1/calendars/{name}", "POST /calendars/set"},
	{"calendar rm", "DELETE /v1/calendars/{name}", "POST /calendars/{name}/delete"},
	{"status", "GET /v1/status", "GET /cluster"},
	{"doctor", "GET /v1/doctor", "GET /cluster/doctor"},
}

// localCommands have no route, neither in the API nor in the console, for a reason.
var localCommands = []struct{ commands, why string }{
	{"serve", "it runs the node that serves the API and the console"},
	{"dev", "it runs a node with a clock that can be moved"},
	{"config check, config print", "they read the settings file, also where no node runs"},
	{"token new", "it makes a secret, which must not pass through the node; its hash goes to the settings"},
	{"token ls", "it reads the settings file"},
	{"backup, restore", "they read or write the whole store, to and from a file of the machine"},
	{"repair", "it reads the whole store; the log of the node says when an operator needs it"},
	{"export, import", "they read and send many timers with several requests; the lines of an export can be sent to `/v1/events`, up to 500 in a batch"},
	{"apply", "it compares files with the schedules of a group, and changes them with several requests"},
	{"listen", "it answers callbacks, as a target does"},
	{"tz diff", "it compares the time zones of two programs, before an upgrade"},
	{"health", "it asks the node at its health address, for a supervisor: `/healthz` and `/readyz`"},
	{"bench", "it loads the installation to measure it"},
	{"size", "it calculates from numbers alone, without a node"},
	{"version, exit-codes", "they describe the program"},
}

// consoleOnly are pages of the console that no command has: numbers from the search index, and the
// page that / leads to.
var consoleOnly = []string{"GET /{$}", "GET /now", "GET /upcoming"}

// coverage finds the routes that a table of commands names, and the other ones.
type coverage struct {
	t      *testing.T
	what   string
	routes map[string]bool // true for a route that is named
}

// name marks the routes of a command, and returns them for a cell of a table.
func (c *coverage) name(command, routes string) string {
	all := strings.Split(routes, ", ")
	for _, route := range all {
		if _, exists := c.routes[route]; !exists {
			c.t.Errorf("belfry %s: %s has no route %s", command, c.what, route)
		}
		c.routes[route] = true
	}
	return "`" + strings.Join(all, "`, `") + "`"
}

// check fails for each route that no command names.
func (c *coverage) check() {
	for route, named := range c.routes {
		if !named {
			c.t.Errorf("no command has the route %s of %s", route, c.what)
		}
	}
}

// apiRoutes are the routes in the document of the HTTP API.
func apiRoutes(t *testing.T) map[string]bool {
	t.Helper()
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
	return routes
}

// TestCommandsAndRoutes: docs/http.md has the tables of commandRoutes and localCommands. Together they have
// every command; the first has every route of the HTTP API and of the console but consoleOnly.
func TestCommandsAndRoutes(t *testing.T) {
	t.Parallel()
	api, pages := coverage{t, "the HTTP API", apiRoutes(t)}, coverage{t, "the console", map[string]bool{}}
	for _, rt := range console.Routes() {
		pages.routes[rt.String()] = false
	}
	for _, page := range consoleOnly {
		pages.name("(none)", page)
	}
	var table, local strings.Builder
	var listed []string
	table.WriteString("| command | HTTP API | console |\n|---|---|---|\n")
	for _, row := range commandRoutes {
		listed = append(listed, row.command)
		fmt.Fprintf(&table, "| `belfry %s` | %s | %s |\n", row.command, api.name(row.command, row.routes), pages.name(row.command, row.pages))
	}
	api.check()
	pages.check()
	local.WriteString("| command | why it has no route |\n|---|---|\n")
	for _, row := range localCommands {
		names := strings.Split(row.commands, ", ")
		listed = append(listed, names...)
		fmt.Fprintf(&local, "| `belfry %s` | %s |\n", strings.Join(names, "`, `belfry "), row.why)
	}
	found := map[string]bool{}
	c := &cli{process: process{lookupEnv: func(string) (string, bool) { return "", false }}}
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
	for _, want := range []string{table.String(), local.String()} {
		if !strings.Contains(string(guide), want) {
			t.Errorf("docs/http.md lacks this table:\n%s", want)
		}
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
